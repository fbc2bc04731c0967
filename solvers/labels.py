"""What the solvers answer: the status, the plan notation, and the labels of one instance and of a batch."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ACTIONS = ("UP", "DOWN", "LEFT", "RIGHT", "WAIT")
WAIT = ACTIONS.index("WAIT")
UNKNOWN = -1

Plan = tuple[tuple[str, ...], ...]
"""Per agent, its action words up to its final arrival."""


class Status(enum.IntEnum):
    """UNSOLVABLE is a proof. SOLVABLE: every wanted label is known and exact. UNDECIDED: the node budget ran out
    first; labels found before that are filled in and exact, the others are unknown."""

    UNSOLVABLE = 0
    SOLVABLE = 1
    UNDECIDED = 2


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one instance; None where unknown, not wanted or, on an unsolvable board, undefined."""

    status: Status
    makespan: int | None
    sum_of_costs: int | None
    wait_makespan: bool | None
    wait_sum_of_costs: bool | None
    plan_makespan: Plan | None
    plan_sum_of_costs: Plan | None
    expansions: int


@dataclass(frozen=True, slots=True)
class BatchLabels:
    """Labels of B instances with k agents; every array is contiguous and -1 stands for unknown.

    status uint8 [B] · makespan, sum_of_costs int16 [B] · wait_makespan, wait_sum_of_costs int8 [B] (1 yes, 0 no)
    · plan_* uint8 [B, k, H*] action codes, padded with WAIT · plan_*_length int16 [B] steps · expansions int64 [B].
    """

    status: NDArray[np.uint8]
    makespan: NDArray[np.int16]
    sum_of_costs: NDArray[np.int16]
    wait_makespan: NDArray[np.int8]
    wait_sum_of_costs: NDArray[np.int8]
    plan_makespan: NDArray[np.uint8]
    plan_makespan_length: NDArray[np.int16]
    plan_sum_of_costs: NDArray[np.uint8]
    plan_sum_of_costs_length: NDArray[np.int16]
    expansions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, index: int) -> Labels:
        i = range(len(self))[index]
        return Labels(
            status=Status(int(self.status[i])),
            makespan=_known(int(self.makespan[i])),
            sum_of_costs=_known(int(self.sum_of_costs[i])),
            wait_makespan=_known_flag(int(self.wait_makespan[i])),
            wait_sum_of_costs=_known_flag(int(self.wait_sum_of_costs[i])),
            plan_makespan=_plan(self.plan_makespan[i], int(self.plan_makespan_length[i])),
            plan_sum_of_costs=_plan(self.plan_sum_of_costs[i], int(self.plan_sum_of_costs_length[i])),
            expansions=int(self.expansions[i]),
        )

    def __iter__(self) -> Iterator[Labels]:
        return (self[i] for i in range(len(self)))


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _known_flag(value: int) -> bool | None:
    return None if value == UNKNOWN else bool(value)


def _plan(codes: NDArray[np.uint8], length: int) -> Plan | None:
    """Words per agent; a wait after the final arrival is free, so trailing waits are not part of the plan."""
    if length == UNKNOWN:
        return None
    words = []
    for row in codes[:, :length].tolist():
        while row and row[-1] == WAIT:
            row.pop()
        words.append(tuple(ACTIONS[code] for code in row))
    return tuple(words)
