"""Does the engineer read its evidence? Swap the results of two strata and see whether its proposal follows.

What it should do is read off the learnability controller, a pure function of the same evidence: every cell of the knob
table that the controller turns because of the swap is asked of the engineer, and counts as followed when it moved in
the same direction. An engineer that ignores its evidence follows none; one that writes random numbers under half.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from environments.base import stream
from orchestrator.dialogues import random_evidence
from orchestrator.engineer.base import Engineer
from orchestrator.evidence import EnvInfo, swap
from orchestrator.records import Evidence, Proposal


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Cells that should have moved after a swap, and how many did in the right direction."""

    cells: int
    followed: int

    def __add__(self, other: Counterfactual) -> Counterfactual:
        return Counterfactual(self.cells + other.cells, self.followed + other.followed)


def examine(engineer: Engineer, controller: Engineer, evidence: Evidence, given: Proposal) -> Counterfactual:
    """Swap neighbouring strata, one pair at a time. ``given`` is the engineer's proposal on the real evidence."""
    total = Counterfactual(0, 0)
    expected = controller.propose(evidence)
    for a, b in pairwise(evidence.strata):
        swapped = swap(evidence, a, b)
        total += compare(expected, controller.propose(swapped), given, engineer.propose(swapped))
    return total


def sound_out(engineer: Engineer, controller: Engineer, info: EnvInfo, seed: int, pieces: int) -> Counterfactual:
    """:func:`examine` on synthetic evidence, which differs between strata more than a run's own often does."""
    rng, total = stream(seed, "swaps"), Counterfactual(0, 0)
    for _ in range(pieces):
        evidence = random_evidence(info, rng)
        total += examine(engineer, controller, evidence, engineer.propose(evidence))
    return total


def compare(expected: Proposal, expected_after: Proposal, given: Proposal, given_after: Proposal) -> Counterfactual:
    """Cells that the controller turns between two proposals, and those that the engineer turned the same way."""
    cells = followed = 0
    for stratum, row in _rows(expected).items():
        for knob, value in row.items():
            wanted = _sign(_rows(expected_after)[stratum][knob] - value)
            if wanted:
                cells += 1
                followed += wanted == _sign(_cell(given_after, stratum, knob) - _cell(given, stratum, knob))
    return Counterfactual(cells, followed)


def _rows(proposal: Proposal) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = (proposal.knobs or {}).get("strata", {})
    return rows


def _cell(proposal: Proposal, stratum: str, knob: str) -> float:
    """A value of a proposal; one that could not be read never moves."""
    value = _rows(proposal).get(stratum, {}).get(knob, 0)
    return float(value) if isinstance(value, int | float) else 0.0


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)
