"""The low level of conflict-based search: one agent's shortest paths under constraints, as a bit set per time."""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel, trailing_zeros
from solvers.kernels.workspace import MOMENTS, Array, Workspace

# kinds of a constraint; a conflict has one of the first three
VERTEX, MOVE, TARGET, LATER, ROOT = range(5)
"""VERTEX: not on the cell at the time. MOVE: not from cell to next cell, arriving at the time. TARGET: the agent has
arrived by the time, so all others stay off its goal from then on. LATER: the agent arrives after the time."""
KIND, AGENT, CELL, NEXT_CELL, TIME, PARENT = range(6)


@kernel
def replan(ws: Workspace, node: int, agent: int, order: Array, agents: int) -> bool:
    """Write the agent's walk, length and narrow times into the node; False when no path fits (or the horizon)."""
    least, most, moves, static = _gather_constraints(ws, node, agent)
    length = _spread(ws, agent, least, most, moves, static)
    if length < 0:
        return False
    ws.length[node, agent] = length
    ws.narrow[node, agent] = _prune(ws, agent, length, moves)
    _read_walk(ws, node, agent, length, moves, order, agents)
    return True


@kernel
def _gather_constraints(ws: Workspace, node: int, agent: int) -> tuple[int, int, int, int]:
    """Fill barred cells and moves; (least length, most length, number of barred moves, time of the last change)."""
    for t in range(MOMENTS):
        ws.barred[t, 0] = np.uint64(0)
        ws.barred[t, 1] = np.uint64(0)
    least, most, moves, static = 0, MOMENTS - 1, 0, 0
    while node >= 0:
        kind, time = ws.split[node, KIND], ws.split[node, TIME]
        cell = ws.split[node, CELL]
        bit = np.uint64(1) << np.uint64(cell & 63)
        if ws.split[node, AGENT] == agent:
            if kind == VERTEX:
                ws.barred[time, cell >> 6] |= bit
                static = max(static, time)
                if cell == ws.goal[agent]:
                    least = max(least, time + 1)
            elif kind == MOVE:
                ws.barred_moves[moves, 0] = cell
                ws.barred_moves[moves, 1] = ws.split[node, NEXT_CELL]
                ws.barred_moves[moves, 2] = time
                static = max(static, time)
                moves = min(moves + 1, MOMENTS - 1)
            elif kind == LATER:
                least = max(least, time + 1)
            elif kind == TARGET:
                most = min(most, time)
        elif kind == TARGET:
            for t in range(time, MOMENTS):
                ws.barred[t, cell >> 6] |= bit
            static = max(static, time)
        node = ws.split[node, PARENT]
    return least, most, moves, static


@kernel
def _move_allowed(ws: Workspace, moves: int, cell: int, after: int, time: int) -> bool:
    for m in range(moves):
        if ws.barred_moves[m, 2] == time and ws.barred_moves[m, 0] == cell and ws.barred_moves[m, 1] == after:
            return False
    return True


@kernel
def _spread(ws: Workspace, agent: int, least: int, most: int, moves: int, static: int) -> int:
    """Fill ws.reach forwards until the goal can be entered for good; the length, -1 if never."""
    start, goal = ws.start[agent], ws.goal[agent]
    ws.reach[0, 0] = np.uint64(0)
    ws.reach[0, 1] = np.uint64(0)
    ws.reach[0, start >> 6] = np.uint64(1) << np.uint64(start & 63)
    goal_bit = np.uint64(1) << np.uint64(goal & 63)
    for t in range(most + 1):
        if t >= least and ws.reach[t, goal >> 6] & goal_bit != 0:
            return t
        if t == most:
            break
        low, high = _spread_once(ws, t, moves)
        ws.reach[t + 1, 0] = low & ~ws.barred[t + 1, 0]
        ws.reach[t + 1, 1] = high & ~ws.barred[t + 1, 1]
        if t > static and t >= least and ws.reach[t + 1, 0] == ws.reach[t, 0] and ws.reach[t + 1, 1] == ws.reach[t, 1]:
            break
    return -1


@kernel
def _spread_once(ws: Workspace, t: int, moves: int) -> tuple[int, int]:
    """Cells entered at t + 1 from ws.reach[t]; cells with a barred move are spread one neighbour at a time."""
    low, high = ws.reach[t, 0], ws.reach[t, 1]
    bound_low, bound_high = np.uint64(0), np.uint64(0)
    for m in range(moves):
        if ws.barred_moves[m, 2] == t + 1:
            cell = ws.barred_moves[m, 0]
            if cell < 64:
                bound_low |= np.uint64(1) << np.uint64(cell)
            else:
                bound_high |= np.uint64(1) << np.uint64(cell - 64)
    # Waiting is never barred by a move constraint, so every cell keeps itself.
    out_low, out_high = low, high
    for half in range(2):
        rest = low if half == 0 else high
        bound = bound_low if half == 0 else bound_high
        while rest != 0:
            v = trailing_zeros(rest)
            bit = np.uint64(1) << np.uint64(v)
            rest &= rest - np.uint64(1)
            v += 64 * half
            if bound & bit == 0:
                out_low |= ws.masks[v, 0]
                out_high |= ws.masks[v, 1]
                continue
            for action in range(4):
                u = ws.neighbours[v, action]
                if u >= 0 and _move_allowed(ws, moves, v, u, t + 1):
                    if u < 64:
                        out_low |= np.uint64(1) << np.uint64(u)
                    else:
                        out_high |= np.uint64(1) << np.uint64(u - 64)
    return out_low, out_high


@kernel
def _prune(ws: Workspace, agent: int, length: int, moves: int) -> np.uint64:
    """Keep in ws.reach only cells on paths of this length; the bit set of times with a single cell."""
    goal = ws.goal[agent]
    ws.reach[length, 0] = np.uint64(0)
    ws.reach[length, 1] = np.uint64(0)
    ws.reach[length, goal >> 6] = np.uint64(1) << np.uint64(goal & 63)
    narrow = np.uint64(1) << np.uint64(length)
    for t in range(length - 1, -1, -1):
        count = 0
        for half in range(2):
            rest = ws.reach[t, half]
            kept = np.uint64(0)
            while rest != 0:
                v = trailing_zeros(rest)
                bit = np.uint64(1) << np.uint64(v)
                rest &= rest - np.uint64(1)
                if _leads_on(ws, v + 64 * half, t + 1, moves):
                    kept |= bit
                    count += 1
            ws.reach[t, half] = kept
        if count == 1:
            narrow |= np.uint64(1) << np.uint64(t)
    return narrow


@kernel
def _leads_on(ws: Workspace, v: int, time: int, moves: int) -> bool:
    """Can the agent go from v to a cell of ws.reach[time]?"""
    if _holds(ws, time, v):
        return True
    if moves == 0:
        near_low, near_high = ws.masks[v, 0] & ws.reach[time, 0], ws.masks[v, 1] & ws.reach[time, 1]
        return as_int(near_low | near_high) != 0
    for action in range(4):
        u = ws.neighbours[v, action]
        if u >= 0 and _holds(ws, time, u) and _move_allowed(ws, moves, v, u, time):
            return True
    return False


@kernel
def _holds(ws: Workspace, time: int, cell: int) -> bool:
    return as_int((ws.reach[time, cell >> 6] >> np.uint64(cell & 63)) & np.uint64(1)) == 1


@kernel
def _read_walk(ws: Workspace, node: int, agent: int, length: int, moves: int, order: Array, agents: int) -> None:
    """Choose one of the shortest paths, at each step the cell that touches the fewest other walks; then stay."""
    v = ws.start[agent]
    ws.walk[node, agent, 0] = v
    for t in range(1, length + 1):
        best, fewest = -1, 99
        for action in range(5):
            u = v if action == 4 else ws.neighbours[v, action]
            if u < 0 or not _holds(ws, t, u) or (action < 4 and not _move_allowed(ws, moves, v, u, t)):
                continue
            touched = 0
            for q in range(agents):
                j = order[q]
                if j == agent or ws.length[node, j] < 0:
                    continue
                if ws.walk[node, j, t] == u or (ws.walk[node, j, t] == v and ws.walk[node, j, t - 1] == u):
                    touched += 1
            if touched < fewest:
                best, fewest = u, touched
        v = best
        ws.walk[node, agent, t] = v
    for t in range(length + 1, MOMENTS):
        ws.walk[node, agent, t] = v
