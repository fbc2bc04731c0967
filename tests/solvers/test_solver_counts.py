"""Whole families counted: every canonical instance (eight symmetries, agent renaming) of a small board."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from solvers import Status, solve_batch


def canonical_instances(size, holes):
    """One representative per class of two-agent instances with start != goal."""
    grid = np.arange(size * size).reshape(size, size)
    turns = [np.rot90(g, t).reshape(-1) for g in (grid, grid.T) for t in range(4)]
    places = [np.argsort(turned).tolist() for turned in turns]
    seen = set()
    for wall in combinations(range(size * size), holes):
        free = [cell for cell in range(size * size) if cell not in wall]
        for starts in permutations(free, 2):
            for goals in permutations(free, 2):
                if starts[0] == goals[0] or starts[1] == goals[1]:
                    continue
                trips = list(zip(starts, goals, strict=True))
                form = min((sorted(p[c] for c in wall), sorted((p[a], p[b]) for a, b in trips)) for p in places)
                name = repr(form)
                if name not in seen:
                    seen.add(name)
                    yield wall, starts, goals


def counted(size, holes):
    """(solvable, solvable only with waits at the optimal makespan)."""
    walls, starts, goals = zip(*canonical_instances(size, holes), strict=True)
    boards = np.zeros((len(walls), size * size), np.uint8)
    for row, wall in enumerate(walls):
        boards[row, list(wall)] = 1
    labels = solve_batch(boards.reshape(-1, size, size), np.array(starts), np.array(goals))
    assert not (labels.status == Status.UNDECIDED).any()
    return int((labels.status == Status.SOLVABLE).sum()), int((labels.wait_makespan == 1).sum())


@pytest.mark.parametrize(
    ("size", "holes", "solvable", "waiting"),
    [(3, 0, 272, 4), (3, 1, 1382, 48), (3, 2, 2430, 223), (3, 3, 2013, 281), (3, 4, 755, 116), (4, 0, 3237, 35)],
)
def test_the_family_has_its_known_size(size, holes, solvable, waiting):
    assert counted(size, holes) == (solvable, waiting)


@pytest.mark.slow
def test_the_hole_free_five_by_five_family_has_its_known_size():
    assert counted(5, 0) == (20932, 162)
