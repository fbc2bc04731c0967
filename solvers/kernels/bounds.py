"""Lower bounds of the joint search from the pair tables."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from solvers.compiling import as_int, kernel
from solvers.kernels.pairs import pair_row
from solvers.kernels.workspace import AGENTS, INF, Array, Workspace


def _pair(i: int, j: int) -> int:
    return max(i, j) * (max(i, j) - 1) // 2 + min(i, j)


def _cover_rows(agents: int) -> list[list[int]]:
    """Vertices of the fractional matching polytope: edges count double, odd cycles once; index 10 is a zero."""
    edges = [[_pair(*edge)] * 2 for edge in combinations(range(agents), 2)]
    triangles = [[_pair(a, b), _pair(b, c), _pair(a, c)] for a, b, c in combinations(range(agents), 3)]
    rows: list[list[int]] = []
    if agents < 4:
        rows = edges + triangles
    elif agents == 4:
        rows = [_pair_double(0, a) + _pair_double(*sorted({1, 2, 3} - {a})) for a in (1, 2, 3)]
        rows += triangles
    else:
        for lone in range(5):
            a, *others = [v for v in range(5) if v != lone]
            for b in others:
                rows.append(_pair_double(a, b) + _pair_double(*[v for v in others if v != b]))
        for a, b, c in combinations(range(5), 3):
            others = sorted({0, 1, 2, 3, 4} - {a, b, c})
            rows.append([_pair(a, b), _pair(b, c), _pair(a, c), *_pair_double(*others)])
        for cycle in ((1, 2, 3, 4), (1, 2, 4, 3), (1, 3, 2, 4), (1, 3, 4, 2), (1, 4, 2, 3), (1, 4, 3, 2),
                      (2, 1, 3, 4), (2, 1, 4, 3), (2, 3, 1, 4), (2, 4, 1, 3), (3, 1, 2, 4), (3, 2, 1, 4)):  # fmt: skip
            ring = (0, *cycle)
            rows.append([_pair(ring[p], ring[(p + 1) % 5]) for p in range(5)])
    return [[*row, *[10] * (5 - len(row))] for row in rows]


def _pair_double(i: int, j: int) -> list[int]:
    return [_pair(i, j)] * 2


_ROWS = [_cover_rows(agents) for agents in range(AGENTS + 1)]
COVER_FROM = np.array([sum(map(len, _ROWS[:agents])) for agents in range(AGENTS + 2)], np.int64)
COVER = np.array([row for rows in _ROWS for row in rows], np.int64)


@kernel
def cover(excess: Array, agents: int) -> int:
    """Least total excess when each pair of agents (rows as in pair_row, excess[10] = 0) has at least its own."""
    best: int = 0
    for row in range(COVER_FROM[agents], COVER_FROM[agents + 1]):
        doubled = 0
        for term in range(5):
            doubled += excess[COVER[row, term]]
        best = max(best, doubled)
    return (best + 1) // 2


@kernel
def set_pairs(ws: Workspace, size: int, order: Array, agents: int) -> None:
    """Where the table entry of two positions of the order is: row, stride of the first, stride of the second."""
    for q in range(agents):
        for r in range(agents):
            i, j = order[q], order[r]
            if i != j:
                ws.pair_of[0, q, r] = pair_row(min(i, j), max(i, j))
                ws.pair_of[1, q, r] = size if i < j else 1
                ws.pair_of[2, q, r] = 1 if i < j else size


@kernel
def pair_bound(
    ws: Workspace, order: Array, q: int, r: int, v: int, u: int, q_done: int, r_done: int, locking: bool, cost: bool
) -> int:
    """Bound for the agents at positions q, r on cells v, u: excess if `cost`, else steps; INF if hopeless.

    A done agent stays for good, so the other one walks around its goal; with `locking`, an agent that is on its goal
    and not done must still leave and return, which takes two.
    """
    i, j = order[q], order[r]
    if q_done and r_done:
        return 0
    if q_done or r_done:
        walker, settled, cell = (j, i, u) if q_done else (i, j, v)
        steps = as_int(ws.avoid[walker, settled, cell])
        if steps == INF:
            return INF
        if cell == ws.goal[walker]:
            return 2
        return steps - as_int(ws.dist[walker, cell]) if cost else steps
    index = v * ws.pair_of[1, q, r] + u * ws.pair_of[2, q, r]
    table = ws.pair_excess if cost else ws.pair_steps
    value = as_int(table[ws.pair_of[0, q, r], index])
    if locking and (v == ws.goal[i] or u == ws.goal[j]):
        value = max(value, 2)
    return value
