"""Metrics come from groups, go to loggers and Ray by one table, and what a person is told follows from them."""

from __future__ import annotations

import io
import math
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from actors.records import Group, Sample, Scored
from environments.base import Failure, FailureKind, Task, Verdict
from orchestrator.metrics import EXPORTS, Metrics, exported, rollout_metrics, staleness_metrics, trained_metrics
from orchestrator.progress import TrainProgress, closing, duration, headline, policy_warning, summarise_redesign
from orchestrator.store import RunStore

OUTCOMES = ("hole", "valid", "optimal")


def test_step_metrics_count_failures_apart_from_rewards() -> None:
    lost = Scored(None, Failure(FailureKind.INFRASTRUCTURE, "worker died"))
    values = rollout_metrics([_group("a", _judged("hole", 0.0), _judged("optimal", 1.0), lost)], OUTCOMES)
    assert values["reward/mean"] == 0.5
    assert (values["env/outcome/hole"], values["env/outcome/valid"], values["env/outcome/optimal"]) == (0.5, 0.0, 0.5)
    assert (values["rollout/failure/infrastructure"], values["rollout/failure/timeout"]) == (1, 0)
    assert values["rollout/failed_share"] == pytest.approx(1 / 3)


def test_step_metrics_see_groups_without_signal_and_truncation() -> None:
    same = _group("a", _judged("hole", 0.0, tokens=4), _judged("hole", 0.0, tokens=8, finish="length"))
    mixed = _group("b", _judged("hole", 0.0, tokens=4), _judged("valid", 0.8, tokens=4))
    values = rollout_metrics([same, mixed], OUTCOMES)
    assert values["rollout/zero_variance_share"] == 0.5
    assert values["rollout/truncated_share"] == 0.25
    assert (values["rollout/length_mean"], values["rollout/tokens"]) == (5.0, 20)
    assert values["env/stratum/3x3/reward"] == pytest.approx(0.2)


def test_step_without_any_verdict_reports_no_reward_rather_than_zero() -> None:
    values = rollout_metrics([_group("a", Scored(None, Failure(FailureKind.TIMEOUT, "late")))], OUTCOMES)
    assert "reward/mean" not in values and "env/outcome/hole" not in values
    assert values["rollout/failed_share"] == 1.0


def test_metrics_of_what_was_trained_stand_apart_from_those_of_all_rollouts() -> None:
    same = _group("a", _judged("hole", 0.0, tokens=4), _judged("hole", 0.0, tokens=4))
    lost = Scored(None, Failure(FailureKind.TIMEOUT, "late"))
    mixed = _group("b", _judged("hole", 0.0, tokens=2), _judged("optimal", 1.0, tokens=8), lost)
    everything, trained = rollout_metrics([same, mixed], OUTCOMES), trained_metrics([mixed])
    assert (everything["reward/mean"], trained["trained/reward_mean"]) == (0.25, 0.5)
    assert (everything["rollout/length_mean"], trained["trained/length_mean"]) == (4.5, 5.0)
    assert (trained["trained/groups"], trained["trained/samples"], trained["trained/tokens"]) == (1, 2, 10)
    assert trained_metrics([]) == {"trained/groups": 0, "trained/samples": 0, "trained/tokens": 0}


def test_staleness_counts_versions_by_token_and_samples_that_span_two() -> None:
    """Learner at 5; tokens by versions 5, 5 | 3, 4, 4, 4: behind by 0, 0, 2, 1, 1, 1, so mean 5/6, largest 2."""
    groups = [_group("a", _judged("hole", 0.0, versions=(5, 5)), _judged("valid", 1.0, versions=(3, 4, 4, 4)))]
    values = staleness_metrics(groups, 5)
    assert values == {"staleness/mean": pytest.approx(5 / 6), "staleness/max": 2.0, "staleness/mixed_share": 0.5}
    assert staleness_metrics([_group("a", Scored(None, Failure(FailureKind.TIMEOUT, "late")))], 5) == {}


def test_exported_names_come_from_one_table() -> None:
    assert len({e.name for e in EXPORTS}) == len(EXPORTS)
    export, label = exported("env/outcome/hole") or pytest.fail("outcome rates are exported")
    assert (export.name, label) == ("envwright_outcome_rate", {"outcome": "hole"})
    assert exported("reward/mean") is not None
    assert exported("env/stratum/3x3/reward") is None and exported("reward/other") is None


def test_metrics_reach_the_run_directory_and_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "ray.util", types.SimpleNamespace(metrics=_fake_ray_metrics(seen)))
    store = RunStore.create(tmp_path / "run", "name: run\n")
    with Metrics(store, "run") as metrics:
        metrics.log(0, {"reward/mean": 0.5, "env/outcome/hole": 0.25, "env/stratum/3x3/reward": 1.0}, stage=0)
        metrics.log(1, {"rollout/failure/timeout": 2, "policy/entropy": math.nan}, stage=0)
    assert seen == [
        ("envwright_reward_mean", 0.5, {"run": "run", "stage": "0"}),
        ("envwright_outcome_rate", 0.25, {"run": "run", "stage": "0", "outcome": "hole"}),
        ("envwright_failures", 2, {"run": "run", "stage": "0", "kind": "timeout"}),
    ]
    steps = store.read_metrics(0)
    assert [s["step"] for s in steps] == [0, 1]
    assert steps[1]["values"] == {"rollout/failure/timeout": 2, "policy/entropy": None}


def test_every_logger_gets_every_value_and_learns_how_the_run_ended(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", "name: run\n")
    loggers = [FakeLogger(), FakeLogger()]
    with pytest.raises(RuntimeError), Metrics(store, "run", loggers) as metrics:
        metrics.log(3, {"reward/mean": 0.5}, stage=0)
        raise RuntimeError("the run broke off")
    assert [logger.seen for logger in loggers] == [[(3, {"reward/mean": 0.5}), "failed"]] * 2


def test_resumed_stage_keeps_the_history_before_its_checkpoint(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", "name: run\n")
    stored = [{"step": s, "values": {"reward/mean": s / 10}} for s in range(8)]
    with Metrics(store, "run") as metrics:
        metrics.restore(0, stored, before=5)
        metrics.log(5, {"reward/mean": 0.9}, stage=0)
    assert [(s["step"], s["values"]["reward/mean"]) for s in store.read_metrics(0)][-2:] == [(4, 0.4), (5, 0.9)]


def test_log_lines_outside_a_terminal_are_plain_and_unwrapped() -> None:
    stream, now = io.StringIO(), iter(range(100))
    console = Console(file=stream, width=40)
    shown = TrainProgress(solved={"valid", "optimal"}, best="optimal", console=console, clock=lambda: next(now))
    values = {"reward/mean": 0.412, "env/outcome/hole": 0.5, "env/outcome/valid": 0.1, "env/outcome/optimal": 0.4}
    with shown:
        shown.begin(1, 10)
        for done in range(1, 11):
            shown.update(done, values)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    text = "step  1/10  reward 0.412  valid 50.0 %  optimal 40.0 %  most failures hole 50.0 %"
    assert lines[0] == f"stage 1  {text}  left 9 s"


def test_terminal_shows_one_live_line_per_stage() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with TrainProgress(solved={"valid"}, best="valid", console=console) as shown:
        for stage in (0, 1):
            shown.begin(stage, 2)
            shown.update(2, {"reward/mean": 0.25})
    assert "stage 1" in console.file.getvalue()  # type: ignore[attr-defined]


def test_durations_read_like_a_person_says_them() -> None:
    assert [duration(s) for s in (42, 200, 7500)] == ["42 s", "3 min 20 s", "2 h 05 min"]


def test_headline_admits_when_nothing_is_clear() -> None:
    row = {"stratum": "all", "n": 50, "valid_before": 0.2, "valid_after": 0.22, "difference": 0.02}
    assert "no clear change" in headline([{**row, "low": -0.05, "high": 0.09}])
    assert "no clear change" not in headline([{**row, "low": 0.01, "high": 0.03}])


def test_run_whose_policy_was_always_replaced_says_so_in_its_last_lines() -> None:
    redesign = summarise_redesign(0, _decision("replaced", error="the reply is not JSON"))
    console = Console(file=io.StringIO(), width=400)
    console.print(closing([], [redesign], "runs/laptop/report.html"))
    last = console.file.getvalue().strip().splitlines()[-1]  # type: ignore[attr-defined]
    assert last.startswith("The only proposal of the policy was replaced")
    assert "designed by controller" in last and "the reply is not JSON" in last


def test_one_used_proposal_silences_the_warning() -> None:
    used = summarise_redesign(0, _decision("accepted"))
    lost = summarise_redesign(1, _decision("replaced", error="no"))
    assert policy_warning([used, lost]) is None
    assert used["reason"] == "passed every check" and used["used"] == "policy"


class FakeLogger:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.seen.append((step, dict(values)))

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self, *, failed: bool) -> None:
        self.seen.append("failed" if failed else "ended")


def _decision(status: str, error: str = "") -> dict[str, Any]:
    proposal = {"source": "policy", "error": error}
    checks = [{"name": "schema", "passed": True, "reason": ""}]
    fallback = {"source": "controller"} if status == "replaced" else None
    return {"status": status, "proposal": proposal, "checks": checks, "changes": [], "fallback": fallback}


def _fake_ray_metrics(seen: list[tuple[str, float, dict[str, str]]]) -> Any:
    class Instrument:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.keys = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.keys)
            seen.append((self.name, value, tags))

        inc = set

    return types.SimpleNamespace(Gauge=Instrument, Counter=Instrument)


def _judged(
    outcome: str, reward: float, tokens: int = 2, finish: str = "stop", versions: tuple[int, ...] | None = None
) -> Scored:
    made_by = (0,) * tokens if versions is None else versions
    ids = tuple(range(len(made_by)))
    sample = Sample("a", (1,), ids, (-0.5,) * len(ids), made_by, "UP", finish, 0, 7, "rollout-0")
    return Scored(sample, Verdict(reward, outcome))


def _group(name: str, *members: Scored) -> Group:
    return Group(Task("fake", name, "3x3", "train", 0), members)
