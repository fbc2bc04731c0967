"""Is there a plan in which every agent has arrived by its deadline? The agents of a step move one after another,
towards their goals first.

`decide` goes depth-first: it finds a plan, where there is one, after a handful of configurations. `sweep` goes breadth
first: where there is none, it meets every configuration once, at its earliest, while a depth-first search meets most of
them late first and again a hundred times. With deadlines at the agents' distances the plans are straight ones; with one
deadline for all they have that makespan.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bounds import triple_row
from solvers.kernels.pairs import pair_row
from solvers.kernels.store import add_entry, cells_of, clear_store, find_slot
from solvers.kernels.workspace import CANCEL, CELL_BITS, DONE_SHIFT, ENTRIES, FULL, HORIZON, SIZE, Array, Workspace

REFUTED, FOUND, CAPPED = 0, 1, 2
NO_TABLES, PAIRS_ONLY, UP_TO_TRIPLES = 0, 1, 2
TIME_SHIFT = 40
STAY, PASS = 4, 9
"""Moves in the order they are tried: four towards the goal, stay, four away, one onto the goal without stopping."""


@kernel
def decide(ws: Workspace, team: Array, agents: int, waits: bool, tables: int, limit: int) -> tuple[int, int, int]:
    """(FOUND | REFUTED | CAPPED, steps of the plan, configurations) for the deadlines in ws.deadline.

    The plan stands in ws.trail. Without `waits` an agent moves in every step until it stops for good. `tables`:
    PAIRS_ONLY where ws.pair_steps of these agents is filled, UP_TO_TRIPLES where ws.triple_steps is as well, and the
    deadline is one for all. `limit` bounds the configurations.
    """
    clear_store(ws)
    trail, settled = ws.trail, ws.settled
    size = ws.frame[SIZE]
    away = False
    for q in range(agents):
        trail[0, q] = ws.start[team[q]]
        settled[0, q] = 0
        away |= trail[0, q] != ws.goal[team[q]]
        if ws.dist[team[q], trail[0, q]] > ws.deadline[q]:
            return REFUTED, 0, 0
        if ws.deadline[q] >= HORIZON:
            return CAPPED, 0, 0
    if not away:
        return FOUND, 0, 0
    count, t, q = 0, 0, 0
    _list_moves(ws, team, waits, 0, 0)
    while True:
        if not _next_move(ws, team, waits, tables, size, t, q):
            q -= 1
            if q < 0:
                t, q = t - 1, agents - 1
                if t < 0:
                    return (CAPPED if ws.counter[FULL] else REFUTED), 0, count
            continue
        q += 1
        if q < agents:
            _list_moves(ws, team, waits, t, q)
            continue
        q = agents - 1
        if _arrived(ws, team, agents, waits, t + 1):
            return FOUND, t + 1, count
        if count >= limit or ws.counter[FULL] or ws.counter[CANCEL]:
            return CAPPED, 0, count
        if _enter(ws, agents, waits, t + 1):
            count += 1
            t, q = t + 1, 0
            _list_moves(ws, team, waits, t, 0)


@kernel
def sweep(ws: Workspace, team: Array, agents: int, tables: int, limit: int) -> tuple[int, int, int]:
    """(FOUND | REFUTED | CAPPED, entry of the goal, configurations) for the deadlines in ws.deadline, waits allowed.

    The plan found is a shortest one; with a deadline that no plan exceeds, a refutation is a proof of unsolvability.
    """
    clear_store(ws)
    size = ws.frame[SIZE]
    key = 0
    for q in range(agents):
        key |= ws.start[team[q]] << (CELL_BITS * q)
    add_entry(ws, find_slot(ws, key), key, 0, -1)
    entry = 0
    while entry < ws.counter[ENTRIES]:
        if entry >= limit or ws.counter[FULL] or ws.counter[CANCEL]:
            return CAPPED, -1, entry
        t = ws.cost[entry]
        away = False
        for q in range(agents):
            ws.trail[t, q] = cells_of(ws.key[entry], q)
            away |= ws.trail[t, q] != ws.goal[team[q]]
        if not away:
            return FOUND, entry, entry
        q = 0
        _list_moves(ws, team, True, t, 0)
        while q >= 0:
            if not _next_move(ws, team, True, tables, size, t, q):
                q -= 1
            elif q + 1 < agents:
                q += 1
                _list_moves(ws, team, True, t, q)
            else:
                key = 0
                for p in range(agents):
                    key |= ws.trail[t + 1, p] << (CELL_BITS * p)
                slot = find_slot(ws, key)
                if ws.slots[slot] < 0:
                    add_entry(ws, slot, key, t + 1, entry)
        entry += 1
    return REFUTED, -1, entry


@inlined_kernel
def _list_moves(ws: Workspace, team: Array, waits: bool, t: int, q: int) -> None:
    """Note in ws.option the moves of step t that let the agent at position q meet its deadline, as a bit set."""
    i = team[q]
    v = ws.trail[t, q]
    left = max(0, ws.deadline[q] - t - 1)
    distance = as_int(ws.dist[i, v])
    if not waits and ws.settled[t, q]:
        ws.option[t, q] = 1 << STAY
        return
    near, nearer = 0, 0
    for action in range(4):
        u = as_int(ws.neighbours[v, action])
        inside = int(u >= 0)
        near |= inside << action
        nearer |= (inside & int(as_int(ws.dist[i, max(u, 0)]) < distance)) << action
    moves = nearer
    # Without waits, only an agent that starts on its goal may stay, and then for good.
    if (waits and distance <= left) or (t == 0 and distance == 0):
        moves |= 1 << STAY
    if left > distance:
        moves |= (near & ~nearer) << (STAY + 1)
    if not waits and distance == 1 and left >= 2:
        moves |= 1 << PASS
    ws.option[t, q] = moves


@inlined_kernel
def _next_move(ws: Workspace, team: Array, waits: bool, tables: int, size: int, t: int, q: int) -> bool:
    """Give the agent at position q the next of its moves of step t that hits nobody who moved before."""
    i = team[q]
    v = as_int(ws.trail[t, q])
    left = max(0, ws.deadline[q] - t - 1)
    moves = as_int(ws.option[t, q])
    while moves != 0:
        move = trailing_zeros(np.uint64(moves))
        moves &= moves - 1
        if move == STAY:
            u = v
        elif move == PASS:
            u = as_int(ws.goal[i])
        else:
            u = as_int(ws.neighbours[v, move if move < STAY else move - STAY - 1])
        if not _hits(ws, team, tables, size, t, q, v, u, left):
            ws.option[t, q] = moves
            ws.trail[t + 1, q] = u
            # Onto the goal by a move towards it is to stop there; PASS is not to.
            ws.settled[t + 1, q] = (move < STAY and u == ws.goal[i]) or (move == STAY and not waits)
            return True
    return False


@inlined_kernel
def _hits(ws: Workspace, team: Array, tables: int, size: int, t: int, q: int, v: int, u: int, left: int) -> bool:
    """Does a move collide with the agents that moved before, or leave a pair too little time?"""
    for r in range(q):
        w = ws.trail[t + 1, r]
        if w == u or (w == v and ws.trail[t, r] == u):
            return True
        if tables != NO_TABLES:
            row = pair_row(team[r], team[q])
            if ws.pair_steps[row, w * size + u] > max(left, ws.deadline[r] - t - 1):
                return True
        if tables == UP_TO_TRIPLES:
            for p in range(r):
                row = triple_row(team[p], team[r], team[q])
                if ws.triple_steps[row, (ws.trail[t + 1, p] * size + w) * size + u] > left:
                    return True
    return False


@inlined_kernel
def _arrived(ws: Workspace, team: Array, agents: int, waits: bool, t: int) -> bool:
    away = False
    for q in range(agents):
        away |= ws.trail[t, q] != ws.goal[team[q]] or not (waits or ws.settled[t, q])
    return not away


@inlined_kernel
def _enter(ws: Workspace, agents: int, waits: bool, t: int) -> bool:
    """Is the configuration of step t new, or with waits (which let it start over) earlier than before?"""
    key = 0
    for q in range(agents):
        key |= ws.trail[t, q] << (CELL_BITS * q)
    if not waits:
        for q in range(agents):
            key |= ws.settled[t, q] << (DONE_SHIFT + q)
        key |= t << TIME_SHIFT
    slot = find_slot(ws, key)
    entry = ws.slots[slot]
    if entry < 0:
        return add_entry(ws, slot, key, t, -1) >= 0
    if not waits or ws.cost[entry] <= t:
        return False
    ws.cost[entry] = t
    return True
