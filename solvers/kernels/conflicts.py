"""Sum of costs by conflict-based search: quick where conflicts are few, without end where they are many, hence capped.

Only for agents with a proven plan: on an unsolvable instance it would only run into its cap. Splits on vertex and move
conflicts, and on an agent at rest on its goal by arrival time (*target*: it arrives later, or all others stay off).
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel, trailing_zeros
from solvers.kernels.pairs import pair_row
from solvers.kernels.replan import AGENT, CELL, KIND, LATER, MOVE, NEXT_CELL, PARENT, ROOT, TARGET, TIME, VERTEX, replan
from solvers.kernels.workspace import CANCEL, MOMENTS, SPLITS, Array, Workspace

CLOSED = 1 << 62
LAST_NODE = (1 << 16) - 1
NONE = 1 << 62
EXHAUSTED, FOUND, CAPPED = 0, 1, 2

# A conflict is packed so that the most urgent is the least number: what avoiding it costs, then the time.
TIME_BITS, KIND_BITS = 6, 2


@kernel
def open_root(ws: Workspace, team: Array, agents: int, waits: bool, least: int) -> int:
    """Start a search; 1, the number of nodes, or 0 when an agent alone has no path."""
    for q in range(agents):
        ws.length[0, team[q]] = -1
    _describe(ws, 0, ROOT, -1, 0, 0, 0, -1)
    for q in range(agents):
        if not replan(ws, 0, team[q], team, agents, waits):
            return 0
    _appraise(ws, 0, team, agents, (1 << agents) - 1, waits, least)
    return 1


@kernel
def raise_bounds(ws: Workspace, count: int, least: int) -> None:
    """No open node costs less than `least`: known from elsewhere, between two calls of resolve_conflicts."""
    for node in range(count):
        if ws.rank[node] != CLOSED and ws.rank[node] >> 32 < least:
            ws.rank[node] = (least << 32) | (ws.rank[node] & 0xFFFFFFFF)


@kernel
def resolve_conflicts(
    ws: Workspace, team: Array, agents: int, waits: bool, most: int, cap: int, count: int
) -> tuple[int, int, int, int]:
    """(FOUND | EXHAUSTED | CAPPED, lower bound, node with the plan in ws.walk, nodes made so far).

    Goes on from the `count` nodes of open_root or an earlier call; nodes dearer than `most` are not kept. FOUND is
    optimal when it costs at most least_beyond_horizon; EXHAUSTED means that no plan costs up to the lesser of both.
    """
    cap = min(cap, SPLITS)
    while True:
        first = CLOSED
        for node in range(count):
            first = min(first, ws.rank[node])
        if first == CLOSED:
            return EXHAUSTED, most + 1, -1, count
        node = LAST_NODE - (first & LAST_NODE)
        bound = first >> 32
        if (first >> 16) & 0xFFFF == 0:
            return FOUND, bound, node, count
        if count + 2 > cap or ws.counter[CANCEL]:
            return CAPPED, bound, -1, count
        ws.rank[node] = CLOSED
        for side in range(2):
            changed = _branch(ws, node, count, side, team, agents, waits)
            if changed != 0:
                _appraise(ws, count, team, agents, changed, waits, bound)
                if ws.rank[count] >> 32 <= most:
                    count += 1
                    if ws.rank[count - 1] >> 16 == bound << 16:
                        # A plan at the bound: the other child can only equal it.
                        break


@kernel
def least_beyond_horizon(ws: Workspace, team: Array, agents: int) -> int:
    """No plan in which an agent arrives after the horizon costs less than this."""
    total, longest = 0, 0
    for q in range(agents):
        distance = as_int(ws.dist[team[q], ws.start[team[q]]])
        total += distance
        longest = max(longest, distance)
    return total - longest + MOMENTS


@kernel
def _describe(
    ws: Workspace, node: int, kind: int, agent: int, cell: int, next_cell: int, time: int, parent: int
) -> None:
    ws.split[node, KIND], ws.split[node, AGENT], ws.split[node, CELL] = kind, agent, cell
    ws.split[node, NEXT_CELL], ws.split[node, TIME], ws.split[node, PARENT] = next_cell, time, parent


@kernel
def _branch(ws: Workspace, parent: int, child: int, side: int, team: Array, agents: int, waits: bool) -> int:
    """Make one child that rules out the parent's most urgent conflict; the positions replanned, 0 if one has no path.

    A path beyond the horizon counts as none, so only answers below least_beyond_horizon are optimal.
    """
    best, q, r = NONE, 0, 0
    for b in range(agents):
        for a in range(b):
            if ws.clash[parent, pair_row(a, b)] < best:
                best, q, r = ws.clash[parent, pair_row(a, b)], b, a
    kind, time = best & 3, (best >> KIND_BITS) & (MOMENTS - 1)
    if kind == TARGET and ws.length[parent, team[q]] > time:
        q, r = r, q
    i, j = team[q], team[r]
    u, v = as_int(ws.walk[parent, i, time]), as_int(ws.walk[parent, j, time])
    for p in range(agents):
        agent = team[p]
        for t in range(MOMENTS):
            ws.walk[child, agent, t] = ws.walk[parent, agent, t]
        ws.length[child, agent] = ws.length[parent, agent]
        ws.narrow[child, agent] = ws.narrow[parent, agent]
    for row in range(len(ws.clash[parent])):
        ws.clash[child, row] = ws.clash[parent, row]
        ws.clashes[child, row] = ws.clashes[parent, row]
    if kind == TARGET and side == 1:
        _describe(ws, child, TARGET, i, u, 0, time, parent)
        return _clear_target(ws, child, q, u, time, team, agents, waits)
    if kind == TARGET:
        _describe(ws, child, LATER, i, u, 0, time, parent)
    elif kind == VERTEX:
        _describe(ws, child, VERTEX, i if side == 0 else j, u, 0, time, parent)
    elif side == 0:
        _describe(ws, child, MOVE, i, v, u, time, parent)
    else:
        _describe(ws, child, MOVE, j, u, v, time, parent)
    moved = q if kind == TARGET or side == 0 else r
    return 1 << moved if replan(ws, child, team[moved], team, agents, waits) else 0


@kernel
def _clear_target(
    ws: Workspace, child: int, owner: int, cell: int, time: int, team: Array, agents: int, waits: bool
) -> int:
    """Replan everyone who enters the cell from this time on, except its owner."""
    changed = 0
    for q in range(agents):
        i = team[q]
        if q == owner:
            continue
        for t in range(time, MOMENTS):
            if ws.walk[child, i, t] == cell:
                if not replan(ws, child, i, team, agents, waits):
                    return 0
                changed |= 1 << q
                break
    return changed


@kernel
def _appraise(ws: Workspace, node: int, team: Array, agents: int, changed: int, waits: bool, least: int) -> None:
    """Find the conflicts of the changed agents and rank the node by (lower bound, conflicts, newest first)."""
    total, conflicts, edges, cover = 0, 0, 0, 0
    for q in range(agents):
        total += ws.length[node, team[q]]
        for r in range(q):
            row = pair_row(r, q)
            if (changed >> q | changed >> r) & 1:
                _compare(ws, node, team[q], team[r], row)
            conflicts += ws.clashes[node, row]
            if ws.clash[node, row] >> (KIND_BITS + TIME_BITS) <= 1:
                edges |= 1 << row
                cover = 1
    if edges & (edges - 1) != 0:
        cover = _vertex_cover(edges, agents)
    # Without waits every detour is even.
    bound = max(least, total + (cover if waits else 2 * cover))
    ws.rank[node] = (bound << 32) | (min(conflicts, 65535) << 16) | (LAST_NODE - node)


@kernel
def _compare(ws: Workspace, node: int, i: int, j: int, row: int) -> None:
    """Count the conflicts of two agents and keep the most urgent one."""
    first, second = ws.walk[node, i], ws.walk[node, j]
    hits = np.uint64(0)
    for t in range(1, MOMENTS):
        # Without a branch, so that the compiler compares many moments at once.
        hit = (first[t] == second[t]) | ((first[t] == second[t - 1]) & (first[t - 1] == second[t]))
        hits |= np.uint64(hit) << np.uint64(t)
    best, count = NONE, 0
    while hits != 0:
        t = trailing_zeros(hits)
        hits &= hits - np.uint64(1)
        count += 1
        kind, tight = _classify(ws, node, i, j, t, first[t] != second[t])
        urgency = ((2 - tight) * 2 + (kind != TARGET)) << TIME_BITS | t
        best = min(best, urgency << KIND_BITS | kind)
    ws.clash[node, row] = best
    ws.clashes[node, row] = count


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
def _vertex_cover(edges: int, agents: int) -> int:
    """Fewest agents that touch every cardinal conflict: each of them must become dearer."""
    best = agents
    for chosen in range(1, 1 << agents):
        size = 0
        covered = True
        for q in range(agents):
            size += chosen >> q & 1
            for r in range(q):
                if edges >> pair_row(r, q) & 1 and not (chosen >> q | chosen >> r) & 1:
                    covered = False
        if covered:
            best = min(best, size)
    return best
