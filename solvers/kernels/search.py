"""Least sum of costs by A* over configurations, with partial expansion: only the successors that keep within a ceiling
little above the current bound are opened, and the configuration comes back when the bound has risen to its next ones
(after Yoshizumi, Miura and Ishida 2000).

Costs are counted as excess above the sum of distances. An agent may stop at its goal for good (*done*): it blocks the
cell at no cost.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bounds import (
    APART,
    HOPELESS,
    OPPOSITE,
    OPPOSITE_TRIPLE,
    cover,
    pair_excess,
    triple_excess,
    triple_row,
)
from solvers.kernels.pairs import pair_row
from solvers.kernels.store import add_entry, cells_of, clear_open, clear_store, find_slot, pop, push
from solvers.kernels.workspace import (
    AGENTS,
    CANCEL,
    CELL_BITS,
    COSTS,
    DONE_SHIFT,
    ENTRIES,
    FULL,
    INF,
    MOST_ENTRIES,
    PAIRS,
    SIZE,
    Array,
    Workspace,
)

EXHAUSTED, FOUND, CAPPED = 0, 1, 2

# rows of Workspace.locals
OLD, NEW, WAS_DONE, DONE, SPENT, RETURNING, OPTION, BEFORE, VALUES, KEY = range(10)
DONE_MASK = (1 << 5) - 1
FARTHER, FARTHEST = 3_000, 3
"""Successors are opened up to a ceiling above the bound, by one and one more every so many expansions, at most so far:
each ceiling brings all configurations back, which long searches pay for, and a low one opens few in vain. Once half of
the room is taken, none is opened ahead of the bound."""


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
        ahead = min(FARTHEST, 1 + expansions // FARTHER) if ws.counter[ENTRIES] < MOST_ENTRIES // 2 else 0
        ceiling = min(most, bound + ahead)
        later = _expand(ws, team, agents, waits, triples, bound, ceiling, entry)
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
        bound = max(least, cover(ws.locals[VALUES], agents, triples, COSTS))
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
def _expand(
    ws: Workspace, team: Array, agents: int, waits: bool, triples: bool, bound: int, ceiling: int, entry: int
) -> int:
    """Open all successors within the ceiling; the least bound of the others.

    The moves of two and of three agents that fit are listed first, as bit sets; then the agents move one after another,
    each choice thinning out the moves of those that come later.
    """
    old, was, option, before = ws.locals[OLD], ws.locals[WAS_DONE], ws.locals[OPTION], ws.locals[BEFORE]
    key, cost = ws.key[entry], as_int(ws.cost[entry])
    for q in range(agents):
        old[q] = cells_of(key, q)
        was[q] = (key >> (DONE_SHIFT + q)) & 1
        _list_moves(ws, q, team[q], old[q], was[q], waits)
        ws.untried[0, q] = (1 << ws.moves[q]) - 1
    _look_up(ws, team, agents, triples, old, was, before)
    later = _pair_moves(ws, team, agents, triples, ceiling - cost)
    if triples:
        later = min(later, _triple_moves(ws, team, agents, ceiling - cost))
    later += cost
    ws.locals[SPENT, 0], ws.locals[RETURNING, 0], ws.locals[KEY, 0] = cost, 0, 0
    q = 0
    while q >= 0:
        left = as_int(ws.untried[q, q])
        if left == 0:
            q -= 1
            continue
        ws.untried[q, q] = left & (left - 1)
        choice = trailing_zeros(np.uint64(left))
        option[q] = choice
        ws.locals[SPENT, q + 1] = ws.locals[SPENT, q] + ws.move_cost[q, choice]
        ws.locals[RETURNING, q + 1] = ws.locals[RETURNING, q] + ws.move_return[q, choice]
        ws.locals[KEY, q + 1] = ws.locals[KEY, q] | ws.move_key[q, choice]
        if q + 1 == agents:
            later = min(later, _open(ws, agents, triples, bound, ceiling, entry))
        elif _thin_out(ws, agents, triples, q):
            q += 1
    return later


@inlined_kernel
def _thin_out(ws: Workspace, agents: int, triples: bool, q: int) -> bool:
    """Keep the moves of the later positions that fit the choices up to position q; has each of them one left?"""
    option = ws.locals[OPTION]
    for r in range(q + 1, agents):
        left = as_int(ws.untried[q, r]) & as_int(ws.fits[pair_row(q, r), option[q]])
        if triples:
            for p in range(q):
                left &= as_int(ws.fits_two[triple_row(p, q, r), option[p], option[q]])
        if left == 0:
            return False
        ws.untried[q + 1, r] = left
    return True


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
            on_goal = u == ws.goal[i]
            _note_move(ws, q, count, u, was_done, 0 if was_done else detour, on_goal and not was_done)
            count += 1
            if action != 4 and on_goal:
                _note_move(ws, q, count, u, 1, detour, False)
                count += 1
    ws.moves[q] = count


@inlined_kernel
def _note_move(ws: Workspace, q: int, choice: int, cell: int, stops: int, cost: int, returns: bool) -> None:
    """Note a move of position q; one that ends on the goal but `returns` there takes two more at least."""
    ws.move_cell[q, choice], ws.move_done[q, choice], ws.move_cost[q, choice] = cell, stops, cost
    ws.move_return[q, choice] = 2 if returns else 0
    ws.move_key[q, choice] = cell << (CELL_BITS * q) | stops << (DONE_SHIFT + q)


@kernel
def _pair_moves(ws: Workspace, team: Array, agents: int, triples: bool, room: int) -> int:
    """Fill ws.move_pair and ws.fits, where two moves do not collide nor take more than `room`; the least beyond it.

    A pair that moves and the excess of those outside it, where they stand, are apart, so they add up.
    """
    old, before = ws.locals[OLD], ws.locals[BEFORE]
    later = HOPELESS
    for q in range(agents):
        for r in range(q):
            row = pair_row(r, q)
            rest = before[OPPOSITE_TRIPLE[row]] if triples and agents == AGENTS else 0
            for other in range(3):
                rest = max(rest, before[APART[agents, row, other]])
            for a in range(ws.moves[r]):
                u, u_done = ws.move_cell[r, a], ws.move_done[r, a]
                fits = 0
                for b in range(ws.moves[q]):
                    v = ws.move_cell[q, b]
                    if v != u and not (v == old[r] and u == old[q]):
                        value = pair_excess(ws, team[r], team[q], u, v, u_done, ws.move_done[q, b])
                        taken = ws.move_cost[r, a] + ws.move_cost[q, b] + value + rest
                        if taken > room:
                            later = min(later, taken)
                        else:
                            fits |= 1 << b
                            ws.move_pair[row, a, b] = value
                ws.fits[row, a] = fits
    return later


@kernel
def _triple_moves(ws: Workspace, team: Array, agents: int, room: int) -> int:
    """The same for three agents, ws.move_triple and ws.fits_two, the moves of the third by those of the first two.

    Two moves that leave a third agent none do not fit.
    """
    new, done, before = ws.locals[NEW], ws.locals[DONE], ws.locals[BEFORE]
    size = ws.frame[SIZE]
    later = HOPELESS
    for r in range(agents):
        for q in range(r):
            for p in range(q):
                row, table = triple_row(p, q, r), triple_row(team[p], team[q], team[r])
                rest = before[OPPOSITE[row]] if agents == AGENTS else 0
                for a in range(ws.moves[p]):
                    new[p], done[p] = ws.move_cell[p, a], ws.move_done[p, a]
                    seconds = as_int(ws.fits[pair_row(p, q), a])
                    while seconds != 0:
                        b = trailing_zeros(np.uint64(seconds))
                        seconds &= seconds - 1
                        new[q], done[q] = ws.move_cell[q, b], ws.move_done[q, b]
                        some_done = done[p] | done[q]
                        base = (new[p] * size + new[q]) * size
                        spent = ws.move_cost[p, a] + ws.move_cost[q, b] + rest
                        fits = 0
                        thirds = as_int(ws.fits[pair_row(p, r), a]) & as_int(ws.fits[pair_row(q, r), b])
                        while thirds != 0:
                            c = trailing_zeros(np.uint64(thirds))
                            thirds &= thirds - 1
                            if some_done | ws.move_done[r, c]:
                                new[r], done[r] = ws.move_cell[r, c], ws.move_done[r, c]
                                value = triple_excess(ws, team, new, done, p, q, r)
                            else:
                                value = as_int(ws.triple_excess[table, base + ws.move_cell[r, c]])
                                value = HOPELESS if value == INF else value
                            taken = spent + ws.move_cost[r, c] + value
                            if taken > room:
                                later = min(later, taken)
                            else:
                                fits |= 1 << c
                                ws.move_triple[row, a, b, c] = value
                        ws.fits_two[row, a, b] = fits
                        if fits == 0:
                            ws.fits[pair_row(p, q), a] = as_int(ws.fits[pair_row(p, q), a]) & ~(1 << b)
    return later


@inlined_kernel
def _open(ws: Workspace, agents: int, triples: bool, bound: int, ceiling: int, entry: int) -> int:
    """Open the configuration just put together if it is new or now cheaper and within the ceiling; its own bound if
    it is beyond."""
    key, cost = ws.locals[KEY, agents], as_int(ws.locals[SPENT, agents])
    slot = find_slot(ws, key)
    found = ws.slots[slot]
    if found >= 0 and ws.cost[found] <= cost:
        return HOPELESS
    low = cost + _bound(ws, agents, triples, ceiling - cost)
    if low > ceiling:
        return low
    if found < 0:
        found = add_entry(ws, slot, key, cost, entry)
        if found < 0:
            return HOPELESS
    else:
        ws.cost[found] = cost
        ws.parent[found] = entry
    push(ws, max(bound, low), found, cost)
    return HOPELESS


@inlined_kernel
def _bound(ws: Workspace, agents: int, triples: bool, enough: int) -> int:
    """Least excess from the configuration just put together on; exact only up to `enough`."""
    option, values = ws.locals[OPTION], ws.locals[VALUES]
    for q in range(agents):
        for r in range(q):
            values[pair_row(r, q)] = as_int(ws.move_pair[pair_row(r, q), option[r], option[q]])
            if triples:
                for p in range(r):
                    row = triple_row(p, r, q)
                    values[PAIRS + row] = as_int(ws.move_triple[row, option[p], option[r], option[q]])
    return max(as_int(ws.locals[RETURNING, agents]), cover(values, agents, triples, enough))
