"""Ground truth in this process: payloads grouped by shape, one solver call per group.

A labeller may offer ``label_boards`` besides ``label``: the same labels from and to arrays, which spares the
generator a dictionary per candidate where only one in thousands is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from environments.base import Failure, FailureKind, Labeller

STATUS = ("unsolvable", "solvable", "undecided")
UNSOLVABLE, SOLVABLE, UNDECIDED = range(3)
KNOWN = {0: False, 1: True}


@dataclass(frozen=True, slots=True)
class LabelArrays:
    """Labels of B boards: int64[B] each; ``status`` indexes STATUS, waits are 1, 0 or -1 (unknown)."""

    status: NDArray[np.int64]
    makespan: NDArray[np.int64]
    sum_of_costs: NDArray[np.int64]
    wait_makespan: NDArray[np.int64]
    wait_sum_of_costs: NDArray[np.int64]


@runtime_checkable
class ArrayLabeller(Protocol):
    """The optional fast path of a labeller."""

    def label_boards(
        self, holes: NDArray[np.bool_], starts: NDArray[np.int64], goals: NDArray[np.int64]
    ) -> LabelArrays | Failure:
        """Labels of boards of one shape: ``holes`` bool[B, n, n], ``starts`` and ``goals`` int64[B, k]."""
        ...


class LabelFailure(RuntimeError):
    """The labeller gave up on a board. Generation stops: skipping an item would change the stream."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(
            f"no ground truth ({failure.kind}): {failure.message}. The stream resumes exactly at this item once the "
            "labeller works again."
        )
        self.failure = failure


class InProcessLabeller:
    """Labels boards with the ``solvers`` package in the calling process.

    The node budget is the solver's own (``solvers.NODE_BUDGET``), far above what boards of up to 10x10 and five agents
    take. A board that still is undecided is passed over, and its item goes on with the next candidate: a function of
    board and solver alone, never of a clock. Every labeller of a run must have the same budget.
    """

    def __init__(self, node_budget: int | None = None) -> None:
        self.node_budget = node_budget

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        """Labels in the order of the payloads; every payload has the keys n, holes, starts and goals."""
        results: list[Mapping[str, Any] | Failure] = [Failure(FailureKind.DATA, "not labelled")] * len(payloads)
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for position, payload in enumerate(payloads):
            groups[int(payload["n"]), len(payload["starts"])].append(position)
        for (n, _), positions in groups.items():
            chosen = [payloads[p] for p in positions]
            holes = np.zeros((len(chosen), n * n), dtype=np.bool_)
            for row, payload in zip(holes, chosen, strict=True):
                row[list(payload["holes"])] = True
            starts = np.array([p["starts"] for p in chosen], dtype=np.int64)
            goals = np.array([p["goals"] for p in chosen], dtype=np.int64)
            labels = self.label_boards(holes.reshape(-1, n, n), starts, goals)
            for position, record in zip(positions, label_records(labels, len(chosen)), strict=True):
                results[position] = record
        return results

    def label_boards(
        self, holes: NDArray[np.bool_], starts: NDArray[np.int64], goals: NDArray[np.int64]
    ) -> LabelArrays | Failure:
        """One solver call. Running out of memory is a typed failure; any other exception is a bug and goes up."""
        import solvers

        budget = solvers.NODE_BUDGET if self.node_budget is None else self.node_budget
        try:
            found = solvers.solve_batch(holes, starts, goals, node_budget=budget)
        except MemoryError as error:
            return Failure(FailureKind.INFRASTRUCTURE, f"out of memory while solving {len(starts)} boards: {error}")
        columns = (found.status, found.makespan, found.sum_of_costs, found.wait_makespan, found.wait_sum_of_costs)
        return LabelArrays(*(np.asarray(column, dtype=np.int64) for column in columns))


def label_records(labels: LabelArrays | Failure, count: int) -> list[Mapping[str, Any] | Failure]:
    """Arrays as one record per board."""
    if isinstance(labels, Failure):
        return [labels] * count
    return [
        {
            "status": STATUS[status],
            "makespan": makespan,
            "sum_of_costs": sum_of_costs,
            "wait_makespan": KNOWN.get(wait_makespan),
            "wait_sum_of_costs": KNOWN.get(wait_sum_of_costs),
        }
        for status, makespan, sum_of_costs, wait_makespan, wait_sum_of_costs in zip(
            labels.status.tolist(),
            labels.makespan.tolist(),
            labels.sum_of_costs.tolist(),
            labels.wait_makespan.tolist(),
            labels.wait_sum_of_costs.tolist(),
            strict=True,
        )
    ]


def label_arrays(
    labeller: Labeller, holes: NDArray[np.bool_], starts: NDArray[np.int64], goals: NDArray[np.int64]
) -> LabelArrays:
    """Labels by the fast path if the labeller has one, else one payload per board; raises LabelFailure."""
    if isinstance(labeller, ArrayLabeller):
        found = labeller.label_boards(holes, starts, goals)
        if isinstance(found, Failure):
            raise LabelFailure(found)
        return found
    n = holes.shape[1]
    records = labeller.label(
        [
            {"n": n, "holes": np.flatnonzero(board).tolist(), "starts": s, "goals": g}
            for board, s, g in zip(holes, starts.tolist(), goals.tolist(), strict=True)
        ]
    )
    out = np.full((5, len(records)), -1, dtype=np.int64)
    for column, record in enumerate(records):
        if isinstance(record, Failure):
            raise LabelFailure(record)
        out[0, column] = STATUS.index(record["status"])
        if out[0, column] == SOLVABLE:
            out[1, column], out[2, column] = record["makespan"], record["sum_of_costs"]
            for row, key in ((3, "wait_makespan"), (4, "wait_sum_of_costs")):
                out[row, column] = -1 if record[key] is None else record[key]
    return LabelArrays(*out)
