"""Least sum of costs by A* over configurations, with partial expansion: at the current bound only the successors that
keep within it are opened, and the configuration comes back when the bound has risen to its next ones (after Yoshizumi,
Miura and Ishida 2000).

Costs are counted as excess above the sum of distances. An agent may stop at its goal for good (*done*): it blocks the
cell at no cost.
"""

from __future__ import annotations

from solvers.compiling import as_int, kernel
from solvers.kernels.bounds import HOPELESS, OPPOSITE, OPPOSITE_TRIPLE, cover, pair_excess, triple_excess, triple_row
from solvers.kernels.pairs import pair_row
from solvers.kernels.store import add_entry, cells_of, clear_open, clear_store, find_slot, pop, push
from solvers.kernels.workspace import (
    AGENTS,
    CANCEL,
    CELL_BITS,
    COSTS,
    DONE_SHIFT,
    FULL,
    INF,
    PAIRS,
    SIZE,
    Array,
    Workspace,
)

EXHAUSTED, FOUND, CAPPED = 0, 1, 2

# rows of Workspace.locals
OLD, NEW, WAS_DONE, DONE, SPENT, OPTION, BEFORE, VALUES = range(8)
DONE_MASK = (1 << 5) - 1


@kernel
def search(
    ws: Workspace, team: Array, agents: int, waits: bool, triples: bool, least: int, most: int, budget: int
) -> tuple[int, int, int, int]:
    """(EXHAUSTED | FOUND | CAPPED, excess, expansions, entry of the goal).

    The excess is known to be at least `least`; EXHAUSTED: no plan has an excess up to `most`, or none at all with
    most = COSTS - 1. CAPPED gives a lower bound. `triples` says that the tables of three agents are filled.
    """
    clear_store(ws)
    clear_open(ws)
    _open_starts(ws, team, agents, triples, least, most)
    expansions = 0
    bound = least
    while bound <= most:
        node = pop(ws, bound)
        if node < 0:
            bound += 1
            continue
        entry = ws.node_entry[node]
        if ws.node_pack[node] != ws.cost[entry]:
            continue
        if (ws.key[entry] >> DONE_SHIFT) & DONE_MASK == (1 << agents) - 1:
            return FOUND, bound, expansions, entry
        if expansions >= budget or ws.counter[FULL] or ws.counter[CANCEL]:
            return CAPPED, bound, expansions, -1
        expansions += 1
        later = _expand(ws, team, agents, waits, triples, bound, entry)
        if later <= most:
            push(ws, later, entry, as_int(ws.cost[entry]))
        elif most == COSTS - 1 and later < HOPELESS:
            ws.counter[FULL] = 1
    if ws.counter[FULL]:
        return CAPPED, bound, expansions, -1
    return EXHAUSTED, bound, expansions, -1


@kernel
def _open_starts(ws: Workspace, team: Array, agents: int, triples: bool, least: int, most: int) -> None:
    """Open the start; an agent that starts on its goal may be done at once or not, so there can be several."""
    key = 0
    home = 0
    cells, done = ws.locals[NEW], ws.locals[DONE]
    for q in range(agents):
        cells[q] = ws.start[team[q]]
        key |= cells[q] << (CELL_BITS * q)
        if cells[q] == ws.goal[team[q]]:
            home |= 1 << q
    chosen = home
    while True:
        for q in range(agents):
            done[q] = (chosen >> q) & 1
        _look_up(ws, team, agents, triples, cells, done, ws.locals[VALUES])
        bound = max(least, _bound(ws, team, agents, triples, COSTS))
        if bound <= most:
            start_key = key | (chosen << DONE_SHIFT)
            push(ws, bound, add_entry(ws, find_slot(ws, start_key), start_key, 0, -1), 0)
        if chosen == 0:
            break
        chosen = (chosen - 1) & home


@kernel
def _look_up(ws: Workspace, team: Array, agents: int, triples: bool, cells: Array, done: Array, values: Array) -> None:
    """Write the excess of all pairs and triples on these cells."""
    for q in range(agents):
        for r in range(q):
            values[pair_row(r, q)] = pair_excess(ws, team[r], team[q], cells[r], cells[q], done[r], done[q])
            if triples:
                for p in range(r):
                    values[PAIRS + triple_row(p, r, q)] = triple_excess(ws, team, cells, done, p, r, q)


@kernel
def _bound(ws: Workspace, team: Array, agents: int, triples: bool, enough: int) -> int:
    """Least excess from the new cells on; exact only up to `enough`."""
    returning = 0
    for q in range(agents):
        returning += 2 * (ws.locals[NEW, q] == ws.goal[team[q]] and not ws.locals[DONE, q])
    if returning > enough:
        return returning
    return max(returning, cover(ws.locals[VALUES], agents, triples, enough))


@kernel
def _expand(ws: Workspace, team: Array, agents: int, waits: bool, triples: bool, bound: int, entry: int) -> int:
    """Open all successors within the bound; the least bound of the others.

    The agents move one after another. A pair that moved and the excess of those outside it, where they stand, are
    apart, so they add up; the same for a triple and the pair outside it.
    """
    old, new, was, done = ws.locals[OLD], ws.locals[NEW], ws.locals[WAS_DONE], ws.locals[DONE]
    spent, option, before, values = ws.locals[SPENT], ws.locals[OPTION], ws.locals[BEFORE], ws.locals[VALUES]
    key, cost = ws.key[entry], as_int(ws.cost[entry])
    for q in range(agents):
        old[q] = cells_of(key, q)
        was[q] = (key >> (DONE_SHIFT + q)) & 1
        _list_moves(ws, q, team[q], old[q], was[q], waits)
    _look_up(ws, team, agents, triples, old, was, before)
    later = _pair_moves(ws, team, agents, triples, bound - cost) + cost
    spent[0], option[0] = cost, -1
    q = 0
    while q >= 0:
        option[q] += 1
        choice = option[q]
        if choice >= ws.moves[q]:
            q -= 1
            continue
        total = spent[q] + ws.move_cost[q, choice]
        apart = False
        for r in range(q):
            value = as_int(ws.move_pair[pair_row(r, q), option[r], choice])
            values[pair_row(r, q)] = value
            apart |= value >= HOPELESS
        if apart:
            continue
        new[q], done[q] = ws.move_cell[q, choice], ws.move_done[q, choice]
        if triples and q >= 2:
            low = _triple_bound(ws, team, agents, q, cost, bound)
            if low > bound:
                later = min(later, low)
                continue
        spent[q + 1] = total
        if q + 1 < agents:
            q += 1
            option[q] = -1
        else:
            later = min(later, _open(ws, team, agents, triples, bound, total, entry))
    return later


@kernel
def _list_moves(ws: Workspace, q: int, i: int, v: int, was_done: int, waits: bool) -> None:
    """The moves of the agent i at position q from v: away, stay, towards; the open list takes the last ones first."""
    count = 0
    before = as_int(ws.dist[i, v])
    for detour in range(2, -1, -1):
        for action in range(5):
            if (action == 4) != (detour == 1):
                continue
            u = v if action == 4 else as_int(ws.neighbours[v, action])
            if action == 4:
                if not (waits or was_done):
                    continue
            elif was_done or u < 0 or 1 + as_int(ws.dist[i, u]) - before != detour:
                continue
            ws.move_cell[q, count], ws.move_done[q, count] = u, was_done
            ws.move_cost[q, count] = 0 if was_done else detour
            count += 1
            if action != 4 and u == ws.goal[i]:
                ws.move_cell[q, count], ws.move_done[q, count], ws.move_cost[q, count] = u, 1, detour
                count += 1
    ws.moves[q] = count


@kernel
def _pair_moves(ws: Workspace, team: Array, agents: int, triples: bool, room: int) -> int:
    """Fill ws.move_pair, HOPELESS where two moves collide or take more than `room`; the least taken beyond it."""
    old, before = ws.locals[OLD], ws.locals[BEFORE]
    later = HOPELESS
    for q in range(agents):
        for r in range(q):
            row = pair_row(r, q)
            rest = 0
            for p in range(agents):
                for o in range(p):
                    if p != q and p != r and o != q and o != r:
                        rest = max(rest, before[pair_row(o, p)])
            if triples and agents == AGENTS:
                rest = max(rest, before[OPPOSITE_TRIPLE[row]])
            for a in range(ws.moves[r]):
                u, u_done = ws.move_cell[r, a], ws.move_done[r, a]
                for b in range(ws.moves[q]):
                    v = ws.move_cell[q, b]
                    value = HOPELESS
                    if v != u and not (v == old[r] and u == old[q]):
                        value = pair_excess(ws, team[r], team[q], u, v, u_done, ws.move_done[q, b])
                        taken = ws.move_cost[r, a] + ws.move_cost[q, b] + value + rest
                        if taken > room:
                            later = min(later, taken)
                            value = HOPELESS
                    ws.move_pair[row, a, b] = value
    return later


@kernel
def _triple_bound(ws: Workspace, team: Array, agents: int, q: int, cost: int, bound: int) -> int:
    """Write the excess of the triples of position q with earlier ones; a lower bound, exact only up to `bound`."""
    new, done, before, values = ws.locals[NEW], ws.locals[DONE], ws.locals[BEFORE], ws.locals[VALUES]
    option = ws.locals[OPTION]
    size = ws.frame[SIZE]
    worst: int = 0
    for r in range(1, q):
        for p in range(r):
            row = triple_row(p, r, q)
            if done[p] | done[r] | done[q]:
                value = triple_excess(ws, team, new, done, p, r, q)
            else:
                index = (new[p] * size + new[r]) * size + new[q]
                value = as_int(ws.triple_excess[triple_row(team[p], team[r], team[q]), index])
                value = HOPELESS if value == INF else value
            values[PAIRS + row] = value
            taken = value + ws.move_cost[p, option[p]] + ws.move_cost[r, option[r]] + ws.move_cost[q, option[q]]
            if agents == AGENTS:
                taken += before[OPPOSITE[row]]
            worst = max(worst, cost + taken)
            if worst > bound:
                return worst
    return worst


@kernel
def _open(ws: Workspace, team: Array, agents: int, triples: bool, bound: int, cost: int, entry: int) -> int:
    """Open the configuration in rows NEW and DONE if it is new or now cheaper and within the bound; its own bound if
    it is beyond."""
    key = 0
    for q in range(agents):
        key |= (ws.locals[NEW, q] << (CELL_BITS * q)) | (ws.locals[DONE, q] << (DONE_SHIFT + q))
    slot = find_slot(ws, key)
    found = ws.slots[slot]
    if found >= 0 and ws.cost[found] <= cost:
        return HOPELESS
    low = cost + _bound(ws, team, agents, triples, bound - cost)
    if low > bound:
        return low
    if found < 0:
        found = add_entry(ws, slot, key, cost, entry)
        if found < 0:
            return HOPELESS
    else:
        ws.cost[found] = cost
        ws.parent[found] = entry
    push(ws, bound, found, cost)
    return HOPELESS
