"""The open list (buckets, last in first out) and the table of configurations of the joint searches."""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel
from solvers.kernels.workspace import ENTRIES, FREE_NODE, FULL, NODES, SLOT_MASK, Array, Workspace

FIRST_SLOTS = 1 << 8


@kernel
def clear_store(ws: Workspace) -> None:
    """Start with a small hash table: it grows with the search, so an easy instance stays in the first-level cache."""
    ws.counter[ENTRIES] = 0
    ws.counter[FULL] = 0
    ws.counter[SLOT_MASK] = FIRST_SLOTS - 1
    ws.slots[:FIRST_SLOTS] = -1


@kernel
def clear_open(ws: Workspace) -> None:
    """Empty the open list."""
    ws.counter[NODES] = 0
    ws.counter[FREE_NODE] = -1
    ws.bucket[:] = -1


@kernel
def _hash(key: int) -> int:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return as_int(mixed >> np.uint64(24))


@kernel
def find_slot(ws: Workspace, key: int) -> int:
    """Slot that holds the key's entry, or the empty slot where it belongs."""
    mask = ws.counter[SLOT_MASK]
    slot: int = _hash(key) & mask
    while ws.slots[slot] >= 0 and ws.key[ws.slots[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@kernel
def add_entry(ws: Workspace, slot: int, key: int, cost: int, parent: int) -> int:
    """Entry number of a new configuration; -1 (and the counter FULL) when there is no room."""
    entry: int = ws.counter[ENTRIES]
    if entry >= len(ws.key):
        ws.counter[FULL] = 1
        return -1
    ws.counter[ENTRIES] = entry + 1
    ws.slots[slot] = entry
    ws.key[entry] = key
    ws.cost[entry] = cost
    ws.parent[entry] = parent
    if 2 * (entry + 1) > ws.counter[SLOT_MASK] and 4 * (ws.counter[SLOT_MASK] + 1) <= len(ws.slots):
        _grow(ws)
    return entry


@kernel
def _grow(ws: Workspace) -> None:
    wider = 4 * (ws.counter[SLOT_MASK] + 1)
    ws.counter[SLOT_MASK] = wider - 1
    ws.slots[:wider] = -1
    for entry in range(ws.counter[ENTRIES]):
        ws.slots[find_slot(ws, ws.key[entry])] = entry


@kernel
def push(ws: Workspace, rank: int, entry: int, pack: int) -> None:
    """Open a node in bucket `rank`; a full store sets the counter FULL."""
    node = ws.counter[FREE_NODE]
    if node >= 0:
        ws.counter[FREE_NODE] = ws.node_next[node]
    else:
        node = ws.counter[NODES]
        if node >= len(ws.node_entry):
            ws.counter[FULL] = 1
            return
        ws.counter[NODES] = node + 1
    ws.node_entry[node] = entry
    ws.node_pack[node] = pack
    ws.node_next[node] = ws.bucket[rank]
    ws.bucket[rank] = node


@kernel
def pop(ws: Workspace, rank: int) -> int:
    """Take the newest node of a bucket; its fields stay readable until the next push. -1 when empty."""
    node: int = ws.bucket[rank]
    if node >= 0:
        ws.bucket[rank] = ws.node_next[node]
        ws.node_next[node] = ws.counter[FREE_NODE]
        ws.counter[FREE_NODE] = node
    return node


@kernel
def cells_of(key: int, position: int) -> int:
    """Cell of the agent at a position of a packed configuration."""
    return (key >> (7 * position)) & 127


@kernel
def read_path(ws: Workspace, entry: int, team: Array, agents: int, out: Array) -> int:
    """Write the cells over time that lead to `entry` into out[agent, step]; the steps, -1 if too many."""
    steps = 0
    e = entry
    while ws.parent[e] >= 0:
        e = ws.parent[e]
        steps += 1
    if steps >= out.shape[1]:
        return -1
    e = entry
    for step in range(steps, -1, -1):
        for q in range(agents):
            out[team[q], step] = cells_of(ws.key[e], q)
        e = ws.parent[e]
    return steps
