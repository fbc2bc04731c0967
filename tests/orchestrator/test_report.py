"""The report tells a run from its directory alone. ``python test_report.py DIRECTORY`` builds an example to look at."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report import write_report
from orchestrator.store import RunStore

STRATA = ("3x3", "4x4", "5x5")
OUTCOMES = {
    "truncated": "the token limit ended it before a complete plan",
    "parse_error": "an unknown token, or a duplicate or extra agent",
    "out_of_bounds": "a step left the board",
    "hole": "a step entered a hole",
    "vertex_conflict": "two agents on one cell",
    "goal_not_reached": "no violation, but an agent is not on its goal",
    "valid": "every agent arrives, later than the best plan",
    "optimal": "every agent arrives as early as possible",
}
KNOBS = [
    {"name": "share", "minimum": 0, "maximum": 100, "step": 10, "unit": "%", "harder": 0, "description": "weight"},
    {"name": "hole_ratio", "minimum": 0, "maximum": 50, "step": 10, "unit": "%", "harder": 1, "description": "holes"},
    {"name": "wait_ratio", "minimum": 0, "maximum": 100, "step": 10, "unit": "%", "harder": 1, "description": "waits"},
]
TABLES = (
    {"3x3": (50, 20, 30), "4x4": (30, 10, 60), "5x5": (20, 40, 0)},
    {"3x3": (30, 30, 30), "4x4": (40, 10, 60), "5x5": (30, 30, 0)},
    {"3x3": (20, 30, 40), "4x4": (40, 20, 60), "5x5": (40, 30, 10)},
)
CONFIG = """\
name: laptop
seed: 0
model: {path: null, new: {hidden: 128, layers: 4, steps: 500}}
sync: {tolerance: 0.001}
curriculum: {stages: [{instances: 1600, epochs: 1}, {instances: 800, epochs: 2}], prompts_per_step: 32, group_size: 8}
engineer: {kind: policy, modules: FGHT, style: compact}
"""


def build_run(
    directory: Path, *, stages: int = 3, steps: int = 50, state: Any = "finished", reply: str = "3x3 share 30"
) -> RunStore:
    """A run directory as the driver would leave it, with made-up numbers."""
    store, rng = RunStore.create(directory, CONFIG), random.Random(0)
    names = [{"name": name, "description": text} for name, text in OUTCOMES.items()]
    solved = ["valid", "optimal"]
    store.write_environment(
        {"name": "mapf_frozenlake", "strata": STRATA, "outcomes": names, "solved": solved, "knobs": KNOBS}
    )
    store.write_status("running", 1_800_000_000.0)
    store.write_evaluation("before", _evaluation("before", 0.15, 334))
    for k in range(stages):
        store.write_stage(k, "environment", {"knobs": _knobs(k)})
        store.write_metrics(k, [_step(k * steps + i, stages * steps, rng) for i in range(steps)])
        store.write_stage(k, "validation", _evaluation(f"stage-{k}", 0.25 + 0.13 * k, 150))
        if k + 1 < stages:
            decision = _decision(k, reply)
            store.write_stage(k, "engineer", {"prompt": decision["proposal"]["prompt"], "reply": reply})
            store.write_stage(k, "decision", decision)
    if state == "finished":
        store.write_evaluation("after", _evaluation("after", 0.48, 334))
        board = "S . .\n. # .\n. . G"
        caption = "Two agents on a 3x3 board with one hole; letters are goals."
        store.write_showcase({"task_id": "a", "before": board, "after": board, "caption": caption})
    store.write_status(state, 1_800_000_851.0, exit_code=0 if state == "finished" else 130, message="")
    return store


def _knobs(stage: int) -> dict[str, Any]:
    table = TABLES[min(stage, 2)]
    return {"strata": {s: {k["name"]: v for k, v in zip(KNOBS, table[s], strict=True)} for s in STRATA}}


def _evaluation(name: str, rate: float, n: int) -> dict[str, Any]:
    rng, tasks = random.Random(1), []
    for i, stratum in enumerate(STRATA):
        for j in range(n):
            level = rng.random() + 0.08 * i
            outcome = "optimal" if level < 0.7 * rate else "valid" if level < rate else "hole"
            tasks.append({"task_id": f"{stratum}-{j}", "stratum": stratum, "outcome": outcome, "reward": 0.0})
    return {"name": name, "checkpoint": 0, "strata": {}, "tasks": tasks}


def _step(step: int, steps: int, rng: random.Random) -> dict[str, Any]:
    grown = 1 - math.exp(-3 * step / steps) + rng.gauss(0, 0.03)
    weights = [0.3 - 0.28 * grown, 0.2 - 0.15 * grown, 0.3, 0.5, 0.25, 0.3, 0.1 + 0.1 * grown, 0.2 + 1.2 * grown]
    shares = [max(0.0, w) for w in weights]
    values = {f"env/outcome/{o}": s / sum(shares) for o, s in zip(OUTCOMES, shares, strict=True)}
    values |= {
        "reward/mean": 0.2 + 0.5 * grown,
        "rollout/tokens": 4_100,
        "rollout/tokens_per_second": 3_200 + rng.gauss(0, 150),
        "learner/tokens_per_second": 5_100 + rng.gauss(0, 200),
        "rollout/idle_ratio": 0.45 + rng.gauss(0, 0.03),
        "learner/idle_ratio": 0.55 + rng.gauss(0, 0.03),
        "rollout/zero_variance_share": 0.5 - 0.2 * grown,
        "policy/entropy": 1.1 - 0.6 * grown,
        "policy/kl_rollout": abs(rng.gauss(0, 1e-5)),
        "rollout/length_mean": 16 - 3 * grown,
        "rollout/length_p95": 25 - 3 * grown,
        "sync/logprob_gap_mean": abs(rng.gauss(0, 1e-5)),
        "sync/logprob_gap_max": abs(rng.gauss(0, 1e-4)),
    }
    return {"step": step, "values": values}


def _decision(stage: int, reply: str) -> dict[str, Any]:
    before, after = _knobs(stage)["strata"], _knobs(stage + 1)["strata"]
    changes = [
        f"{s} {knob} {value} → {after[s][knob]}"
        for s, row in before.items()
        for knob, value in row.items()
        if value != after[s][knob]
    ]
    prompt = [{"role": "system", "content": "You design the next environment."}, {"role": "user", "content": "hole 9"}]
    checks = [{"name": "schema", "passed": True, "reason": ""}, {"name": "bounds", "passed": True, "reason": ""}]
    if stage:
        checks.append({"name": "probe", "passed": False, "reason": "5x5 was made harder and fell to 0.08 (limit 0.20)"})
    proposal = {"source": "policy", "knobs": {}, "rationale": "Holes are where it fails.", "prompt": prompt}
    proposal |= {"reply": reply, "expected": {"3x3": -1, "5x5": 1}, "error": ""}
    status = "replaced" if stage else "accepted"
    fallback = {"source": "controller"} if stage else None
    knobs = _knobs(stage + 1)
    return {"status": status, "proposal": proposal, "knobs": knobs, "checks": checks, "changes": changes} | {
        "fallback": fallback
    }


class _Balance(HTMLParser):
    """Every element that opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("runs") / "laptop"
    build_run(directory)
    return Path(write_report(directory)).read_text()


def test_report_shows_every_section_of_a_finished_run(page: str) -> None:
    for title in ("Held-out tasks, before and after", "Learning", "stage by stage", "Redesigns", "One task", "Files"):
        assert title in page
    assert page.count("<svg role=") == 5
    assert "hole_ratio 20 → 30" in page
    assert "5x5 was made harder and fell to 0.08" in page
    assert "logprob_gap_mean" in page and "<td>0.001</td>" in page
    assert "1 of 2" in page and "n = 1002" in page


def test_report_needs_nothing_from_outside(page: str) -> None:
    assert "<script" not in page and "<link" not in page
    assert not re.search(r'(src|href)="(?!#)[a-z]+:', page)
    assert not re.search(r"url\((?!#)", page)


def test_report_is_well_formed_and_ids_are_unique(page: str) -> None:
    parser = _Balance()
    parser.feed(page)
    assert not parser.open
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert used <= set(ids)


def test_report_of_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    build_run(tmp_path / "laptop", steps=10)
    first = Path(write_report(tmp_path / "laptop")).read_bytes()
    assert Path(write_report(tmp_path / "laptop")).read_bytes() == first


def test_report_escapes_what_the_model_wrote(tmp_path: Path) -> None:
    build_run(tmp_path / "laptop", steps=5, reply="</pre><script>alert(1)</script> $x_$")
    page = Path(write_report(tmp_path / "laptop")).read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page


def test_interrupted_run_has_a_report_that_says_how_to_go_on(tmp_path: Path) -> None:
    store = build_run(tmp_path / "laptop", stages=1, steps=7, state="interrupted")
    assert "it has no complete checkpoint yet" in Path(write_report(tmp_path / "laptop")).read_text()
    store.finish_checkpoint(5, {}, border=False, keep=2)
    page = Path(write_report(tmp_path / "laptop")).read_text()
    assert "after 7 stored steps" in page and f"envwright resume {tmp_path / 'laptop'}" in page
    assert "Held-out tasks, before training" in page


def test_run_that_only_has_its_configuration_has_a_report(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "laptop", CONFIG)
    assert "laptop" in Path(write_report(tmp_path / "laptop")).read_text()


def test_run_whose_policy_never_got_a_proposal_through_says_so_at_the_top(tmp_path: Path) -> None:
    store = build_run(tmp_path / "laptop", steps=5)
    store.write_stage(0, "decision", _decision(1, "?"))
    page = Path(write_report(tmp_path / "laptop")).read_text()
    assert "All 2 proposals of the policy were replaced" in page


def test_importing_the_report_loads_no_heavy_package() -> None:
    code = (
        "import sys, orchestrator.report; print({'ray', 'torch', 'matplotlib', 'pyarrow', 'vllm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


if __name__ == "__main__":
    build_run(Path(sys.argv[1]))
    print(write_report(sys.argv[1]))
