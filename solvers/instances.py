"""Checks a batch of instances at the door, so that no kernel ever sees a malformed one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_SIZE, MAX_SIZE = 3, 10
MIN_AGENTS, MAX_AGENTS = 1, 5

Batch = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


def check_batch(holes: ArrayLike, starts: ArrayLike, goals: ArrayLike) -> Batch:
    """Contiguous holes uint8 [B, n, n], starts and goals int64 [B, k]; ValueError names what is wrong and where.

    Writable as well: to numba a read-only array, as Ray hands out, is another type and another compilation.
    """
    grid = _check_holes(np.asarray(holes))
    batch, size = len(grid), grid.shape[1]
    start_cells = _check_cells("starts", np.asarray(starts), batch, size)
    goal_cells = _check_cells("goals", np.asarray(goals), batch, size)
    if start_cells.shape != goal_cells.shape:
        raise ValueError(
            f"goals: has {goal_cells.shape[1]} agents, starts has {start_cells.shape[1]}; one goal per start is allowed"
        )
    for field, cells in (("starts", start_cells), ("goals", goal_cells)):
        _check_free(field, cells, grid)
        _check_distinct(field, cells)
    return grid, start_cells, goal_cells


def _check_holes(holes: NDArray[Any]) -> NDArray[np.uint8]:
    if holes.ndim != 3 or holes.shape[1] != holes.shape[2]:
        raise ValueError(f"holes: shape {holes.shape} is not allowed; it must be [B, n, n]")
    if not MIN_SIZE <= holes.shape[1] <= MAX_SIZE:
        raise ValueError(f"holes: board size {holes.shape[1]} is not allowed; n must be {MIN_SIZE}..{MAX_SIZE}")
    if holes.dtype.kind not in "bui":
        raise ValueError(f"holes: dtype {holes.dtype} is not allowed; it must be bool or an integer type")
    wrong = np.argwhere((holes != 0) & (holes != 1))
    if len(wrong):
        value = holes[tuple(wrong[0])]
        raise ValueError(f"holes: value {value} in instance {wrong[0][0]} is not allowed; only 0 and 1 are")
    return np.require(holes, np.uint8, ("C", "A", "W"))


def _check_cells(field: str, cells: NDArray[Any], batch: int, size: int) -> NDArray[np.int64]:
    if cells.ndim != 2 or len(cells) != batch:
        raise ValueError(f"{field}: shape {cells.shape} is not allowed; it must be [{batch}, k]")
    if not MIN_AGENTS <= cells.shape[1] <= MAX_AGENTS:
        raise ValueError(f"{field}: {cells.shape[1]} agents are not allowed; k must be {MIN_AGENTS}..{MAX_AGENTS}")
    if cells.dtype.kind not in "ui":
        raise ValueError(f"{field}: dtype {cells.dtype} is not allowed; it must be an integer type")
    wrong = np.argwhere((cells < 0) | (cells >= size * size))
    if len(wrong):
        row, agent = wrong[0]
        raise ValueError(
            f"{field}: cell {cells[row, agent]} of agent {agent} in instance {row} is not allowed; "
            f"cells of a {size}x{size} board are 0..{size * size - 1}"
        )
    return np.require(cells, np.int64, ("C", "A", "W"))


def _check_free(field: str, cells: NDArray[np.int64], holes: NDArray[np.uint8]) -> None:
    inside = np.take_along_axis(holes.reshape(len(holes), holes.shape[1] ** 2), cells, axis=1)
    wrong = np.argwhere(inside)
    if len(wrong):
        row, agent = wrong[0]
        raise ValueError(
            f"{field}: cell {cells[row, agent]} of agent {agent} in instance {row} is a hole; "
            "only free cells are allowed"
        )


def _check_distinct(field: str, cells: NDArray[np.int64]) -> None:
    ordered = np.sort(cells, axis=1)
    wrong = np.argwhere(ordered[:, 1:] == ordered[:, :-1])
    if len(wrong):
        row, position = wrong[0]
        raise ValueError(
            f"{field}: cell {ordered[row, position]} occurs twice in instance {row}; "
            f"the agents' {field} must be distinct"
        )
