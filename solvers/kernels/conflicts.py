"""Conflict-based search for the sum of costs, with a node cap: first stage, exact when it ends.

Solvability must be proven before: on an unsolvable instance it would only run into its cap. Splits on vertex and move
conflicts, and on an agent at rest on its goal by arrival time (*target*: it arrives later, or all others stay off).
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel
from solvers.kernels.replan import KIND, LATER, MOVE, ROOT, TARGET, VERTEX, replan
from solvers.kernels.workspace import MOMENTS, SPLITS, Array, Workspace

CLOSED = 1 << 62
NOT_FOUND = -1

# rows of Workspace.locals
CARDINAL = 0


@kernel
def resolve_conflicts(ws: Workspace, order: Array, agents: int, cap: int) -> tuple[int, int, int]:
    """(least sum of costs or NOT_FOUND, node with the plan in ws.walk, nodes made)."""
    for q in range(agents):
        ws.length[0, order[q]] = -1
    _describe(ws, 0, ROOT, -1, 0, 0, 0, -1)
    for q in range(agents):
        if not replan(ws, 0, order[q], order, agents):
            return NOT_FOUND, -1, 1
    _appraise(ws, 0, order, agents, 0)
    count = 1
    while True:
        node = 0
        for other in range(1, count):
            if ws.rank[other] < ws.rank[node]:
                node = other
        if ws.rank[node] == CLOSED:
            return NOT_FOUND, -1, count
        bound = ws.rank[node] >> 32
        if ws.clash[node, KIND] < 0:
            return bound, node, count
        ws.rank[node] = CLOSED
        if count + 2 > min(cap, SPLITS):
            return NOT_FOUND, -1, count
        for side in range(2):
            if _branch(ws, node, count, side, order, agents):
                _appraise(ws, count, order, agents, bound)
                count += 1


@kernel
def least_beyond_horizon(ws: Workspace, order: Array, agents: int) -> int:
    """No plan in which an agent arrives after the horizon costs less than this."""
    total, longest = 0, 0
    for q in range(agents):
        distance = as_int(ws.dist[order[q], ws.start[order[q]]])
        total += distance
        longest = max(longest, distance)
    return total - longest + MOMENTS


@kernel
def _describe(
    ws: Workspace, node: int, kind: int, agent: int, cell: int, next_cell: int, time: int, parent: int
) -> None:
    split = ws.split[node]
    split[0], split[1], split[2], split[3], split[4], split[5] = kind, agent, cell, next_cell, time, parent


@kernel
def _branch(ws: Workspace, parent: int, child: int, side: int, order: Array, agents: int) -> bool:
    """Make one child that rules out the parent's conflict; False when an agent then has no path.

    A path beyond the horizon counts as none, so only answers below least_beyond_horizon are optimal.
    """
    clash = ws.clash[parent]
    kind, a, b, cell, next_cell, time = clash[0], clash[1], clash[2], clash[3], clash[4], clash[5]
    for q in range(agents):
        i = order[q]
        ws.walk[child, i] = ws.walk[parent, i]
        ws.length[child, i] = ws.length[parent, i]
        ws.narrow[child, i] = ws.narrow[parent, i]
    if kind == VERTEX:
        agent = a if side == 0 else b
        _describe(ws, child, VERTEX, agent, cell, 0, time, parent)
        return replan(ws, child, agent, order, agents)
    if kind == MOVE:
        if side == 0:
            _describe(ws, child, MOVE, a, cell, next_cell, time, parent)
            return replan(ws, child, a, order, agents)
        _describe(ws, child, MOVE, b, next_cell, cell, time, parent)
        return replan(ws, child, b, order, agents)
    if side == 0:
        _describe(ws, child, LATER, a, cell, 0, time, parent)
        return replan(ws, child, a, order, agents)
    _describe(ws, child, TARGET, a, cell, 0, time, parent)
    for q in range(agents):
        i = order[q]
        if i == a:
            continue
        for t in range(time, MOMENTS):
            if ws.walk[child, i, t] == cell:
                if not replan(ws, child, i, order, agents):
                    return False
                break
    return True


@kernel
def _appraise(ws: Workspace, node: int, order: Array, agents: int, least: int) -> None:
    """Find the conflict to split on and rank the node by (lower bound, conflicts, newest first)."""
    clash = ws.clash[node]
    clash[KIND] = -1
    ws.locals[CARDINAL, :agents] = 0
    total, conflicts, best = 0, 0, CLOSED
    last = 0
    for q in range(agents):
        total += ws.length[node, order[q]]
        last = max(last, ws.length[node, order[q]])
    for q in range(agents):
        for r in range(q):
            i, j = order[q], order[r]
            for t in range(1, last + 1):
                u, v = ws.walk[node, i, t], ws.walk[node, j, t]
                before_u, before_v = ws.walk[node, i, t - 1], ws.walk[node, j, t - 1]
                swap = u == before_v and v == before_u and u != v
                if u != v and not swap:
                    continue
                conflicts += 1
                kind, tight = _classify(ws, node, i, j, t, swap)
                if tight == 2:
                    ws.locals[CARDINAL, q] |= 1 << r
                urgency = ((2 - tight) * 2 + (kind != TARGET)) * MOMENTS + t
                if urgency < best:
                    best = urgency
                    rests = kind == TARGET and ws.length[node, j] <= t
                    clash[0], clash[1], clash[2] = kind, j if rests else i, i if rests else j
                    clash[3], clash[4], clash[5] = before_u if swap else u, u, t
    bound = max(least, total + _vertex_cover(ws.locals[CARDINAL], agents))
    ws.rank[node] = (bound << 32) | (min(conflicts, 65535) << 16) | (65535 - node)


@kernel
def _classify(ws: Workspace, node: int, i: int, j: int, t: int, swap: bool) -> tuple[int, int]:
    """(kind of the conflict, for how many of the two agents avoiding it costs more)."""
    i_tight, j_tight = _is_narrow(ws, node, i, t), _is_narrow(ws, node, j, t)
    if swap:
        i_tight &= _is_narrow(ws, node, i, t - 1)
        j_tight &= _is_narrow(ws, node, j, t - 1)
        return MOVE, i_tight + j_tight
    if ws.length[node, i] <= t:
        return TARGET, 1 + j_tight
    if ws.length[node, j] <= t:
        return TARGET, 1 + i_tight
    return VERTEX, i_tight + j_tight


@kernel
def _is_narrow(ws: Workspace, node: int, agent: int, t: int) -> int:
    return as_int((ws.narrow[node, agent] >> np.uint64(t)) & np.uint64(1))


@kernel
def _vertex_cover(cardinal: Array, agents: int) -> int:
    """Fewest agents that touch every cardinal conflict: each of them must become dearer."""
    best = agents
    for chosen in range(1 << agents):
        size = 0
        covered = True
        for q in range(agents):
            if chosen >> q & 1:
                size += 1
            elif cardinal[q] & ~chosen != 0:
                covered = False
        if covered:
            best = min(best, size)
    return best
