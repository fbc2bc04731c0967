"""Lower bounds of the joint search from the tables of two and three agents.

A vector of excesses has one entry per pair (`pair_row`), then one per triple (`triple_row`), then a zero.
"""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel
from solvers.kernels.pairs import pair_row
from solvers.kernels.workspace import AGENTS, INF, PAIRS, SIZE, TRIPLES, Array, Workspace

ZERO = PAIRS + TRIPLES
HOPELESS = 1 << 20


@kernel
def triple_row(p: int, q: int, r: int) -> int:
    """Entry of the triple p < q < r, for any number of agents."""
    return r * (r - 1) * (r - 2) // 6 + q * (q - 1) // 2 + p


def _pair(i: int, j: int) -> int:
    return max(i, j) * (max(i, j) - 1) // 2 + min(i, j)


def _triple(*agents: int) -> int:
    p, q, r = sorted(agents)
    return PAIRS + r * (r - 1) * (r - 2) // 6 + q * (q - 1) // 2 + p


def _pair_covers(agents: int) -> set[tuple[int, ...]]:
    """Vertices of the fractional matching polytope: edges count double, odd cycles once."""
    names = range(agents)
    rows = {tuple(_pair(*edge) for edge in combinations(three, 2)) for three in combinations(names, 3)}
    if agents < 4:
        return rows | {(_pair(*edge),) * 2 for edge in combinations(names, 2)}
    for a, b, c, d in permutations(names, 4):
        rows.add(tuple(sorted([_pair(a, b), _pair(a, b), _pair(c, d), _pair(c, d)])))
    for a, b, c, d, e in permutations(names, 5):
        rows.add(tuple(sorted([_pair(a, b), _pair(b, c), _pair(a, c), _pair(d, e), _pair(d, e)])))
        rows.add(tuple(sorted([_pair(a, b), _pair(b, c), _pair(c, d), _pair(d, e), _pair(e, a)])))
    return {row for row in rows if agents < 5 or len(row) > 3}


def _triple_covers(agents: int) -> set[tuple[int, ...]]:
    """Halves of triples and pairs of up to four agents in which every agent has weight at most one."""
    if agents == 3:
        return {(_triple(0, 1, 2),) * 2}
    rows: set[tuple[int, ...]] = set()
    if agents == 4:
        for a, b, c, d in permutations(range(agents)):
            rows.add((_triple(a, b, c),) * 2)
            rows.add(tuple(sorted([_triple(a, b, c), _triple(a, b, d), _pair(c, d)])))
    return rows


OPPOSITE = np.zeros(TRIPLES, np.int64)
"""The pair of the other two, for every triple of five agents."""
for _three in combinations(range(AGENTS), 3):
    OPPOSITE[_triple(*_three) - PAIRS] = _pair(*sorted(set(range(AGENTS)) - set(_three)))
OPPOSITE_TRIPLE = np.zeros(PAIRS, np.int64)
"""And the triple of the other three, for every pair."""
for _two in combinations(range(AGENTS), 2):
    OPPOSITE_TRIPLE[_pair(*_two)] = _triple(*sorted(set(range(AGENTS)) - set(_two)))

SHARING = np.zeros((PAIRS, 6), np.int64)
"""For every pair a, b of five agents with the others c, d, e: the triples abc, abd, abe, the pairs cd, ce, de."""
for _a, _b in combinations(range(AGENTS), 2):
    _c, _d, _e = sorted(set(range(AGENTS)) - {_a, _b})
    SHARING[_pair(_a, _b)] = [
        *(_triple(_a, _b, _c), _triple(_a, _b, _d), _triple(_a, _b, _e)),
        *(_pair(_c, _d), _pair(_c, _e), _pair(_d, _e)),
    ]
MEETING = np.zeros((AGENTS, 12), np.int64)
"""For every agent a with the others b, c, d, e: pairs bc, de, bd, ce, be, cd; then the triples of these pairs and a."""
for _a in range(AGENTS):
    _b, _c, _d, _e = sorted(set(range(AGENTS)) - {_a})
    _pairs = [(_b, _c), (_d, _e), (_b, _d), (_c, _e), (_b, _e), (_c, _d)]
    MEETING[_a] = [*(_pair(*_two) for _two in _pairs), *(_triple(_a, *_two) for _two in _pairs)]
APART = np.full((AGENTS + 1, PAIRS, 3), ZERO)
"""By number of agents and for every pair, the pairs that share no agent with it; the rest are zeros."""
for _agents in range(AGENTS + 1):
    for _two in combinations(range(_agents), 2):
        _apart = [_pair(*_other) for _other in combinations(range(_agents), 2) if not {*_two} & {*_other}]
        APART[_agents, _pair(*_two), : len(_apart)] = _apart

_ROWS = [sorted(cover(agents)) for agents in range(AGENTS + 1) for cover in (_pair_covers, _triple_covers)]
COVER_FROM = np.array([sum(map(len, _ROWS[:part])) for part in range(len(_ROWS) + 1)], np.int64)
COVER = np.array([[*row, *[ZERO] * (5 - len(row))] for rows in _ROWS for row in rows], np.int64)


@kernel
def cover(values: Array, agents: int, triples: bool, enough: int) -> int:
    """Least total excess when every pair, and with `triples` every triple, has at least its own; or any lower bound
    above `enough`."""
    best: int = 0
    if triples and agents == 4:
        total = 2
        for row in range(PAIRS, PAIRS + 4):
            total += values[row]
        best = total // 3
    elif triples and agents == 5:
        return _cover_of_five(values, enough)
    # Whole triples say at least what their pairs do, but for two pairs of four agents.
    part = 2 * agents + (1 if triples and agents != 4 else 0)
    for row in range(COVER_FROM[part], COVER_FROM[2 * agents + (2 if triples else 1)]):
        if best > enough:
            return best
        total = 1
        for term in range(5):
            total += values[COVER[row, term]]
        best = max(best, total // 2)
    return best


@kernel
def _cover_of_five(values: Array, enough: int) -> int:
    """As cover, of five agents and with triples: whole, halves and sixths of them, with agents at most once in all."""
    best: int = 0
    total = 5
    for row in range(TRIPLES):
        total += values[PAIRS + row]
        best = max(best, values[PAIRS + row] + values[OPPOSITE[row]])
    best = max(best, total // 6)
    if best > enough:
        return best
    halves: int = 0
    for row in range(PAIRS):
        # Two triples that share this pair, and the two pairs of their other agents with the fifth.
        first, second, third = values[SHARING[row, 0]], values[SHARING[row, 1]], values[SHARING[row, 2]]
        one, two, three = values[SHARING[row, 3]], values[SHARING[row, 4]], values[SHARING[row, 5]]
        halves = max(halves, first + second + two + three, first + third + one + three, second + third + one + two)
    for agent in range(AGENTS):
        # Two triples that share this agent only, and two pairs with an agent of each.
        one = values[MEETING[agent, 0]] + values[MEETING[agent, 1]]
        two = values[MEETING[agent, 2]] + values[MEETING[agent, 3]]
        three = values[MEETING[agent, 4]] + values[MEETING[agent, 5]]
        first = values[MEETING[agent, 6]] + values[MEETING[agent, 7]]
        second = values[MEETING[agent, 8]] + values[MEETING[agent, 9]]
        third = values[MEETING[agent, 10]] + values[MEETING[agent, 11]]
        halves = max(halves, first + max(two, three), second + max(one, three), third + max(one, two))
    return max(best, (halves + 1) // 2)


@kernel
def pair_excess(ws: Workspace, i: int, j: int, v: int, u: int, i_done: int, j_done: int) -> int:
    """Least excess of agents i < j on cells v, u; a done agent stays for good, so the other walks around its goal.

    An agent that is on its goal and not done must still leave and return, which takes two.
    """
    if i_done and j_done:
        return 0
    if i_done or j_done:
        walker, settled, cell = (j, i, u) if i_done else (i, j, v)
        steps = as_int(ws.avoid[walker, settled, settled, cell])
        if steps == INF:
            return HOPELESS
        if cell == ws.goal[walker]:
            return 2
        return steps - as_int(ws.dist[walker, cell])
    value = as_int(ws.pair_excess[pair_row(i, j), v * ws.frame[SIZE] + u])
    if value == INF:
        return HOPELESS
    if v == ws.goal[i] or u == ws.goal[j]:
        value = max(value, 2)
    return value


@inlined_kernel
def triple_excess(ws: Workspace, team: Array, cells: Array, done: Array, p: int, q: int, r: int) -> int:
    """Least excess of the agents at positions p < q < r of the team on these cells."""
    i, j, k = team[p], team[q], team[r]
    size = ws.frame[SIZE]
    homes = done[p] + done[q] + done[r]
    if homes == 0:
        index = (cells[p] * size + cells[q]) * size + cells[r]
        value = as_int(ws.triple_excess[triple_row(i, j, k), index])
    elif homes == 1:
        first, second, third = (q, r, i) if done[p] else (p, r, j) if done[q] else (p, q, k)
        row = PAIRS * (1 + third) + pair_row(team[first], team[second])
        value = as_int(ws.pair_excess[row, cells[first] * size + cells[second]])
    elif homes == 2:
        walker, one, two = (i, j, k) if not done[p] else (j, i, k) if not done[q] else (k, i, j)
        cell = cells[p] if not done[p] else cells[q] if not done[q] else cells[r]
        steps = as_int(ws.avoid[walker, one, two, cell])
        value = INF if steps == INF else steps - as_int(ws.dist[walker, cell])
    else:
        value = 0
    return HOPELESS if value == INF else value
