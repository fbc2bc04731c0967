"""The memory of one worker: one record with every array a kernel needs, allocated once and reused for all instances.

A record is passed to kernels as a single pointer with constant offsets; as a tuple of thirty arrays the same code
took three times as long to compile.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

CELLS = 100
AGENTS = 5
PAIRS = 10
HORIZON = 255
"""Longest plan kept, in steps."""
COSTS = 1024
"""Number of buckets of the open list: costs from here on are out of reach (and reported as undecided)."""
INF = 255
"""In uint8 tables: unreachable. Finite entries saturate at 254, which keeps every lower bound valid."""
CELL_BITS = 7
DONE_SHIFT = AGENTS * CELL_BITS
DEPTH_SHIFT = DONE_SHIFT + AGENTS
MOST_ENTRIES = 1 << 21
"""Room for configurations; with MOST_NODES it bounds what a search of any budget can do (about 115 MB if touched)."""
MOST_NODES = 1 << 22

# Workspace.counter
ENTRIES, NODES, FREE_NODE, SLOT_MASK, FULL = range(5)

Array = NDArray[Any]

SPLITS = 512
"""Room for nodes of the conflict-based search."""
MOMENTS = 64
"""Its horizon: times 0..63, one bit each."""


class Workspace:
    """What the fields hold. V is the number of cells in the agents' components, renumbered 0..V-1 row by row."""

    neighbours: Array  # [CELLS, 4] in action order, -1 where there is none
    masks: Array  # [CELLS, 2] the same as bit sets
    cell_of: Array  # [CELLS] compact id -> board cell
    id_of: Array  # [CELLS] board cell -> compact id, -1 outside
    queue: Array  # [CELLS]
    group_of: Array  # [AGENTS] the component's lowest agent
    start: Array  # [AGENTS] compact ids
    goal: Array  # [AGENTS]
    order: Array  # [AGENTS + 1, AGENTS] agents as a search moves them, per component; last row: subsets
    record: Array  # [AGENTS, 8] what is known of a component so far
    pair_of: Array  # [3, AGENTS, AGENTS] table row and the two strides of a pair of positions in the order
    locals: Array  # [16, 16] small rows of a running search
    counter: Array  # [8]
    dist: Array  # [AGENTS, CELLS] steps to the goal
    avoid: Array  # [AGENTS, AGENTS, CELLS] steps of agent i to its goal without entering agent j's goal
    pair_steps: Array  # [PAIRS, CELLS * CELLS] makespan of the pair alone, at a * V + b for agents i < j
    pair_excess: Array  # [PAIRS, CELLS * CELLS] cost of the pair alone above its two distances
    layers: Array  # [4, CELLS, 2] frontiers of the pair tables
    path: Array  # [2, AGENTS, HORIZON + 1] compact ids over time: plan by makespan, plan by sum of costs
    bucket: Array  # [COSTS] first node of a bucket
    key: Array  # [MOST_ENTRIES] configurations: cells and done mask
    cost: Array  # [MOST_ENTRIES] steps or excess so far
    parent: Array  # [MOST_ENTRIES]
    closed: Array  # [MOST_ENTRIES]
    slots: Array  # [2 * MOST_ENTRIES] hash table over key
    node_entry: Array  # [MOST_NODES] open nodes: the configuration they leave
    node_pack: Array  # [MOST_NODES] the moves already chosen
    node_next: Array  # [MOST_NODES] next in bucket
    reach: Array  # [MOMENTS, 2] cells an agent can be on at a time; after pruning, on a shortest path
    barred: Array  # [MOMENTS, 2] cells it may not be on
    barred_moves: Array  # [MOMENTS, 3] (from, to, time of arrival)
    split: Array  # [SPLITS, 6] constraint of a node: kind, agent, cell, next cell, time, parent node
    clash: Array  # [SPLITS, 6] conflict to resolve next: kind, agents, cell, next cell, time
    rank: Array  # [SPLITS] what to open first
    walk: Array  # [SPLITS, AGENTS, MOMENTS] cells over time
    length: Array  # [SPLITS, AGENTS] arrivals
    narrow: Array  # [SPLITS, AGENTS] bit t: all shortest paths share one cell at time t


_FIELDS = [
    ("neighbours", np.int64, (CELLS, 4)),
    ("masks", np.uint64, (CELLS, 2)),
    ("cell_of", np.int64, (CELLS,)),
    ("id_of", np.int64, (CELLS,)),
    ("queue", np.int64, (CELLS,)),
    ("group_of", np.int64, (AGENTS,)),
    ("start", np.int64, (AGENTS,)),
    ("goal", np.int64, (AGENTS,)),
    ("order", np.int64, (AGENTS + 1, AGENTS)),
    ("record", np.int64, (AGENTS, 8)),
    ("pair_of", np.int64, (3, AGENTS, AGENTS)),
    ("locals", np.int64, (16, 16)),
    ("counter", np.int64, (8,)),
    ("dist", np.uint8, (AGENTS, CELLS)),
    ("avoid", np.uint8, (AGENTS, AGENTS, CELLS)),
    ("pair_steps", np.uint8, (PAIRS, CELLS * CELLS)),
    ("pair_excess", np.uint8, (PAIRS, CELLS * CELLS)),
    ("layers", np.uint64, (4, CELLS, 2)),
    ("path", np.int16, (2, AGENTS, HORIZON + 1)),
    ("bucket", np.int32, (COSTS,)),
    ("key", np.int64, (MOST_ENTRIES,)),
    ("cost", np.int32, (MOST_ENTRIES,)),
    ("parent", np.int32, (MOST_ENTRIES,)),
    ("closed", np.uint8, (MOST_ENTRIES,)),
    ("slots", np.int32, (2 * MOST_ENTRIES,)),
    ("node_entry", np.int32, (MOST_NODES,)),
    ("node_pack", np.int64, (MOST_NODES,)),
    ("node_next", np.int32, (MOST_NODES,)),
    ("reach", np.uint64, (MOMENTS, 2)),
    ("barred", np.uint64, (MOMENTS, 2)),
    ("barred_moves", np.int64, (MOMENTS, 3)),
    ("split", np.int64, (SPLITS, 6)),
    ("clash", np.int64, (SPLITS, 6)),
    ("rank", np.int64, (SPLITS,)),
    ("walk", np.uint8, (SPLITS, AGENTS, MOMENTS)),
    ("length", np.int64, (SPLITS, AGENTS)),
    ("narrow", np.uint64, (SPLITS, AGENTS)),
]


def allocate() -> Workspace:
    """A fresh workspace; memory that no search touches is never backed by pages."""
    return cast(Workspace, np.empty(1, np.dtype(_FIELDS, align=True))[0])
