"""Who worked and who waited: seconds and tokens of rollouts and learner, per step and over the whole run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from actors.rollout import WorkerReport

LEARNER_PHASES = ("learn", "sync")
"""Phases of the driver in which the learner works: updates, and gathering and scoring its weights."""


@dataclass(frozen=True, slots=True)
class Split:
    """How the machine was shared. ``rollout`` and ``learner`` are the busy shares of the time (0..1) of each side;
    ``suggested`` is the share of all cores (or GPUs) with which neither side would wait for the other."""

    rollout: float
    learner: float
    suggested: float

    def __str__(self) -> str:
        rollout, learner, share = (round(100 * x) for x in (1 - self.rollout, 1 - self.learner, self.suggested))
        return (
            f"while training, rollouts were idle {rollout} % and the learner {learner} % of the time; with "
            f"curriculum.max_lag >= 1 neither waits at {share} % of the compute for rollouts"
        )


class Usage:
    """Adds up phases of the driver and reports of the engines. ``clock`` gives seconds."""

    def __init__(
        self, *, rollout_units: float, learner_units: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """The units are what each side has in all: its actors times the cores or GPUs of one."""
        self._units, self._clock = (rollout_units, learner_units), clock
        self._wall = self._rollout_s = self._learner_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._generated = self._trained = 0
        self._engine_s = self._generating_s = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of the block as a phase of the current step."""
        started = self._clock()
        try:
            yield
        finally:
            self._phases[name] += self._clock() - started

    def generated(self, reports: Sequence[Sequence[WorkerReport]]) -> None:
        """Engines reported; each inner sequence is one ticket, one report per engine."""
        for ticket in reports:
            if ticket:
                self._generated += sum(report.tokens for report in ticket)
                self._engine_s += sum(report.busy_s for report in ticket) / len(ticket)
                self._generating_s += max(report.generate_s + report.score_s for report in ticket)

    def trained(self, tokens: int) -> None:
        """The learner made its updates on so many tokens."""
        self._trained += tokens

    def step(self, wall: float) -> dict[str, float]:
        """Close a step that took ``wall`` seconds: its phases, rates and idle ratios as metrics."""
        learner_s = sum(self._phases[name] for name in LEARNER_PHASES)
        self._wall += wall
        self._rollout_s += self._engine_s
        self._learner_s += learner_s
        learning_s = self._phases["learn"]
        values = {
            **{f"time/{name}": seconds for name, seconds in self._phases.items()},
            "time/step": wall,
            "rollout/tokens_per_second": self._generated / self._generating_s if self._generating_s else 0.0,
            "learner/tokens_per_second": self._trained / learning_s if learning_s else 0.0,
            "rollout/idle_ratio": min(1.0, max(0.0, 1 - self._engine_s / wall)) if wall > 0 else 0.0,
            "learner/idle_ratio": min(1.0, max(0.0, 1 - learner_s / wall)) if wall > 0 else 0.0,
        }
        self._begin()
        return values

    def split(self) -> Split | None:
        """What the run says of its division of the machine; None before its first step."""
        if self._wall <= 0 or self._rollout_s + self._learner_s <= 0:
            return None
        rollout, learner = self._rollout_s * self._units[0], self._learner_s * self._units[1]
        return Split(
            min(1.0, self._rollout_s / self._wall),
            min(1.0, self._learner_s / self._wall),
            rollout / (rollout + learner),
        )
