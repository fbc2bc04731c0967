"""A deliberately plain joint-state search for every label: the oracle of the tests, for boards of a few free cells.

Pure Python, no bounds, no decomposition, no tables: breadth-first over joint states for the makespan, uniform cost for
the sum of costs. It shares nothing with the kernels.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
NO_LIMIT = 10**9

Cells = tuple[int, ...]
Done = tuple[bool, ...]


class ReferenceLabels(NamedTuple):
    """Every field is None when there is no plan."""

    makespan: int | None
    sum_of_costs: int | None
    wait_makespan: bool | None
    wait_sum_of_costs: bool | None


def reference_labels(holes: Sequence[Sequence[int]], starts: Sequence[int], goals: Sequence[int]) -> ReferenceLabels:
    """All labels by exhaustion; holes are n rows of truth values, cells row-major."""
    board = _Board(holes, goals)
    makespan = board.makespan(tuple(starts))
    if makespan is None:
        return ReferenceLabels(None, None, None, None)
    cost = board.sum_of_costs(tuple(starts), waits=True, limit=NO_LIMIT)
    assert cost is not None
    moving = board.moving_plan_exists(tuple(starts), makespan)
    cheap = board.sum_of_costs(tuple(starts), waits=False, limit=cost)
    return ReferenceLabels(makespan, cost, not moving, cheap is None)


class _Board:
    def __init__(self, holes: Sequence[Sequence[int]], goals: Sequence[int]) -> None:
        size = len(holes)
        self.goals = tuple(goals)
        self.near: dict[int, list[int]] = {}
        for row, column in product(range(size), repeat=2):
            if not holes[row][column]:
                around = [(row + r, column + c) for r, c in STEPS]
                self.near[row * size + column] = [
                    r * size + c for r, c in around if 0 <= r < size and 0 <= c < size and not holes[r][c]
                ]

    def joint_moves(self, cells: Cells, options: Iterable[Sequence[int]]) -> Iterator[Cells]:
        """All combinations of the agents' options without a vertex or an edge conflict."""
        agents = range(len(cells))
        for after in product(*options):
            if len(set(after)) == len(after) and not any(
                after[i] == cells[j] and after[j] == cells[i] for i in agents for j in range(i)
            ):
                yield after

    def makespan(self, starts: Cells) -> int | None:
        layer, seen, step = {starts}, {starts}, 0
        while layer:
            if self.goals in layer:
                return step
            step += 1
            options = ((cells, [[*self.near[v], v] for v in cells]) for cells in layer)
            layer = {after for cells, choice in options for after in self.joint_moves(cells, choice)} - seen
            seen |= layer
        return None

    def settle(self, cells: Cells, arrived: Sequence[bool], done: Done) -> Iterator[Done]:
        """Every way in which agents that have just arrived at their goal stop for good, or pass."""
        ways = []
        for i, cell in enumerate(cells):
            may_stop = arrived[i] and cell == self.goals[i]
            ways.append((True,) if done[i] else (False, True) if may_stop else (False,))
        return product(*ways)

    def successors(self, cells: Cells, done: Done, waits: bool) -> Iterator[tuple[Cells, Done]]:
        options = []
        for i, cell in enumerate(cells):
            options.append([cell] if done[i] else [*self.near[cell], cell] if waits else self.near[cell])
        for after in self.joint_moves(cells, options):
            moved = [a != b for a, b in zip(cells, after, strict=True)]
            for settled in self.settle(after, moved, done):
                yield after, settled

    def first_states(self, starts: Cells) -> list[tuple[Cells, Done]]:
        nobody = (False,) * len(starts)
        return [(starts, done) for done in self.settle(starts, [True] * len(starts), nobody)]

    def moving_plan_exists(self, starts: Cells, limit: int) -> bool:
        """Is there a plan of at most `limit` steps in which nobody waits before its final arrival?"""
        layer = set(self.first_states(starts))
        for _ in range(limit):
            if any(all(done) for _, done in layer):
                return True
            layer = {state for cells, done in layer for state in self.successors(cells, done, waits=False)}
        return any(all(done) for _, done in layer)

    def sum_of_costs(self, starts: Cells, waits: bool, limit: int) -> int | None:
        """Least sum of final arrivals, if at most `limit`; without `waits` every agent moves until it stops."""
        queue = [(0, cells, done) for cells, done in self.first_states(starts)]
        best = {(cells, done): 0 for _, cells, done in queue}
        heapq.heapify(queue)
        while queue:
            cost, cells, done = heapq.heappop(queue)
            if all(done):
                return cost
            dearer = cost + done.count(False)
            if cost > best[cells, done] or dearer > limit:
                continue
            for state in self.successors(cells, done, waits):
                if dearer < best.get(state, NO_LIMIT):
                    best[state] = dearer
                    heapq.heappush(queue, (dearer, *state))
        return None
