"""What the generator can meet: the yield of a cell (size, holes, agents), measured on a small fixed sample.

The sample is a constant of the product, not of the run, so every process judges a knob alike and the answer can be
cached. A cell is feasible if at least one candidate in 5 000 is a board of the wanted kind that training may use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from environments.base import Labeller, Problem, stream
from environments.mapf_frozenlake.board import reserved_for
from environments.mapf_frozenlake.candidates import Candidates, draw
from environments.mapf_frozenlake.labeller import SOLVABLE, InProcessLabeller, LabelArrays, label_arrays
from environments.mapf_frozenlake.settings import STRATUM_SIZES, MapfKnobs, MapfRow, Objective, hole_count

RAREST = 5_000
"""A kind of board that comes up less than once in this many candidates counts as infeasible."""
SAMPLE = 4 * RAREST
ENOUGH = 12
CHUNK = 4_000


class InfeasibleKnobs(ValueError):
    """The generator cannot meet these knobs; ``problems`` say where, why and what is nearest."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Cell:
    """What decides the yield of a stratum, apart from its wait ratio."""

    n: int
    holes: int
    agents: int
    objective: Objective


@dataclass(frozen=True, slots=True)
class CellYield:
    """Candidates drawn, and how many of them were usable boards without and with a necessary wait."""

    drawn: int
    without_wait: int
    with_wait: int

    def rate(self, wait: bool) -> float:
        """Share of candidates that are usable boards of this kind."""
        return self.count(wait) / self.drawn

    def count(self, wait: bool) -> int:
        """Usable boards of this kind among the candidates."""
        return self.with_wait if wait else self.without_wait

    def feasible(self, wait: bool) -> bool:
        """Whether the kind is common enough to be generated."""
        return self.rate(wait) * RAREST >= 1


def judged(labels: LabelArrays, objective: Objective) -> NDArray[np.int64]:
    """int64[B]: 0 or 1 where a labelled board is solvable without or with a necessary wait, else -1.

    A board whose labels are not all known within the node budget is -1: nothing is decided by wall-clock.
    """
    complete = (
        (labels.status == SOLVABLE)
        & (labels.makespan > 0)
        & (labels.sum_of_costs > 0)
        & (labels.wait_makespan >= 0)
        & (labels.wait_sum_of_costs >= 0)
    )
    wait = labels.wait_makespan if objective == "makespan" else labels.wait_sum_of_costs
    return np.where(complete, wait, -1)


def label_candidates(labeller: Labeller, drawn: Candidates) -> LabelArrays:
    """Labels of the usable candidates; the others are marked unsolvable without asking."""
    chosen = np.flatnonzero(drawn.usable)
    columns = np.full((5, len(drawn.usable)), -1, dtype=np.int64)
    columns[0] = 0
    if len(chosen):
        found = label_arrays(labeller, drawn.holes[chosen], drawn.starts[chosen], drawn.goals[chosen])
        for column, values in zip(
            columns,
            (found.status, found.makespan, found.sum_of_costs, found.wait_makespan, found.wait_sum_of_costs),
            strict=True,
        ):
            column[chosen] = values
    return LabelArrays(*columns)


class YieldTable:
    """Measured yields by cell, each measured once per process and objective."""

    def __init__(self, labeller: Labeller) -> None:
        self._labeller = labeller
        self._known: dict[Cell, CellYield] = {}

    def of(self, cell: Cell) -> CellYield:
        """The yield of a cell; stops early once both kinds are clearly common."""
        if cell not in self._known:
            self._known[cell] = self._measure(cell)
        return self._known[cell]

    def _measure(self, cell: Cell) -> CellYield:
        key = stream("mapf_frozenlake yield", cell.n, cell.holes, cell.agents).getrandbits(64)
        counts, drawn, size = [0, 0], 0, 125
        while drawn < SAMPLE and min(counts) < ENOUGH:
            numbers = np.arange(drawn, min(drawn + size, SAMPLE), dtype=np.uint64)
            candidates = draw(cell.n, cell.holes, cell.agents, np.full(len(numbers), key, dtype=np.uint64), numbers)
            kinds = judged(label_candidates(self._labeller, candidates), cell.objective)
            for wait in (0, 1):
                found = np.flatnonzero(kinds == wait).tolist()
                if counts[wait] < ENOUGH:
                    counts[wait] += sum(reserved_for(candidates.board(i)) is None for i in found)
                else:
                    counts[wait] += len(found)
            drawn += len(numbers)
            size = min(2 * size, CHUNK)
        return CellYield(drawn, *counts)


def row_problems(table: YieldTable, stratum: str, row: MapfRow, agents: int, objective: Objective) -> list[Problem]:
    """Knobs of one row that the generator cannot meet (the first such knob only), whatever its share."""

    def measured(hole_ratio: int) -> CellYield:
        n = STRATUM_SIZES[stratum]
        return table.of(Cell(n, hole_count(n, hole_ratio), agents, objective))

    kinds = [wait for wait, wanted in ((False, row.wait_ratio < 100), (True, row.wait_ratio > 0)) if wanted]
    here = measured(row.hole_ratio)
    missing = [wait for wait in kinds if not here.feasible(wait)]
    if not missing:
        return []
    if here.feasible(not missing[0]):
        kind = "with" if missing[0] else "without"
        reason = f"under 1 in {RAREST} boards with {row.hole_ratio} % holes is one {kind} a necessary wait"
        reason += f", measured {here.count(missing[0])} of {here.drawn}"
        return [Problem(stratum, "wait_ratio", row.wait_ratio, reason, 0 if missing[0] else 100)]
    grid = {spec.name: spec.grid for spec in type(row).specs()}["hole_ratio"]
    others = sorted(grid, key=lambda ratio: (abs(ratio - row.hole_ratio), ratio))
    good = (ratio for ratio in others if any(measured(ratio).feasible(wait) for wait in (False, True)))
    reason = f"under 1 in {RAREST} candidates is a solvable board for {agents} agents"
    reason += f", measured {here.without_wait + here.with_wait} of {here.drawn}"
    return [Problem(stratum, "hole_ratio", row.hole_ratio, reason, next(good, None))]


def problems(
    table: YieldTable, knobs: MapfKnobs, agents: int, objective: Objective, *, idle_rows: bool = False
) -> list[Problem]:
    """Every knob that cannot be met, in table order; rows without a share count only with ``idle_rows``."""
    return [
        problem
        for stratum, row in knobs.strata.items()
        if row.share or idle_rows
        for problem in row_problems(table, stratum, row, agents, objective)
    ]


@lru_cache(maxsize=1)
def in_process_table() -> YieldTable:
    """The table shared by every environment of this process that labels in process."""
    return YieldTable(InProcessLabeller())
