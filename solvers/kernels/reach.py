"""Solvability alone: breadth-first from both ends over configurations, each visited once. The side that runs dry first
is the proof that there is no plan; time plays no part, so this ends where a search for an optimum would not."""

from __future__ import annotations

from solvers.compiling import kernel
from solvers.kernels.store import add_entry, cells_of, clear_store, find_slot
from solvers.kernels.workspace import CELL_BITS, FULL, Array, Workspace

SEPARATE, MEET, TOO_MANY = 0, 1, 2
SIDE_SHIFT = 40

# rows of Workspace.locals
OLD, NEW, CHOICE = range(3)


@kernel
def meet(ws: Workspace, order: Array, agents: int, budget: int) -> tuple[int, int]:
    """(SEPARATE | MEET | TOO_MANY, expansions) for starts and goals of the agents in `order`.

    A move is legal backwards when it is legal forwards, so both sides use the same expansion.
    """
    clear_store(ws)
    ends = ws.locals[4]
    for side in range(2):
        key = side << SIDE_SHIFT
        for q in range(agents):
            v = ws.start[order[q]] if side == 0 else ws.goal[order[q]]
            key |= v << (CELL_BITS * q)
        ends[side] = add_entry(ws, find_slot(ws, key), key, 0, -1)
        ends[2 + side] = ends[side]
    if ws.key[ends[0]] == ws.key[ends[1]] ^ (1 << SIDE_SHIFT):
        return MEET, 0
    expansions = 0
    while expansions < budget and not ws.counter[FULL]:
        for side in range(2):
            if ends[side] < 0:
                return SEPARATE, expansions
            expansions += 1
            if _expand(ws, ends, order, agents, ends[side], side):
                return MEET, expansions
            ends[side] = ws.parent[ends[side]]
    return TOO_MANY, expansions


@kernel
def _expand(ws: Workspace, ends: Array, order: Array, agents: int, entry: int, side: int) -> bool:
    """Queue the unseen successors of one configuration behind ends[2 + side]; has the other side seen one of them?

    Here `parent` is the link to the next configuration in the side's queue.
    """
    key = ws.key[entry]
    for q in range(agents):
        ws.locals[OLD, q] = cells_of(key, q)
    depth = 0
    ws.locals[CHOICE, 0] = -1
    while depth >= 0:
        ws.locals[CHOICE, depth] += 1
        action = ws.locals[CHOICE, depth]
        if action > 4:
            depth -= 1
            continue
        old = ws.locals[OLD, depth]
        new = old if action == 4 else ws.neighbours[old, action]
        if new < 0 or _collides(ws, depth, old, new):
            continue
        ws.locals[NEW, depth] = new
        if depth + 1 < agents:
            depth += 1
            ws.locals[CHOICE, depth] = -1
            continue
        found = 0
        for q in range(agents):
            found |= ws.locals[NEW, q] << (CELL_BITS * q)
        if ws.slots[find_slot(ws, found | ((1 - side) << SIDE_SHIFT))] >= 0:
            return True
        found |= side << SIDE_SHIFT
        slot = find_slot(ws, found)
        if ws.slots[slot] < 0:
            added = add_entry(ws, slot, found, 0, -1)
            if added < 0:
                return False
            ws.parent[ends[2 + side]] = added
            ends[2 + side] = added
    return False


@kernel
def _collides(ws: Workspace, depth: int, old: int, new: int) -> bool:
    collision = False
    for q in range(depth):
        collision |= ws.locals[NEW, q] == new or (ws.locals[NEW, q] == old and ws.locals[OLD, q] == new)
    return collision
