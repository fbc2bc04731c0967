"""A learnability controller: redesigns from solved rates without a language model.

Baseline, fallback of the gate, and teacher of the small engineer. With solved rate p, a stratum's share follows its
learnability p(1 - p), the variance of a success and so the expected size of a group-relative signal (Rutherford et
al. 2024, "No Regrets", Sampling For Learnability); difficulty moves one grid step where p leaves the middle. Each
stratum is decided on its own: the gate normalises shares, so no arithmetic across strata is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from environments.base import KnobSpec
from orchestrator.engineer.base import Stateless
from orchestrator.engineer.replies import expectation, spoken
from orchestrator.evidence import DEFAULT_MODULES, LEVELS, EnvInfo, Modules, configuration, solved_level
from orchestrator.records import Evidence, Proposal, StratumResult

MASTERED_ABOVE = 0.7
"""With 8 attempts a group at p = 0.7 still splits in 94 % of cases; above it the signal falls off fast."""

HARD_BELOW = 0.3
"""The mirror of MASTERED_ABOVE: learnability is symmetric around one half."""

SHARE = "share"

Rate = Callable[[StratumResult, frozenset[str]], float]


def counted_rate(result: StratumResult, solved: frozenset[str]) -> float:
    """Solved rate from raw counts."""
    return result.rate(solved)


def read_rate(result: StratumResult, solved: frozenset[str]) -> float:
    """Solved rate as it can be read off the compact text, in tenths: makes a teacher whose pupil sees all it used."""
    return solved_level(result, solved) / LEVELS


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of knobs and one rationale class per stratum."""

    rows: dict[str, dict[str, int]]
    classes: dict[str, str]

    @property
    def knobs(self) -> dict[str, Any]:
        """The table in the shape of a ``Knobs`` dump."""
        return {"strata": self.rows}


def plan(evidence: Evidence, info: EnvInfo, modules: Modules = DEFAULT_MODULES, rate: Rate = counted_rate) -> Plan:
    """The controller: a pure function of what ``modules`` let it see.

    Without F, or without attempts on a stratum, nothing is known: default share and difficulty as it was. Without a
    configuration to start from (H off, or the random stage 0) difficulty starts at the knobs' defaults.
    """
    before = configuration(evidence, modules)
    rows: dict[str, dict[str, int]] = {}
    classes: dict[str, str] = {}
    for result in evidence.results:
        solved_rate = rate(result, info.solved) if "F" in modules and result.total else None
        kind = classify(solved_rate)
        row = {}
        for spec in info.knobs:
            if spec.name == SHARE:
                row[spec.name] = share(spec, solved_rate)
            else:
                start = spec.default if before is None else before[result.stratum][spec.name]
                row[spec.name] = moved(spec, start, kind)
        rows[result.stratum], classes[result.stratum] = row, kind
    return Plan(rows, classes)


def classify(rate: float | None) -> str:
    """The rationale class of a solved rate."""
    if rate is None:
        return "unknown"
    if rate > MASTERED_ABOVE:
        return "mastered"
    return "hard" if rate < HARD_BELOW else "learnable"


def share(spec: KnobSpec, rate: float | None) -> int:
    """4p(1 - p) of the grid's top: all of it at one half. At least one step, so that no stratum is forgotten."""
    if rate is None:
        return spec.default
    return max(spec.nearest(spec.maximum * 4 * rate * (1 - rate)), spec.minimum + spec.step)


def moved(spec: KnobSpec, value: int, kind: str) -> int:
    """One grid step harder if mastered, one easier if hard, else as it was; stays within the bounds."""
    sign = {"mastered": 1, "hard": -1}.get(kind, 0)
    return spec.nearest(value + sign * spec.harder * spec.step)


class ControllerEngineer(Stateless):
    """The controller behind the engineer's interface."""

    def __init__(self, info: EnvInfo, modules: Modules = DEFAULT_MODULES) -> None:
        self._info = info
        self._modules = modules

    def propose(self, evidence: Evidence) -> Proposal:
        """Deterministic; never without knobs."""
        made = plan(evidence, self._info, self._modules)
        return Proposal(
            source="controller",
            knobs=made.knobs,
            rationale=spoken(made.classes, self._info),
            expected=expectation(made.classes, self._info),
        )
