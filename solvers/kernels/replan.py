"""The low level of conflict-based search: one agent's shortest paths under constraints, as a bit set per time."""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bits import bit_of, holds, spread
from solvers.kernels.workspace import MOMENTS, Array, Word, Workspace

# kinds of a constraint; a conflict has one of the first three
VERTEX, MOVE, TARGET, LATER, ROOT = range(5)
"""VERTEX: not on the cell at the time. MOVE: not from cell to next cell, arriving at the time. TARGET: the agent has
arrived by the time, so all others stay off its goal from then on. LATER: the agent arrives after the time."""
KIND, AGENT, CELL, NEXT_CELL, TIME, PARENT = range(6)


@kernel
def replan(ws: Workspace, node: int, agent: int, team: Array, agents: int, waits: bool) -> bool:
    """Write the agent's walk, length and narrow times into the node; False when no path fits (or the horizon)."""
    least, most, moves, last = _gather_constraints(ws, node, agent)
    length = _reach_goal(ws, agent, least, most, moves, last, waits)
    if length < 0:
        return False
    ws.length[node, agent] = length
    ws.narrow[node, agent] = _prune(ws, agent, length, moves, waits)
    _read_walk(ws, node, agent, length, moves, team, agents, waits)
    return True


@kernel
def _gather_constraints(ws: Workspace, node: int, agent: int) -> tuple[int, int, int, int]:
    """Fill barred spots and moves; (least length, most length, number of barred moves, time of the last change)."""
    for t in range(MOMENTS):
        ws.barred[t, 0] = np.uint64(0)
        ws.barred[t, 1] = np.uint64(0)
    least, most, moves, last = 0, MOMENTS - 1, 0, 0
    while node > 0:
        kind, time, cell = ws.split[node, KIND], ws.split[node, TIME], ws.split[node, CELL]
        if ws.split[node, AGENT] == agent:
            if kind == VERTEX:
                low, high = bit_of(ws.spot[cell])
                ws.barred[time, 0] |= low
                ws.barred[time, 1] |= high
                last = max(last, time)
                if cell == ws.goal[agent]:
                    least = max(least, time + 1)
            elif kind == MOVE:
                ws.barred_moves[moves, 0] = cell
                ws.barred_moves[moves, 1] = ws.split[node, NEXT_CELL]
                ws.barred_moves[moves, 2] = time
                last = max(last, time)
                moves += 1
            elif kind == LATER:
                least = max(least, time + 1)
            elif kind == TARGET:
                most = min(most, time)
        elif kind == TARGET:
            low, high = bit_of(ws.spot[cell])
            for t in range(time, MOMENTS):
                ws.barred[t, 0] |= low
                ws.barred[t, 1] |= high
            last = max(last, time)
        node = ws.split[node, PARENT]
    return least, most, moves, last


@kernel
def _move_allowed(ws: Workspace, moves: int, cell: int, after: int, time: int) -> bool:
    for m in range(moves):
        if ws.barred_moves[m, 2] == time and ws.barred_moves[m, 0] == cell and ws.barred_moves[m, 1] == after:
            return False
    return True


@kernel
def _reach_goal(ws: Workspace, agent: int, least: int, most: int, moves: int, last: int, waits: bool) -> int:
    """Fill ws.reach forwards until the goal can be entered for good; the length, -1 if never."""
    ws.reach[0, 0], ws.reach[0, 1] = bit_of(ws.spot[ws.start[agent]])
    goal = ws.spot[ws.goal[agent]]
    for t in range(most + 1):
        if t >= least and holds(ws.reach[t, 0], ws.reach[t, 1], goal):
            return t
        if t == most:
            break
        low, high = ws.reach[t, 0], ws.reach[t, 1]
        out_low, out_high = np.uint64(0), np.uint64(0)
        for m in range(moves):
            if ws.barred_moves[m, 2] == t + 1:
                v = ws.barred_moves[m, 0]
                if holds(low, high, ws.spot[v]):
                    bit_low, bit_high = bit_of(ws.spot[v])
                    low, high = low & ~bit_low, high & ~bit_high
                    bit_low, bit_high = _leave_one_by_one(ws, v, t + 1, moves)
                    out_low, out_high = out_low | bit_low, out_high | bit_high
        bit_low, bit_high = spread(ws, low, high)
        out_low, out_high = out_low | bit_low, out_high | bit_high
        if waits:
            out_low, out_high = out_low | ws.reach[t, 0], out_high | ws.reach[t, 1]
        out_low, out_high = out_low & ~ws.barred[t + 1, 0], out_high & ~ws.barred[t + 1, 1]
        ws.reach[t + 1, 0], ws.reach[t + 1, 1] = out_low, out_high
        if waits and t > last and t >= least and out_low == ws.reach[t, 0] and out_high == ws.reach[t, 1]:
            break
    return -1


@inlined_kernel
def _leave_one_by_one(ws: Workspace, v: int, time: int, moves: int) -> tuple[Word, Word]:
    """Where a cell with barred moves leads, arriving at this time."""
    low, high = np.uint64(0), np.uint64(0)
    for action in range(4):
        u = ws.neighbours[v, action]
        if u >= 0 and _move_allowed(ws, moves, v, u, time):
            bit_low, bit_high = bit_of(ws.spot[u])
            low, high = low | bit_low, high | bit_high
    return low, high


@kernel
def _prune(ws: Workspace, agent: int, length: int, moves: int, waits: bool) -> np.uint64:
    """Keep in ws.reach only spots on paths of this length; the bit set of times with a single spot."""
    one = np.uint64(1)
    ws.reach[length, 0], ws.reach[length, 1] = bit_of(ws.spot[ws.goal[agent]])
    narrow = one << np.uint64(length)
    for t in range(length - 1, -1, -1):
        low, high = spread(ws, ws.reach[t + 1, 0], ws.reach[t + 1, 1])
        for m in range(moves):
            if ws.barred_moves[m, 2] == t + 1:
                v = ws.barred_moves[m, 0]
                next_low, next_high = _leave_one_by_one(ws, v, t + 1, moves)
                if (next_low & ws.reach[t + 1, 0]) == 0 and (next_high & ws.reach[t + 1, 1]) == 0:
                    bit_low, bit_high = bit_of(ws.spot[v])
                    low, high = low & ~bit_low, high & ~bit_high
        if waits:
            low, high = low | ws.reach[t + 1, 0], high | ws.reach[t + 1, 1]
        low, high = low & ws.reach[t, 0], high & ws.reach[t, 1]
        ws.reach[t, 0], ws.reach[t, 1] = low, high
        if (low == 0 and (high & (high - one)) == 0) or (high == 0 and (low & (low - one)) == 0):
            narrow |= one << np.uint64(t)
    return narrow


@kernel
def _read_walk(
    ws: Workspace, node: int, agent: int, length: int, moves: int, team: Array, agents: int, waits: bool
) -> None:
    """Choose one of the shortest paths, at each step the cell that touches the fewest other walks; then stay."""
    v: int = as_int(ws.start[agent])
    ws.walk[node, agent, 0] = v
    for t in range(1, length + 1):
        if (ws.narrow[node, agent] >> np.uint64(t)) & np.uint64(1) != 0:
            low, high = ws.reach[t, 0], ws.reach[t, 1]
            v = as_int(ws.cell[trailing_zeros(low) if low != 0 else 64 + trailing_zeros(high)])
            ws.walk[node, agent, t] = v
            continue
        best, fewest = -1, -1
        for action in range(5 if waits else 4):
            u = v if action == 4 else as_int(ws.neighbours[v, action])
            if u < 0 or not holds(ws.reach[t, 0], ws.reach[t, 1], ws.spot[u]):
                continue
            if action < 4 and not _move_allowed(ws, moves, v, u, t):
                continue
            if best < 0:
                best = u
                continue
            # Most steps have one cell only, so the others are looked at once there is a second.
            if fewest < 0:
                fewest = _count_touched(ws, node, agent, team, agents, t, v, best)
            if fewest == 0:
                break
            touched = _count_touched(ws, node, agent, team, agents, t, v, u)
            if touched < fewest:
                best, fewest = u, touched
        v = best
        ws.walk[node, agent, t] = v
    for t in range(length + 1, MOMENTS):
        ws.walk[node, agent, t] = v


@inlined_kernel
def _count_touched(ws: Workspace, node: int, agent: int, team: Array, agents: int, t: int, v: int, u: int) -> int:
    """How many walks of the others a move from v to u, arriving at the time t, would hit."""
    touched = 0
    for q in range(agents):
        j = team[q]
        if j == agent or ws.length[node, j] < 0:
            continue
        if ws.walk[node, j, t] == u or (ws.walk[node, j, t] == v and ws.walk[node, j, t - 1] == u):
            touched += 1
    return touched
