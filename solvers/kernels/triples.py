"""Exact tables for three agents alone on the board: the bound that opens the few boards on which pairs say little.

Joint state (a, b, c); row (a, b) is the set of c, moved by shifts as in the pair tables.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bits import bit_of, spread
from solvers.kernels.bounds import triple_row
from solvers.kernels.pairs import pair_row, write, write_excess
from solvers.kernels.store import clear_open, pop, push
from solvers.kernels.workspace import CANCEL, COSTS, INF, PAIRS, SIZE, WIDE, Word, Workspace


@kernel
def fill_triple_excess(ws: Workspace, i: int, j: int, k: int, limit: int) -> None:
    """ws.triple_excess of agents i < j < k: least sum of costs minus the three distances, where a plan from the start
    through here has an excess of at most `limit`; INF elsewhere.

    Needs the pair tables around each other's goals, and fill_within of the three. An agent that passes over its goal
    may stop there as well.
    """
    size = ws.frame[SIZE]
    table = ws.triple_excess[triple_row(i, j, k)]
    table[: size**3] = INF
    _clear_fronts(ws)
    total = limit + as_int(ws.dist[i, ws.start[i]]) + as_int(ws.dist[j, ws.start[j]]) + as_int(ws.dist[k, ws.start[k]])
    waiting = _collect_sources(ws, i, j, k, total)
    cost, idle = 0, 0
    while cost <= total and (idle < 4 or waiting > 0) and not ws.counter[CANCEL]:
        front, upcoming = cost % 4, (cost + 3) % 4
        while waiting > 0:
            node = pop(ws, cost)
            if node < 0:
                break
            row = as_int(ws.node_entry[node])
            _add_state(ws, front, row // size, row % size, as_int(ws.node_pack[node]))
            waiting -= 1
        found = False
        # By now each of the three has paid for every step: the one that comes from farthest counts thrice.
        radius = min((total - cost) // 3, size - 1)
        for a in range(size):
            while True:
                b, low, high = _next_row(ws, front, a, i, j, k, radius)
                if b < 0:
                    break
                found = True
                value = cost - as_int(ws.dist[i, a]) - as_int(ws.dist[j, b])
                write_excess(ws, table, (a * size + b) * size, low, high, ws.dist[k], value)
                _expand_row(ws, a, b, low, high, upcoming)
        idle = 0 if found else idle + 1
        cost += 1


@kernel
def fill_triple_steps(ws: Workspace, i: int, j: int, k: int, limit: int) -> None:
    """ws.triple_steps of agents i < j < k: fewest joint steps until all three are at their goals, where a plan from the
    start through here has at most `limit` steps; INF elsewhere. Needs fill_within of the three."""
    size = ws.frame[SIZE]
    table = ws.triple_steps[triple_row(i, j, k)]
    table[: size**3] = INF
    _clear_fronts(ws)
    _add_state(ws, 0, ws.goal[i], ws.goal[j], ws.goal[k])
    steps = 0
    found = True
    while found and steps <= limit and not ws.counter[CANCEL]:
        front, upcoming = steps % 2, (steps + 1) % 2
        radius = min(limit - steps, size - 1)
        found = False
        for a in range(size):
            while True:
                b, low, high = _next_row(ws, front, a, i, j, k, radius)
                if b < 0:
                    break
                found = True
                write(ws, table, (a * size + b) * size, low, high, min(steps, INF - 1))
                _expand_row(ws, a, b, low, high, upcoming)
        steps += 1


@kernel
def _clear_fronts(ws: Workspace) -> None:
    """Empty all frontiers, and what was seen, which is the last of them."""
    size = ws.frame[SIZE]
    for layer in range(5):
        for a in range(size):
            ws.rows[layer, a, 0], ws.rows[layer, a, 1] = np.uint64(0), np.uint64(0)
        for row in range(size * size):
            ws.fronts[layer, row, 0], ws.fronts[layer, row, 1] = np.uint64(0), np.uint64(0)


@kernel
def _add_state(ws: Workspace, layer: int, a: int, b: int, c: int) -> None:
    row = a * ws.frame[SIZE] + b
    low, high = bit_of(ws.spot[c])
    ws.fronts[layer, row, 0] |= low
    ws.fronts[layer, row, 1] |= high
    low, high = bit_of(ws.spot[b])
    ws.rows[layer, a, 0] |= low
    ws.rows[layer, a, 1] |= high


@inlined_kernel
def _next_row(ws: Workspace, layer: int, a: int, i: int, j: int, k: int, radius: int) -> tuple[int, Word, Word]:
    """Take the next row of the frontier for this cell of agent i: (cell of agent j, or -1; its new states), where
    none of the three is farther than the radius from its start."""
    size, seen = ws.frame[SIZE], ws.fronts[4]
    while True:
        half = 0 if ws.rows[layer, a, 0] != 0 else 1
        rest = ws.rows[layer, a, half]
        if rest == 0:
            return -1, np.uint64(0), np.uint64(0)
        ws.rows[layer, a, half] = rest & (rest - np.uint64(1))
        b = as_int(ws.cell[64 * half + trailing_zeros(rest)])
        row = a * size + b
        low, high = ws.fronts[layer, row, 0] & ~seen[row, 0], ws.fronts[layer, row, 1] & ~seen[row, 1]
        ws.fronts[layer, row, 0], ws.fronts[layer, row, 1] = np.uint64(0), np.uint64(0)
        if max(ws.from_start[i, a], ws.from_start[j, b]) > radius:
            continue
        low, high = low & ws.within[k, radius, 0], high & ws.within[k, radius, 1]
        if low != 0 or high != 0:
            seen[row, 0] |= low
            seen[row, 1] |= high
            return b, low, high


@kernel
def _collect_sources(ws: Workspace, i: int, j: int, k: int, total: int) -> int:
    """Put on the open list, by cost, all states in which one agent stops for good and two walk home; their number."""
    clear_open(ws)
    count = 0
    for third in range(3):
        one, two, home = (j, k, i) if third == 0 else (i, k, j) if third == 1 else (i, j, k)
        count += _collect_pair(ws, one, two, home, total, third)
    return count


@kernel
def _collect_pair(ws: Workspace, one: int, two: int, home: int, total: int, third: int) -> int:
    """The sources with agent `home`, the first, second or last of the triple, at its goal."""
    size = ws.frame[SIZE]
    table = ws.pair_excess[PAIRS * (1 + home) + pair_row(one, two)]
    goal = as_int(ws.goal[home])
    arrival = as_int(ws.from_start[home, goal])
    count = 0
    for u in range(size):
        for v in range(size):
            excess = as_int(table[u * size + v])
            cost = excess + as_int(ws.dist[one, u]) + as_int(ws.dist[two, v])
            steps = max(arrival, as_int(ws.from_start[one, u]), as_int(ws.from_start[two, v]))
            if excess == INF or cost + 3 * steps > total:
                continue
            row = goal * size + u if third == 0 else u * size + goal if third == 1 else u * size + v
            push(ws, min(cost, COSTS - 1), row, goal if third == 2 else v)
            count += 1
    return count


@inlined_kernel
def _expand_row(ws: Workspace, a: int, b: int, low: Word, high: Word, layer: int) -> None:
    """Add to a frontier all predecessors of the states (a, b, c), c in the set: moves without collision, backwards."""
    size, wide = ws.frame[SIZE], ws.frame[WIDE] != 0
    low, high = np.uint64(low), np.uint64(high)
    reach_low, reach_high = spread(ws, low, high)
    reach_low, reach_high = reach_low | low, reach_high | high
    seconds_low, seconds_high = bit_of(ws.spot[b])
    seconds_low, seconds_high = seconds_low | ws.near[b, 0], seconds_high | ws.near[b, 1]
    out, firsts, seconds = ws.fronts[layer], ws.ways[a], ws.ways[b]
    for second in range(1, 1 + seconds[0]):
        ws.gone[second, 0], ws.gone[second, 1] = _barred(ws, b, as_int(seconds[second]), low, high)
    for first in range(1, 1 + firsts[0]):
        v = as_int(firsts[first])
        ws.rows[layer, v, 0] |= seconds_low
        if wide:
            ws.rows[layer, v, 1] |= seconds_high
        gone_low, gone_high = _barred(ws, a, v, low, high)
        first_low, first_high = reach_low & ~gone_low, reach_high & ~gone_high
        for second in range(1, 1 + seconds[0]):
            u = as_int(seconds[second])
            if u == v or (v == b and u == a):
                continue
            row = v * size + u
            out[row, 0] |= first_low & ~ws.gone[second, 0]
            if wide:
                out[row, 1] |= first_high & ~ws.gone[second, 1]


@inlined_kernel
def _barred(ws: Workspace, after: int, before: int, low: Word, high: Word) -> tuple[Word, Word]:
    """Where the third agent cannot come from when another one moves from `before` to `after`: there, and from `after`
    itself when it could only have swapped."""
    gone_low, gone_high = bit_of(ws.spot[before])
    if before != after:
        near_low, near_high = np.uint64(low) & ws.near[after, 0], np.uint64(high) & ws.near[after, 1]
        if (near_low & ~gone_low) == 0 and (near_high & ~gone_high) == 0:
            here_low, here_high = bit_of(ws.spot[after])
            gone_low, gone_high = gone_low | here_low, gone_high | here_high
    return gone_low, gone_high
