"""Optimal joint search: A* over configurations in which the agents of one step move one after another
(operator decomposition), bounded by the pair tables. One kernel serves four questions:

objective STEPS (makespan) or COST (sum of costs, as excess above the sum of distances), with or without waiting.
With COST, or without waiting, an agent may stop at its goal for good (*done*): it blocks the cell at no cost.
"""

from __future__ import annotations

from solvers.compiling import as_int, kernel
from solvers.kernels.bounds import cover, pair_bound, set_pairs
from solvers.kernels.store import add_entry, cells_of, clear_store, find_slot, pop, push
from solvers.kernels.workspace import (
    CELL_BITS,
    COSTS,
    DEPTH_SHIFT,
    DONE_SHIFT,
    FULL,
    INF,
    Array,
    Workspace,
)

STEPS, COST = 0, 1
EXHAUSTED, FOUND, CAPPED = 0, 1, 2

# rows of Workspace.locals
OLD, NEW, DONE, SPENT, OLD_PAIR, NOW_PAIR, NEXT_PAIR, ARRIVED, WAS_DONE = range(9)
DONE_MASK = (1 << 5) - 1


@kernel
def search(
    ws: Workspace,
    size: int,
    order: Array,
    agents: int,
    objective: int,
    waits: bool,
    tables: bool,
    limit: int,
    budget: int,
) -> tuple[int, int, int, int]:
    """(EXHAUSTED | FOUND | CAPPED, optimum, expansions, entry of the goal).

    EXHAUSTED: there is no plan with an optimum up to `limit`; with limit = COSTS - 1 there is none at all.
    `tables` says that the pair tables of these agents are filled (steps, or excess and avoid distances for COST).
    """
    clear_store(ws)
    set_pairs(ws, size, order, agents)
    locking = objective == COST or not waits
    _open_starts(ws, order, agents, objective, locking, tables, limit)
    expansions = 0
    rank = 0
    last = min(limit, COSTS - 1)
    while rank <= last:
        node = pop(ws, rank)
        if node < 0:
            rank += 1
            continue
        entry, pack = ws.node_entry[node], ws.node_pack[node]
        depth = pack >> DEPTH_SHIFT
        if depth == 0:
            if ws.closed[entry]:
                continue
            ws.closed[entry] = 1
            if _at_goal(ws, order, agents, ws.key[entry], locking):
                return FOUND, rank, expansions, entry
        if expansions >= budget or ws.counter[FULL]:
            return CAPPED, rank, expansions, -1
        expansions += 1
        depth = _unpack(ws, order, agents, entry, pack, depth)
        if objective == COST and tables:
            _partial_pairs(ws, order, agents)
        _expand(ws, order, agents, objective, waits, locking, tables, last, rank, entry, depth)
    if ws.counter[FULL]:
        return CAPPED, rank, expansions, -1
    return EXHAUSTED, rank, expansions, -1


@kernel
def _at_goal(ws: Workspace, order: Array, agents: int, key: int, locking: bool) -> bool:
    if locking:
        return (key >> DONE_SHIFT) & DONE_MASK == (1 << agents) - 1
    away = False
    for q in range(agents):
        away |= cells_of(key, q) != ws.goal[order[q]]
    return not away


@kernel
def _open_starts(
    ws: Workspace, order: Array, agents: int, objective: int, locking: bool, tables: bool, limit: int
) -> None:
    """Open the start; an agent that starts on its goal may be done at once or not, so there can be several."""
    key = 0
    home = 0
    for q in range(agents):
        key |= ws.start[order[q]] << (CELL_BITS * q)
        ws.locals[OLD, q] = ws.start[order[q]]
        if locking and ws.start[order[q]] == ws.goal[order[q]]:
            home |= 1 << q
    done = home
    while True:
        for q in range(agents):
            ws.locals[NEW, q] = ws.start[order[q]]
            ws.locals[DONE, q] = (done >> q) & 1
            ws.locals[ARRIVED, q] = 1
            ws.locals[SPENT, q] = 0
        bound = _start_bound(ws, order, agents, objective, locking, tables)
        if bound < INF and bound <= limit:
            start_key = key | (done << DONE_SHIFT)
            push(ws, bound, add_entry(ws, find_slot(ws, start_key), start_key, 0, -1), 0)
        if done == 0:
            break
        done = (done - 1) & home


@kernel
def _start_bound(ws: Workspace, order: Array, agents: int, objective: int, locking: bool, tables: bool) -> int:
    bound = 0
    for q in range(agents):
        v = ws.locals[NEW, q]
        returning = locking and v == ws.goal[order[q]] and not ws.locals[DONE, q]
        if objective == COST:
            bound += 2 * returning
        else:
            bound = max(bound, 2 * returning, as_int(ws.dist[order[q], v]))
    if not tables:
        return bound
    ws.locals[NOW_PAIR, 10] = 0
    for q in range(agents):
        for r in range(q):
            value = pair_bound(
                ws, order, r, q, ws.locals[NEW, r], ws.locals[NEW, q], ws.locals[DONE, r], ws.locals[DONE, q],
                locking, objective == COST,
            )  # fmt: skip
            if value == INF:
                return INF
            ws.locals[NOW_PAIR, q * (q - 1) // 2 + r] = value
            if objective != COST:
                bound = max(bound, value)
    if objective == COST:
        bound = max(bound, cover(ws.locals[NOW_PAIR], agents))
    return bound


@kernel
def _unpack(ws: Workspace, order: Array, agents: int, entry: int, pack: int, depth: int) -> int:
    """Lay a node out in ws.locals: old and new cells, who is done, who has moved; the next agent to move.

    Agents that were done before this step count as moved.
    """
    key = ws.key[entry]
    for q in range(agents):
        old = cells_of(key, q)
        done = (key >> (DONE_SHIFT + q)) & 1
        ws.locals[OLD, q] = old
        ws.locals[WAS_DONE, q] = done
        if done:
            ws.locals[NEW, q], ws.locals[DONE, q], ws.locals[ARRIVED, q], ws.locals[SPENT, q] = old, 1, 1, 0
        elif q < depth:
            new = cells_of(pack, q)
            ws.locals[NEW, q] = new
            ws.locals[DONE, q] = (pack >> (DONE_SHIFT + q)) & 1
            ws.locals[ARRIVED, q] = 1
            ws.locals[SPENT, q] = 1 + as_int(ws.dist[order[q], new]) - as_int(ws.dist[order[q], old])
        else:
            ws.locals[NEW, q], ws.locals[DONE, q], ws.locals[ARRIVED, q], ws.locals[SPENT, q] = old, 0, 0, 0
    while (key >> (DONE_SHIFT + depth)) & 1:
        depth += 1
    return depth


@kernel
def _partial_pairs(ws: Workspace, order: Array, agents: int) -> None:
    """Excess that each pair still has to take: at the old cells, less what the moved one spent, until both moved."""
    ws.locals[NOW_PAIR, 10] = 0
    for q in range(agents):
        for r in range(q):
            row = q * (q - 1) // 2 + r
            if ws.locals[ARRIVED, q] and ws.locals[ARRIVED, r]:
                value = pair_bound(
                    ws, order, r, q, ws.locals[NEW, r], ws.locals[NEW, q], ws.locals[DONE, r], ws.locals[DONE, q],
                    True, True,
                )  # fmt: skip
                ws.locals[NOW_PAIR, row] = value
            else:
                value = pair_bound(
                    ws, order, r, q, ws.locals[OLD, r], ws.locals[OLD, q], ws.locals[WAS_DONE, r],
                    ws.locals[WAS_DONE, q], True, True,
                )  # fmt: skip
                ws.locals[OLD_PAIR, row] = value
                ws.locals[NOW_PAIR, row] = max(0, value - ws.locals[SPENT, q] - ws.locals[SPENT, r])


@kernel
def _expand(
    ws: Workspace,
    order: Array,
    agents: int,
    objective: int,
    waits: bool,
    locking: bool,
    tables: bool,
    last: int,
    rank: int,
    entry: int,
    depth: int,
) -> None:
    """Open all moves of the agent at position `depth`, the promising ones last so that they are taken first."""
    i = order[depth]
    old = ws.locals[OLD, depth]
    for detour in range(2, -1, -1):
        if detour == 1:
            if waits:
                _try_move(ws, order, agents, objective, locking, tables, last, rank, entry, depth, old, 0)
            continue
        for action in range(4):
            new = ws.neighbours[old, action]
            if new < 0 or 1 + as_int(ws.dist[i, new]) - as_int(ws.dist[i, old]) != detour:
                continue
            _try_move(ws, order, agents, objective, locking, tables, last, rank, entry, depth, new, 0)
            if locking and new == ws.goal[i]:
                _try_move(ws, order, agents, objective, locking, tables, last, rank, entry, depth, new, 1)


@kernel
def _try_move(
    ws: Workspace,
    order: Array,
    agents: int,
    objective: int,
    locking: bool,
    tables: bool,
    last: int,
    rank: int,
    entry: int,
    depth: int,
    new: int,
    done: int,
) -> None:
    """Open one move of one agent unless it collides or its bound exceeds `last`."""
    old = ws.locals[OLD, depth]
    for r in range(agents):
        if ws.locals[ARRIVED, r]:
            if ws.locals[NEW, r] == new:
                return
            if ws.locals[NEW, r] == old and ws.locals[OLD, r] == new:
                return
    if objective == COST:
        bound = _cost_bound(ws, order, agents, tables, entry, depth, new, done)
    else:
        bound = _steps_bound(ws, order, agents, locking, tables, entry, depth, new, done)
    bound = max(bound, rank)
    if bound > last:
        if last == COSTS - 1 and bound < INF * COSTS:
            ws.counter[FULL] = 1
        return
    after = depth + 1
    while after < agents and ws.locals[ARRIVED, after]:
        after += 1
    ws.locals[NEW, depth], ws.locals[DONE, depth] = new, done
    pack = 0
    for q in range(agents):
        if q < after:
            pack |= (ws.locals[NEW, q] << (CELL_BITS * q)) | (ws.locals[DONE, q] << (DONE_SHIFT + q))
        elif ws.locals[ARRIVED, q]:
            pack |= (ws.locals[OLD, q] << (CELL_BITS * q)) | (1 << (DONE_SHIFT + q))
    if after < agents:
        push(ws, bound, entry, pack | (after << DEPTH_SHIFT))
        return
    cost = as_int(ws.cost[entry]) + 1
    if objective == COST:
        cost += as_int(ws.dist[order[depth], new]) - as_int(ws.dist[order[depth], old])
        for q in range(agents):
            if q != depth:
                cost += ws.locals[SPENT, q]
    _reach(ws, pack, cost, entry, bound)


@kernel
def _reach(ws: Workspace, key: int, cost: int, parent: int, bound: int) -> None:
    """Open a configuration when it is new or now cheaper."""
    slot = find_slot(ws, key)
    found = ws.slots[slot]
    if found < 0:
        found = add_entry(ws, slot, key, cost, parent)
        if found < 0:
            return
    elif ws.cost[found] <= cost:
        return
    else:
        ws.cost[found] = cost
        ws.parent[found] = parent
        ws.closed[found] = 0
    push(ws, bound, found, 0)


@kernel
def _steps_bound(
    ws: Workspace, order: Array, agents: int, locking: bool, tables: bool, entry: int, depth: int, new: int, done: int
) -> int:
    i = order[depth]
    bound = as_int(ws.dist[i, new])
    if locking and not done and new == ws.goal[i]:
        bound = 2
    if tables:
        for r in range(agents):
            if ws.locals[ARRIVED, r]:
                value = pair_bound(
                    ws, order, depth, r, new, ws.locals[NEW, r], done, ws.locals[DONE, r], locking, False
                )
                if value == INF:
                    return INF * COSTS
                bound = max(bound, value)
    return bound + as_int(ws.cost[entry]) + 1


@kernel
def _cost_bound(
    ws: Workspace, order: Array, agents: int, tables: bool, entry: int, depth: int, new: int, done: int
) -> int:
    i = order[depth]
    spent = 1 + as_int(ws.dist[i, new]) - as_int(ws.dist[i, ws.locals[OLD, depth]])
    total = as_int(ws.cost[entry]) + spent
    returning = 0
    for q in range(agents):
        total += ws.locals[SPENT, q] if q != depth else 0
        if q == depth:
            returning += 2 if new == ws.goal[i] and not done else 0
        else:
            returning += 2 if ws.locals[NEW, q] == ws.goal[order[q]] and not ws.locals[DONE, q] else 0
    if not tables:
        return total + returning
    for row in range(11):
        ws.locals[NEXT_PAIR, row] = ws.locals[NOW_PAIR, row]
    for r in range(agents):
        if r == depth:
            continue
        row = max(depth, r) * (max(depth, r) - 1) // 2 + min(depth, r)
        if ws.locals[ARRIVED, r]:
            value = pair_bound(ws, order, depth, r, new, ws.locals[NEW, r], done, ws.locals[DONE, r], True, True)
            if value == INF:
                return INF * COSTS
        else:
            value = max(0, ws.locals[OLD_PAIR, row] - spent)
        ws.locals[NEXT_PAIR, row] = value
    return total + max(returning, cover(ws.locals[NEXT_PAIR], agents))
