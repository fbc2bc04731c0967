"""Exact tables for two agents alone on the board, filled backwards from both goals, one bit set per row.

Joint state (a, b); row a is the set of b. They are the lower bounds of the joint searches, and a start that its table
does not reach proves the instance unsolvable.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bits import bit_of, spread
from solvers.kernels.workspace import INF, PAIRS, SIZE, WIDE, Array, Word, Workspace


@kernel
def pair_row(i: int, j: int) -> int:
    """Table row of the pair i < j, for any number of agents."""
    return j * (j - 1) // 2 + i


@inlined_kernel
def _expand_row(ws: Workspace, a: int, low: Word, high: Word, out: Array) -> None:
    """Add to `out` all predecessors of the states (a, b), b in the set `low`, `high`.

    The predecessor (a', a) of (a, b) is legal only when b != a': otherwise the two would swap.
    """
    low, high = np.uint64(low), np.uint64(high)
    reach_low, reach_high = spread(ws, low, high)
    reach_low, reach_high = reach_low | low, reach_high | high
    here_low, here_high = bit_of(ws.spot[a])
    touching_low, touching_high = low & ws.near[a, 0], high & ws.near[a, 1]
    wide = ws.frame[WIDE] != 0
    out[a, 0] |= reach_low & ~here_low
    if wide:
        out[a, 1] |= reach_high & ~here_high
    for way in range(2, 1 + ws.ways[a, 0]):
        previous = as_int(ws.ways[a, way])
        bit_low, bit_high = bit_of(ws.spot[previous])
        gone_low, gone_high = bit_low, bit_high
        if (touching_low & ~bit_low) == 0 and (touching_high & ~bit_high) == 0:
            gone_low, gone_high = gone_low | here_low, gone_high | here_high
        out[previous, 0] |= reach_low & ~gone_low
        if wide:
            out[previous, 1] |= reach_high & ~gone_high


@kernel
def _clear(rows: Array, size: int) -> None:
    for v in range(size):
        rows[v, 0] = np.uint64(0)
        rows[v, 1] = np.uint64(0)


@kernel
def _insert(ws: Workspace, rows: Array, a: int, b: int) -> None:
    low, high = bit_of(ws.spot[b])
    rows[a, 0] |= low
    rows[a, 1] |= high


@kernel
def fill_pair_steps(ws: Workspace, i: int, j: int, limit: int) -> None:
    """ws.pair_steps of agents i < j: fewest joint steps until both are at their goals, where a plan from the start
    through here has at most `limit` steps; INF elsewhere. Needs fill_within of both."""
    size = ws.frame[SIZE]
    table = ws.pair_steps[pair_row(i, j)]
    table[: size * size] = INF
    front, upcoming, seen = ws.layers[0], ws.layers[1], ws.layers[3]
    _clear(front, size)
    _clear(upcoming, size)
    _clear(seen, size)
    _insert(ws, front, ws.goal[i], ws.goal[j])
    layer = 0
    alive = True
    while alive and layer <= limit:
        alive = False
        radius = min(limit - layer, size - 1)
        for a in range(size):
            low, high = front[a, 0] & ~seen[a, 0], front[a, 1] & ~seen[a, 1]
            front[a, 0], front[a, 1] = np.uint64(0), np.uint64(0)
            low, high = low & ws.within[j, radius, 0], high & ws.within[j, radius, 1]
            if (low == 0 and high == 0) or ws.from_start[i, a] > radius:
                continue
            alive = True
            seen[a, 0] |= low
            seen[a, 1] |= high
            write(ws, table, a * size, low, high, min(layer, INF - 1))
            _expand_row(ws, a, low, high, upcoming)
        front, upcoming = upcoming, front
        layer += 1


@kernel
def write(ws: Workspace, table: Array, base: int, low: Word, high: Word, value: int) -> None:
    """One value for all cells of a set in a row of a table."""
    rest = np.uint64(low)
    while rest != 0:
        table[base + ws.cell[trailing_zeros(rest)]] = value
        rest &= rest - np.uint64(1)
    rest = np.uint64(high)
    while rest != 0:
        table[base + ws.cell[64 + trailing_zeros(rest)]] = value
        rest &= rest - np.uint64(1)


@kernel
def fill_pair_excess(ws: Workspace, i: int, j: int, third: int) -> None:
    """ws.pair_excess of agents i < j: least sum of costs minus both distances; around the goal of `third` if >= 0.

    An agent on its goal may stop there for good at no cost, also one that is merely passing: still a lower bound.
    """
    size = ws.frame[SIZE]
    table = ws.pair_excess[PAIRS * (1 + third) + pair_row(i, j)]
    table[: size * size] = INF
    seen = ws.layers[3]
    for layer in range(4):
        _clear(ws.layers[layer], size)
    if third >= 0:
        for v in range(size):
            seen[v, 0], seen[v, 1] = bit_of(ws.spot[ws.goal[third]])
        seen[ws.goal[third], 0], seen[ws.goal[third], 1] = ~np.uint64(0), ~np.uint64(0)
    cost = 0
    idle = 0
    while idle < 3:
        front, upcoming = ws.layers[cost % 3], ws.layers[(cost + 2) % 3]
        waiting = _add_sources(ws, i, j, third, cost, front)
        found = False
        for a in range(size):
            low, high = front[a, 0] & ~seen[a, 0], front[a, 1] & ~seen[a, 1]
            front[a, 0], front[a, 1] = np.uint64(0), np.uint64(0)
            if low == 0 and high == 0:
                continue
            found = True
            seen[a, 0] |= low
            seen[a, 1] |= high
            write_excess(ws, table, a * size, low, high, ws.dist[j], cost - as_int(ws.dist[i, a]))
            _expand_row(ws, a, low, high, upcoming)
        idle = 0 if found or waiting else idle + 1
        cost += 1


@kernel
def write_excess(ws: Workspace, table: Array, base: int, low: Word, high: Word, dist: Array, value: int) -> None:
    """Write the excess of a set of cells of the last agent, whose distance is taken from `value`."""
    rest = np.uint64(low)
    while rest != 0:
        b = ws.cell[trailing_zeros(rest)]
        table[base + b] = min(value - as_int(dist[b]), INF - 1)
        rest &= rest - np.uint64(1)
    rest = np.uint64(high)
    while rest != 0:
        b = ws.cell[64 + trailing_zeros(rest)]
        table[base + b] = min(value - as_int(dist[b]), INF - 1)
        rest &= rest - np.uint64(1)


@kernel
def _add_sources(ws: Workspace, i: int, j: int, third: int, cost: int, front: Array) -> bool:
    """States in which one agent stops for good and the other walks home alone, at this cost; are there dearer ones?"""
    waiting = False
    first, second = ws.avoid[i, j, third if third >= 0 else j], ws.avoid[j, i, third if third >= 0 else i]
    for v in range(ws.frame[SIZE]):
        alone = second[v]
        if alone == cost:
            _insert(ws, front, ws.goal[i], v)
        waiting |= cost < alone < INF
        alone = first[v]
        if alone == cost:
            _insert(ws, front, v, ws.goal[j])
        waiting |= cost < alone < INF
    return waiting
