"""Rollouts ahead of the learner ÷ both in turn: time for the same samples, compute, and the price in quality.

Whole runs of ``recipes/laptop.yaml``, started by the command as a user does. ``ahead`` is the recipe as it ships:
rollouts on one core, the learner on the other, at the same time. ``both_cores`` samples and trains in turn and may use
both cores for each. ``in_turn`` samples and trains in turn with a core each, which measures what rollouts (R) and the
learner (L) take alone; ahead of each other they need at least max(R, L) a step, so (R + L) / max(R, L) bounds the gain.

``ASYNC_SEEDS`` (3) sets the number of seeds. Runs of the three kinds alternate, so that a slower hour hits all alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.machine import descendants
from orchestrator.statistics import before_after
from orchestrator.store import RunStore

RECIPE = Path(__file__).parents[1] / "recipes" / "laptop.yaml"
SEEDS = int(os.environ.get("ASYNC_SEEDS", "3"))
IN_TURN = ["curriculum.max_lag=0"]
SHORT = ["curriculum.stages=[{instances: 1280}, {instances: 1280}]", "evaluation.held_out_per_stratum=10"]
MODES = {
    "ahead": [],
    "both_cores": [*IN_TURN, "rollout.workers=2", "rollout.cpus=0.5", "learner.threads=2", "learner.cpus=0.5"],
    "in_turn": [*IN_TURN, *SHORT],
}
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """One run: seconds of its training steps, R and L (seconds a step), CPU seconds, and its final held-out rows."""

    steps: int = 0
    train_s: float = 0.0
    rollout_s: float = 0.0
    learner_s: float = 0.0
    cpu_s: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    solved: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)


def run() -> dict[str, float]:
    """Figures: ``bound_share``, ``wall_ratio``, ``cpu_ratio``, R and L, idle ratios, and the difference in quality."""
    found: dict[str, list[Measured]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(SEEDS):
            for mode, overrides in MODES.items():
                found[mode].append(_train(Path(folder), mode, seed, overrides))
                one = found[mode][-1]
                print(f"seed {seed} {mode}: {one.train_s / one.steps:.2f} s a step, {one.cpu_s:.0f} CPU s", flush=True)
    return figures(found)


def figures(found: dict[str, list[Measured]]) -> dict[str, float]:
    """From the measured runs of each mode; times are per step, over all seeds."""
    step = {mode: _per_step(runs, "train_s") for mode, runs in found.items()}
    rollout, learner = _per_step(found["in_turn"], "rollout_s"), _per_step(found["in_turn"], "learner_s")
    bound = (rollout + learner) / max(rollout, learner)
    ahead, both = found["ahead"], found["both_cores"]
    before = [row for one in both for row in one.rows]
    after = [row for one in ahead for row in one.rows]
    pooled = before_after(before, after, solved=frozenset(ahead[0].solved), best=ahead[0].outcomes[0])[-1]
    return {
        "bound_share": step["in_turn"] / step["ahead"] / bound,
        "bound": bound,
        "speedup_on_a_core_each": step["in_turn"] / step["ahead"],
        "wall_ratio": step["ahead"] / step["both_cores"],
        "cpu_ratio": sum(one.cpu_s for one in ahead) / sum(one.cpu_s for one in both),
        "step_s_ahead": step["ahead"],
        "step_s_both_cores": step["both_cores"],
        "step_s_in_turn": step["in_turn"],
        "rollout_s": rollout,
        "learner_s": learner,
        "rollout_idle_ahead": 1 - _per_step(ahead, "rollout_s") / step["ahead"],
        "learner_idle_ahead": 1 - _per_step(ahead, "learner_s") / step["ahead"],
        "held_out_boards": float(pooled["n"]),
        "quality_points": 100 * pooled["difference"],
        "quality_low": 100 * pooled["low"],
        "quality_high": 100 * pooled["high"],
    }


def _per_step(runs: list[Measured], name: str) -> float:
    return float(sum(getattr(one, name) for one in runs) / sum(one.steps for one in runs))


def _train(folder: Path, mode: str, seed: int, overrides: list[str]) -> Measured:
    name = f"{mode}-{seed}"
    command = [sys.executable, "-m", "orchestrator", "train", str(RECIPE), f"name={name}", f"seed={seed}"]
    with open(folder / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            [*command, f"output={folder}", *overrides], stdout=log, stderr=subprocess.STDOUT, cwd=RECIPE.parents[1]
        )
        cpu = _watch(process)
    if process.returncode:
        raise RuntimeError(f"{name} failed: {(folder / f'{name}.log').read_text()[-2000:]}")
    return _read(RunStore.open(folder / name), seed, cpu)


def _watch(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of the process and all that it started, until it ends. What a process used in the half second before
    it was last seen is not counted."""
    used: dict[int, float] = {}
    while process.poll() is None:
        for pid in (process.pid, *descendants(process.pid)):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            used[pid] = (int(stat[11]) + int(stat[12])) / TICK
        time.sleep(0.5)
    return sum(used.values())


def _read(store: RunStore, seed: int, cpu: float) -> Measured:
    environment, after = store.read_environment(), store.read_evaluation("after")
    assert environment is not None and after is not None
    one = Measured(cpu_s=cpu, solved=environment["solved"])
    one.outcomes = [outcome["name"] for outcome in reversed(environment["outcomes"])]
    # The same board under another seed is another pair.
    one.rows = [{**row, "task_id": f"{seed}/{row['task_id']}"} for row in after["tasks"]]
    for stage in store.stages():
        for entry in store.read_metrics(stage):
            values = entry["values"]
            one.steps += 1
            one.train_s += values["time/step"]
            one.rollout_s += (1 - values["rollout/idle_ratio"]) * values["time/step"]
            one.learner_s += (1 - values["learner/idle_ratio"]) * values["time/step"]
    return one
