"""Least sum of costs by A* over configurations, with partial expansion: only the successors that keep within a ceiling
little above the current bound are opened, and the configuration comes back when the bound has risen to its next ones
(after Yoshizumi, Miura and Ishida 2000).

Costs are counted as excess above the sum of distances. An agent may stop at its goal for good (*done*): it blocks the
cell at no cost.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bounds import HOPELESS, cover, pair_excess, triple_row
from solvers.kernels.moves import (
    DONE,
    DONE_MASK,
    KEY,
    NEW,
    OPTION,
    RETURNING,
    SPENT,
    VALUES,
    fitting,
    list_moves,
    look_up_triples,
)
from solvers.kernels.pairs import pair_row
from solvers.kernels.store import add_entry, clear_open, clear_store, find_slot, pop, push
from solvers.kernels.workspace import (
    CANCEL,
    CELL_BITS,
    COSTS,
    DONE_SHIFT,
    ENTRIES,
    FULL,
    MOST_ENTRIES,
    MOVES,
    PAIRS,
    Array,
    Workspace,
)

EXHAUSTED, FOUND, CAPPED = 0, 1, 2

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
    most = COSTS - 1. CAPPED gives a lower bound. `triples`: the tables of three agents are filled up to `most`.
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
        values = ws.locals[VALUES]
        for q in range(agents):
            for r in range(q):
                values[pair_row(r, q)] = pair_excess(ws, team[r], team[q], cells[r], cells[q], done[r], done[q])
        if triples:
            look_up_triples(ws, team, agents, cells, done, values)
        bound = max(least, cover(values, agents, triples, COSTS))
        if bound <= most:
            start_key = key | (chosen << DONE_SHIFT)
            push(ws, bound, add_entry(ws, find_slot(ws, start_key), start_key, 0, -1), 0)
        if chosen == 0:
            break
        chosen = (chosen - 1) & home


@kernel
def _expand(
    ws: Workspace, team: Array, agents: int, waits: bool, triples: bool, bound: int, ceiling: int, entry: int
) -> int:
    """Open all successors within the ceiling; the least bound of the others.

    The moves of two and of three agents that fit are listed first; then the agents move one after another, each choice
    thinning out the moves of those that come later.
    """
    option, cost = ws.locals[OPTION], as_int(ws.cost[entry])
    some, later = list_moves(ws, team, agents, waits, triples, ws.key[entry], ceiling - cost)
    later += cost
    ws.locals[SPENT, 0], ws.locals[RETURNING, 0], ws.locals[KEY, 0] = cost, 0, 0
    q = 0 if some else -1
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
        left = as_int(ws.untried[q, r]) & fitting(ws.fits[pair_row(q, r)], option[q])
        if triples:
            for p in range(q):
                left &= as_int(ws.fits_two[triple_row(p, q, r), MOVES * option[p] + option[q]])
        if left == 0:
            return False
        ws.untried[q + 1, r] = left
    return True


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
            row, choice = pair_row(r, q), MOVES * option[r] + option[q]
            values[row] = as_int(ws.pair_after[ws.pair_state[row], choice])
            if triples:
                for p in range(r):
                    triple = triple_row(p, r, q)
                    values[PAIRS + triple] = as_int(ws.move_triple[triple, MOVES * option[p] + option[r], option[q]])
    return max(as_int(ws.locals[RETURNING, agents]), cover(values, agents, triples, enough))
