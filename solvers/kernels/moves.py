"""The moves from one configuration of the joint search: those of each agent, then which of two and of three agents fit.

What two agents can do depends on their two cells alone and comes back with many configurations, so it is worked out
once: the moves that do not collide, by how much they raise the pair's bound.
"""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bounds import (
    APART,
    HOPELESS,
    OPPOSITE,
    OPPOSITE_TRIPLE,
    pair_excess,
    triple_excess,
    triple_row,
)
from solvers.kernels.pairs import pair_row
from solvers.kernels.store import cells_of
from solvers.kernels.workspace import (
    AGENTS,
    CELL_BITS,
    DONE_SHIFT,
    INF,
    LEVELS,
    MOVES,
    PAIR_STATES,
    PAIRS,
    QUESTION,
    SIZE,
    Array,
    Word,
    Workspace,
)

# rows of Workspace.locals
OLD, NEW, WAS_DONE, DONE, SPENT, RETURNING, OPTION, BEFORE, VALUES, KEY = range(10)
DONE_MASK = (1 << AGENTS) - 1


@kernel
def list_moves(
    ws: Workspace, team: Array, agents: int, waits: bool, triples: bool, key: int, room: int
) -> tuple[bool, int]:
    """(can there be a successor, the least excess of those that take more than `room`).

    Fills ws.fits and, with `triples`, ws.fits_two: the moves of two and of three that neither collide nor take more.
    """
    for q in range(agents):
        ws.locals[OLD, q] = cells_of(key, q)
        ws.locals[WAS_DONE, q] = (key >> (DONE_SHIFT + q)) & 1
        _list_own(ws, q, team[q], waits)
        ws.untried[0, q] = (1 << ws.moves[q]) - 1
    question = ws.counter[QUESTION] + (1 if waits else 0)
    for q in range(agents):
        for r in range(q):
            _recall_pair(ws, team, r, q, question)
    if triples:
        look_up_triples(ws, team, agents, ws.locals[OLD], ws.locals[WAS_DONE], ws.locals[BEFORE])
    some, later = _fit_pairs(ws, agents, triples, room)
    if some and triples:
        some, low = _fit_triples(ws, team, agents, room)
        later = min(later, low)
    return some, later


@kernel
def look_up_triples(ws: Workspace, team: Array, agents: int, cells: Array, done: Array, values: Array) -> None:
    """Write the excess of all triples on these cells."""
    for q in range(agents):
        for r in range(q):
            for p in range(r):
                values[PAIRS + triple_row(p, r, q)] = triple_excess(ws, team, cells, done, p, r, q)


@inlined_kernel
def fitting(pairs: Word, choice: int) -> int:
    """The moves of the second agent that fit this one of the first."""
    return as_int((np.uint64(pairs) >> np.uint64(MOVES * choice)) & np.uint64((1 << MOVES) - 1))


@kernel
def _list_own(ws: Workspace, q: int, i: int, waits: bool) -> None:
    """The moves of the agent i at position q: away, stay, towards; the open list takes the last ones first."""
    count = 0
    v, was_done = ws.locals[OLD, q], ws.locals[WAS_DONE, q]
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


@inlined_kernel
def _recall_pair(ws: Workspace, team: Array, r: int, q: int, question: int) -> None:
    """Find what is known of the pair where it stands, or work it out."""
    size = ws.frame[SIZE]
    first = size if ws.locals[WAS_DONE, r] else ws.locals[OLD, r]
    second = size if ws.locals[WAS_DONE, q] else ws.locals[OLD, q]
    state = pair_row(team[r], team[q]) * PAIR_STATES + first * (size + 1) + second
    row = pair_row(r, q)
    ws.pair_state[row] = state
    if ws.pair_known[state] != question:
        ws.pair_known[state] = question
        _learn_pair(ws, team[r], team[q], r, q, state)
    ws.locals[BEFORE, row] = as_int(ws.pair_base[state])


@kernel
def _learn_pair(ws: Workspace, i: int, j: int, r: int, q: int, state: int) -> None:
    """The moves of two agents that do not collide, by how much they raise the bound, and the excess that they leave."""
    old, was = ws.locals[OLD], ws.locals[WAS_DONE]
    base = pair_excess(ws, i, j, old[r], old[q], was[r], was[q])
    ws.pair_base[state] = base
    moves = ws.pair_moves[state]
    moves[:] = np.uint64(0)
    for a in range(ws.moves[r]):
        u, u_done = ws.move_cell[r, a], ws.move_done[r, a]
        for b in range(ws.moves[q]):
            v = ws.move_cell[q, b]
            if v == u or (v == old[r] and u == old[q]):
                continue
            value = pair_excess(ws, i, j, u, v, u_done, ws.move_done[q, b])
            if value < HOPELESS:
                rise = ws.move_cost[r, a] + ws.move_cost[q, b] + value - base
                moves[max(0, min(rise, LEVELS - 1))] |= np.uint64(1) << np.uint64(MOVES * a + b)
                ws.pair_after[state, MOVES * a + b] = value
    levels = 0
    for level in range(LEVELS):
        levels |= (1 if moves[level] != 0 else 0) << level
        if level > 0:
            moves[level] |= moves[level - 1]
    ws.pair_levels[state] = levels


@kernel
def _fit_pairs(ws: Workspace, agents: int, triples: bool, room: int) -> tuple[bool, int]:
    """Fill ws.fits; (has each pair some, least excess beyond `room`).

    A pair that moves and the excess of those outside it, where they stand, are apart, so they add up.
    """
    before = ws.locals[BEFORE]
    later = HOPELESS
    some = True
    for row in range(agents * (agents - 1) // 2):
        rest = before[OPPOSITE_TRIPLE[row]] if triples and agents == AGENTS else 0
        for other in range(3):
            rest = max(rest, before[APART[agents, row, other]])
        state, low = ws.pair_state[row], rest + before[row]
        # The last level holds all that are dearer as well.
        level = min(room - low, LEVELS - 1)
        dearer = as_int(ws.pair_levels[state]) >> max(0, level + 1)
        if dearer != 0:
            later = min(later, low + max(0, level + 1) + trailing_zeros(np.uint64(dearer)))
        fits = ws.pair_moves[state, level] if level >= 0 else np.uint64(0)
        ws.fits[row] = fits
        some &= fits != 0
    return some, later


@kernel
def _fit_triples(ws: Workspace, team: Array, agents: int, room: int) -> tuple[bool, int]:
    """The same for three agents and ws.fits_two; two moves that leave a third agent none are taken from ws.fits.

    A triple that moves and the excess of the other two of five, where they stand, are apart, so they add up.
    """
    before = ws.locals[BEFORE]
    later = HOPELESS
    for r in range(agents):
        for q in range(r):
            for p in range(q):
                row = triple_row(p, q, r)
                left = room - (before[OPPOSITE[row]] if agents == AGENTS else 0)
                later = min(later, room - left + _fit_triple(ws, team, p, q, r, left))
                if ws.fits[pair_row(p, q)] == 0:
                    return False, later
    return True, later


@inlined_kernel
def _fit_triple(ws: Workspace, team: Array, p: int, q: int, r: int, room: int) -> int:
    """The moves of positions p < q < r that fit; the least excess of the others."""
    new, done = ws.locals[NEW], ws.locals[DONE]
    row, table = triple_row(p, q, r), triple_row(team[p], team[q], team[r])
    size = ws.frame[SIZE]
    first_fits, second_fits = ws.fits[pair_row(p, r)], ws.fits[pair_row(q, r)]
    later = HOPELESS
    kept = ws.fits[pair_row(p, q)]
    rest = kept
    while rest != 0:
        pair = trailing_zeros(rest)
        rest &= rest - np.uint64(1)
        a, b = pair // MOVES, pair % MOVES
        thirds = fitting(first_fits, a) & fitting(second_fits, b)
        fits = 0
        if thirds != 0:
            new[p], new[q] = ws.move_cell[p, a], ws.move_cell[q, b]
            done[p], done[q] = ws.move_done[p, a], ws.move_done[q, b]
            some_done = done[p] | done[q]
            spent = ws.move_cost[p, a] + ws.move_cost[q, b]
            base = (new[p] * size + new[q]) * size
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
                    ws.move_triple[row, pair, c] = value
        ws.fits_two[row, pair] = fits
        if fits == 0:
            kept &= ~(np.uint64(1) << np.uint64(pair))
    ws.fits[pair_row(p, q)] = kept
    return later
