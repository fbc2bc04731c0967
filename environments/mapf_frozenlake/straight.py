"""A quick proof that no wait is needed, so that the search for boards that need one labels few of the others.

Each agent walks straight along its row and then its column, or the other way round. If for some choice no two agents
collide and none meets a hole, all arrive by shortest paths without waiting: no optimal plan needs a wait, whatever
the objective. The proof only ever says "no wait", so it changes which boards are labelled and not which are found.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from environments.mapf_frozenlake.candidates import Candidates

WORTH_IT = 20
"""Percent of holes up to which trying costs less than labelling what it rules out."""


def wait_free(candidates: Candidates) -> NDArray[np.bool_]:
    """bool[B]: True where straight walks prove that no wait is needed; False says nothing."""
    agents = candidates.starts.shape[1]
    paths = _paths(candidates)
    batch = np.arange(paths.shape[-1])
    blocked = candidates.holes.reshape(len(batch), -1)[batch, paths].any(axis=0)
    clash = {pair: _clash(paths, *pair) for pair in combinations(range(agents), 2)}
    proven = np.zeros(len(batch), dtype=np.bool_)
    for ways in product((0, 1), repeat=agents):
        fails = np.zeros(len(batch), dtype=np.bool_)
        for agent, way in enumerate(ways):
            fails |= blocked[agent, way]
        for (one, other), clashes in clash.items():
            fails |= clashes[ways[one], ways[other]]
        proven |= ~fails
    return proven


def _paths(candidates: Candidates) -> NDArray[np.int8]:
    """int8[T, k, 2, B]: each agent's cell at each step, row first or column first; it stays at its goal."""
    n = candidates.holes.shape[1]
    (start_row, start_column), (goal_row, goal_column) = (
        np.divmod(cells.T.astype(np.int8), n) for cells in (candidates.starts, candidates.goals)
    )
    rows, columns = goal_row - start_row, goal_column - start_column
    step = np.arange(2 * n - 1, dtype=np.int8)[:, None, None]
    out = np.empty((2 * n - 1, len(rows), 2, rows.shape[1]), dtype=np.int8)
    for way, (first, then) in enumerate(((rows, columns), (columns, rows))):
        before = np.sign(first) * np.minimum(step, np.abs(first))
        after = np.sign(then) * np.clip(step - np.abs(first), 0, np.abs(then))
        down, right = (before, after) if way == 0 else (after, before)
        out[:, :, way] = (start_row + down) * np.int8(n) + start_column + right
    return out


def _clash(paths: NDArray[np.int8], one: int, other: int) -> NDArray[np.bool_]:
    """bool[2, 2, B]: whether two agents share a cell or swap, by the way each goes."""
    mine, theirs = paths[:, one, :, None], paths[:, other, None]
    meet = (mine == theirs).any(axis=0)
    swap = ((mine[1:] == theirs[:-1]) & (mine[:-1] == theirs[1:])).any(axis=0)
    found: NDArray[np.bool_] = meet | swap
    return found
