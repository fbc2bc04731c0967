"""Exact tables for two agents alone on the board, filled backwards from both goals, one bit set per row.

Joint state (a, b); row a is the set of b. They are the lower bounds of the joint search, and a start that its table
does not reach proves the instance unsolvable.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel, trailing_zeros
from solvers.kernels.workspace import INF, Array, Workspace


@kernel
def pair_row(i: int, j: int) -> int:
    """Table row of the pair i < j, for any number of agents."""
    return j * (j - 1) // 2 + i


@kernel
def _expand_row(ws: Workspace, a: int, low: int, high: int, out: Array) -> None:
    """Add to `out` all predecessors of the states (a, b), b in the set `low`, `high`.

    The predecessor (a', a) of (a, b) is legal only when b != a': otherwise the two would swap.
    """
    one = np.uint64(1)
    reach_low, reach_high = np.uint64(low), np.uint64(high)
    rest = np.uint64(low)
    while rest != 0:
        b = trailing_zeros(rest)
        rest &= rest - one
        reach_low |= ws.masks[b, 0]
        reach_high |= ws.masks[b, 1]
    rest = np.uint64(high)
    while rest != 0:
        b = trailing_zeros(rest) + 64
        rest &= rest - one
        reach_low |= ws.masks[b, 0]
        reach_high |= ws.masks[b, 1]
    touching_low = np.uint64(low) & ws.masks[a, 0]
    touching_high = np.uint64(high) & ws.masks[a, 1]
    for action in range(5):
        previous = a if action == 4 else ws.neighbours[a, action]
        if previous < 0:
            continue
        bit_low = one << np.uint64(previous) if previous < 64 else np.uint64(0)
        bit_high = one << np.uint64(previous - 64) if previous >= 64 else np.uint64(0)
        new_low = reach_low & ~bit_low
        new_high = reach_high & ~bit_high
        if previous != a and (touching_low & ~bit_low) == 0 and (touching_high & ~bit_high) == 0:
            if a < 64:
                new_low &= ~(one << np.uint64(a))
            else:
                new_high &= ~(one << np.uint64(a - 64))
        out[previous, 0] |= new_low
        out[previous, 1] |= new_high


@kernel
def _clear(rows: Array, size: int) -> None:
    for v in range(size):
        rows[v, 0] = np.uint64(0)
        rows[v, 1] = np.uint64(0)


@kernel
def _insert(rows: Array, a: int, b: int) -> None:
    rows[a, b >> 6] |= np.uint64(1) << np.uint64(b & 63)


@kernel
def fill_pair_steps(ws: Workspace, size: int, i: int, j: int) -> None:
    """ws.pair_steps of agents i < j: fewest joint steps until both are at their goals."""
    table = ws.pair_steps[pair_row(i, j)]
    table[: size * size] = INF
    front, upcoming, seen = ws.layers[0], ws.layers[1], ws.layers[3]
    _clear(front, size)
    _clear(upcoming, size)
    _clear(seen, size)
    _insert(front, ws.goal[i], ws.goal[j])
    layer = 0
    alive = True
    while alive:
        alive = False
        for a in range(size):
            for half in range(2):
                fresh = front[a, half] & ~seen[a, half]
                front[a, half] = fresh
                seen[a, half] |= fresh
                while fresh != 0:
                    table[a * size + 64 * half + trailing_zeros(fresh)] = min(layer, INF - 1)
                    fresh &= fresh - np.uint64(1)
        for a in range(size):
            if front[a, 0] != 0 or front[a, 1] != 0:
                alive = True
                _expand_row(ws, a, front[a, 0], front[a, 1], upcoming)
        _clear(front, size)
        front, upcoming = upcoming, front
        layer += 1


@kernel
def fill_pair_excess(ws: Workspace, size: int, i: int, j: int) -> None:
    """ws.pair_excess of agents i < j: least sum of costs minus both distances.

    An agent on its goal may stop there for good at no cost, also one that is merely passing: still a lower bound.
    """
    table = ws.pair_excess[pair_row(i, j)]
    table[: size * size] = INF
    seen = ws.layers[3]
    for layer in range(4):
        _clear(ws.layers[layer], size)
    cost = 0
    idle = 0
    while idle < 3:
        front, upcoming = ws.layers[cost % 3], ws.layers[(cost + 2) % 3]
        waiting = _add_sources(ws, size, i, j, cost, front)
        found = False
        for a in range(size):
            for half in range(2):
                fresh = front[a, half] & ~seen[a, half]
                front[a, half] = fresh
                seen[a, half] |= fresh
                while fresh != 0:
                    b = 64 * half + trailing_zeros(fresh)
                    fresh &= fresh - np.uint64(1)
                    table[a * size + b] = min(cost - as_int(ws.dist[i, a]) - as_int(ws.dist[j, b]), INF - 1)
        for a in range(size):
            if front[a, 0] != 0 or front[a, 1] != 0:
                found = True
                _expand_row(ws, a, front[a, 0], front[a, 1], upcoming)
        _clear(front, size)
        idle = 0 if found or waiting else idle + 1
        cost += 1


@kernel
def _add_sources(ws: Workspace, size: int, i: int, j: int, cost: int, front: Array) -> bool:
    """States in which one agent stops for good and the other walks home alone, at this cost; are there dearer ones?"""
    waiting = False
    for v in range(size):
        alone = ws.avoid[j, i, v]
        if alone == cost:
            _insert(front, ws.goal[i], v)
        waiting |= cost < alone < INF
        alone = ws.avoid[i, j, v]
        if alone == cost:
            _insert(front, v, ws.goal[j])
        waiting |= cost < alone < INF
    return waiting
