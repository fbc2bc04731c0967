"""Certifies a plan by simulating it. Pure Python and independent of the search: it has its own move table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1), "WAIT": (0, 0)}

Violation = tuple[str, int, tuple[int, ...], int]
"""(kind, step counted from 1, agents involved, cell)."""


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """makespan and sum_of_costs are those of the plan, counted to final arrivals; None where it is not valid."""

    valid: bool
    makespan: int | None
    sum_of_costs: int | None
    violation: Violation | None


def validate_plan(holes: Any, starts: Sequence[int], goals: Sequence[int], plan: Sequence[Sequence[str]]) -> PlanCheck:
    """Check `plan` on one board; holes is n rows of n truth values, cells are row-major.

    A plan that ended leaves its agent where it is. ValueError when `plan` has another agent count or an unknown word.
    """
    rows = [[bool(value) for value in row] for row in holes]
    goal_cells = [int(cell) for cell in goals]
    cells = [int(cell) for cell in starts]
    if len(plan) != len(cells):
        raise ValueError(f"plan: has {len(plan)} agents; {len(cells)} are allowed, one per start")
    arrivals = [0] * len(cells)
    for step in range(1, max((len(words) for words in plan), default=0) + 1):
        moved = [_target(cell, words, step, len(rows)) for cell, words in zip(cells, plan, strict=True)]
        violation = _violation(rows, cells, moved, step)
        if violation is not None:
            return PlanCheck(False, None, None, violation)
        after = [row * len(rows) + column for row, column in moved]
        for agent, (before, now) in enumerate(zip(cells, after, strict=True)):
            if now != goal_cells[agent] or before != now:
                arrivals[agent] = step
        cells = after
    for agent, cell in enumerate(cells):
        if cell != goal_cells[agent]:
            last = max((len(words) for words in plan), default=0)
            return PlanCheck(False, None, None, ("goal_not_reached", last, (agent,), cell))
    return PlanCheck(True, max(arrivals, default=0), sum(arrivals), None)


def _target(cell: int, words: Sequence[str], step: int, size: int) -> tuple[int, int]:
    word = words[step - 1] if step <= len(words) else "WAIT"
    if word not in MOVES:
        raise ValueError(f"plan: action {word!r} in step {step} is unknown; allowed are {', '.join(MOVES)}")
    return cell // size + MOVES[word][0], cell % size + MOVES[word][1]


def _violation(rows: list[list[bool]], cells: list[int], moved: list[tuple[int, int]], step: int) -> Violation | None:
    """The first violation of one step: by kind, then by lowest agent id."""
    size = len(rows)
    for agent, (row, column) in enumerate(moved):
        if not (0 <= row < size and 0 <= column < size):
            return ("out_of_bounds", step, (agent,), cells[agent])
    for agent, (row, column) in enumerate(moved):
        if rows[row][column]:
            return ("hole", step, (agent,), row * size + column)
    after = [row * size + column for row, column in moved]
    couples = [(i, j) for i in range(len(after)) for j in range(i + 1, len(after))]
    for i, j in couples:
        if after[i] == after[j]:
            return ("vertex_conflict", step, (i, j), after[i])
    for i, j in couples:
        if after[i] == cells[j] and after[j] == cells[i]:
            return ("edge_conflict", step, (i, j), after[i])
    return None
