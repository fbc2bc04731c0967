"""The memory of one worker: one record with every array a kernel needs, allocated once and reused for all instances.

A record is passed to kernels as a single pointer with constant offsets; as a tuple of thirty arrays the same code
took three times as long to compile.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

CELLS = 100
SPOTS = 128
AGENTS = 5
PAIRS = 10
TRIPLES = 10
MOVES = 8
"""Four neighbours, one of them perhaps the goal and then to stop there or to pass, and staying: at most six. With
eight, the choices of two agents are the bits of a word."""
PAIR_STATES = (CELLS + 1) ** 2
"""Where two agents can stand, on a cell or stopped for good."""
LEVELS = 8
"""By so much less one do two moves raise a pair's bound at most, or more than can be told apart."""
HORIZON = 255
"""Longest plan kept, in steps."""
COSTS = 1024
"""Number of buckets of the open list: costs from here on are out of reach (and reported as undecided)."""
INF = 255
"""In uint8 tables: unreachable. Finite entries saturate at 254, which keeps every lower bound valid."""
CELL_BITS = 7
DONE_SHIFT = AGENTS * CELL_BITS
MOST_ENTRIES = 1 << 23
"""Room for configurations; with MOST_NODES it bounds what a search of any budget can do (about 500 MB if touched)."""
MOST_NODES = 1 << 24

# Workspace.counter
ENTRIES, NODES, FREE_NODE, SLOT_MASK, FULL, CANCEL, QUESTION = range(7)
# Workspace.frame
WIDTH, WIDE, SIZE = range(3)

Array = NDArray[Any]
Word: TypeAlias = Any
"""Half a set of spots: an unsigned 64-bit integer to numba."""

SPLITS = 1024
"""Room for nodes of the conflict-based search."""
MOMENTS = 64
"""Its horizon: times 0..63, one bit each."""


class Workspace:
    """What the fields hold. The V cells of the agents' components are numbered 0..V-1 row by row; in bit sets a cell
    stands at its *spot*, a fixed number of spots after the cell above it, so that a set moves by shifts."""

    frame: Array  # [4] spots from a row to the next, do the spots need a second word, V
    mask: Array  # [8] spots on which moves may land, by action; two words each
    number: Array  # [CELLS] place on the board -> cell, -1 elsewhere
    spot: Array  # [CELLS] cell -> spot
    cell: Array  # [SPOTS] spot -> cell, anything where there is none
    neighbours: Array  # [CELLS, 4] in action order, -1 where there is none
    near: Array  # [CELLS, 2] the same as bit sets
    ways: Array  # [CELLS, 6] and as lists: how many, the cell itself, its neighbours
    group_of: Array  # [AGENTS] by number in the question: the component's lowest agent
    start: Array  # [AGENTS] cells
    goal: Array  # [AGENTS]
    name: Array  # [AGENTS] number in the question: inside, agents are sorted by component and falling distance
    team: Array  # [AGENTS + 1, AGENTS] agents of each component, ascending; last row: a part of one
    record: Array  # [AGENTS, 12] what is known of a component so far
    locals: Array  # [16, 24] small rows of a running search
    counter: Array  # [8]
    dist: Array  # [AGENTS, CELLS] steps to the goal
    avoid: Array  # [AGENTS, AGENTS, AGENTS, CELLS] steps of agent i to its goal around the goals of j and k
    from_start: Array  # [AGENTS, CELLS] steps from the agent's start
    within: Array  # [AGENTS, CELLS, 2] spots at most so many steps from the agent's start
    pair_steps: Array  # [PAIRS, CELLS * CELLS] makespan of the pair alone, at a * V + b for agents i < j
    pair_excess: Array  # [PAIRS * (AGENTS + 1), CELLS * CELLS] cost of the pair alone above its two distances; then
    # the same with the goal of agent k barred
    triple_steps: Array  # [TRIPLES, CELLS ** 3] makespan of three agents alone, as far as it was asked for
    triple_excess: Array  # [TRIPLES, CELLS ** 3] cost of three agents alone above their distances
    gone: Array  # [6, 2] where the third agent cannot have been when the second one comes by this of its ways
    fronts: Array  # [5, CELLS ** 2, 2] frontiers of the triple tables, the last one all that was seen
    rows: (
        Array  # [5, CELLS, 2] which rows of a frontier may have states: spots of the second agent by cell of the first
    )
    layers: Array  # [4, CELLS, 2] frontiers of the pair tables
    deadline: Array  # [AGENTS] by position in the team: latest arrival
    trail: Array  # [HORIZON + 1, AGENTS] cells over time of a running decision
    option: Array  # [HORIZON + 1, AGENTS] which moves are still to be tried, as a bit set
    settled: Array  # [HORIZON + 1, AGENTS] has the agent stopped for good
    path: Array  # [2, AGENTS, HORIZON + 1] cells over time: plan by makespan, plan by sum of costs
    steps: Array  # [2, AGENTS] arrival of each agent in these
    moves: Array  # [AGENTS] how many moves each position of a joint search has
    move_cell: Array  # [AGENTS, MOVES] where they lead
    move_done: Array  # [AGENTS, MOVES] does the agent stop there for good
    move_cost: Array  # [AGENTS, MOVES] excess they take
    move_return: Array  # [AGENTS, MOVES] and at least take later: on the goal, but not to stop there
    move_key: Array  # [AGENTS, MOVES] their part of the configuration
    pair_state: Array  # [PAIRS] where each pair of positions stands, as an index of what follows
    pair_known: Array  # [PAIRS * PAIR_STATES] the question for which it is known; states at a * (V + 1) + b, V: stopped
    pair_base: Array  # [PAIRS * PAIR_STATES] excess of the pair
    pair_moves: Array  # [PAIRS * PAIR_STATES, LEVELS] moves that raise it by at most so much, bit MOVES * a + b
    pair_levels: Array  # [PAIRS * PAIR_STATES] which rises there are, as a bit set
    pair_after: Array  # [PAIRS * PAIR_STATES, MOVES ** 2] excess after two moves
    fits: Array  # [PAIRS] moves of two positions that fit, bit MOVES * a + b
    fits_two: Array  # [TRIPLES, MOVES ** 2] which moves of the third one fit two that fit each other
    move_triple: Array  # [TRIPLES, MOVES ** 2, MOVES] excess of three after a move of each that fits
    untried: Array  # [AGENTS, AGENTS] moves of the second position that fit the choices before the first, as a bit set
    bucket: Array  # [COSTS] first node of a bucket
    key: Array  # [MOST_ENTRIES] configurations: cells and done mask
    cost: Array  # [MOST_ENTRIES] excess so far, or time
    parent: Array  # [MOST_ENTRIES]
    slots: Array  # [2 * MOST_ENTRIES] hash table over key
    node_entry: Array  # [MOST_NODES] open nodes: the configuration they leave
    node_pack: Array  # [MOST_NODES] the moves already chosen
    node_next: Array  # [MOST_NODES] next in bucket
    reach: Array  # [MOMENTS, 2] spots an agent can be on at a time; after pruning, on a shortest path
    barred: Array  # [MOMENTS, 2] spots it may not be on
    barred_moves: Array  # [SPLITS, 3] (from, to, time of arrival)
    split: Array  # [SPLITS, 6] constraint of a node: kind, agent, cell, next cell, time, parent node
    clash: Array  # [SPLITS, PAIRS] most urgent conflict of a pair, packed
    clashes: Array  # [SPLITS, PAIRS] number of conflicts of a pair
    rank: Array  # [SPLITS] what to open first
    walk: Array  # [SPLITS, AGENTS, MOMENTS] cells over time
    length: Array  # [SPLITS, AGENTS] arrivals
    narrow: Array  # [SPLITS, AGENTS] bit t: all shortest paths share one cell at time t


_FIELDS = [
    ("frame", np.int64, (4,)),
    ("mask", np.uint64, (8,)),
    ("number", np.int8, (CELLS,)),
    ("spot", np.int8, (CELLS,)),
    ("cell", np.int8, (SPOTS,)),
    ("neighbours", np.int8, (CELLS, 4)),
    ("near", np.uint64, (CELLS, 2)),
    ("ways", np.int64, (CELLS, 6)),
    ("group_of", np.int64, (AGENTS,)),
    ("start", np.int64, (AGENTS,)),
    ("goal", np.int64, (AGENTS,)),
    ("name", np.int64, (AGENTS,)),
    ("team", np.int64, (AGENTS + 1, AGENTS)),
    ("record", np.int64, (AGENTS, 12)),
    ("locals", np.int64, (16, 24)),
    ("counter", np.int64, (8,)),
    ("dist", np.uint8, (AGENTS, CELLS)),
    ("avoid", np.uint8, (AGENTS, AGENTS, AGENTS, CELLS)),
    ("from_start", np.uint8, (AGENTS, CELLS)),
    ("within", np.uint64, (AGENTS, CELLS, 2)),
    ("pair_steps", np.uint8, (PAIRS, CELLS * CELLS)),
    ("pair_excess", np.uint8, (PAIRS * (AGENTS + 1), CELLS * CELLS)),
    ("triple_steps", np.uint8, (TRIPLES, CELLS**3)),
    ("triple_excess", np.uint8, (TRIPLES, CELLS**3)),
    ("gone", np.uint64, (6, 2)),
    ("fronts", np.uint64, (5, CELLS * CELLS, 2)),
    ("rows", np.uint64, (5, CELLS, 2)),
    ("layers", np.uint64, (4, CELLS, 2)),
    ("deadline", np.int64, (AGENTS,)),
    ("trail", np.int8, (HORIZON + 1, AGENTS)),
    ("option", np.int16, (HORIZON + 1, AGENTS)),
    ("settled", np.int8, (HORIZON + 1, AGENTS)),
    ("path", np.int8, (2, AGENTS, HORIZON + 1)),
    ("steps", np.int64, (2, AGENTS)),
    ("moves", np.int64, (AGENTS,)),
    ("move_cell", np.int64, (AGENTS, MOVES)),
    ("move_done", np.int64, (AGENTS, MOVES)),
    ("move_cost", np.int64, (AGENTS, MOVES)),
    ("move_return", np.int64, (AGENTS, MOVES)),
    ("move_key", np.int64, (AGENTS, MOVES)),
    ("pair_state", np.int64, (PAIRS,)),
    ("pair_known", np.int64, (PAIRS * PAIR_STATES,)),
    ("pair_base", np.int32, (PAIRS * PAIR_STATES,)),
    ("pair_moves", np.uint64, (PAIRS * PAIR_STATES, LEVELS)),
    ("pair_levels", np.uint8, (PAIRS * PAIR_STATES,)),
    ("pair_after", np.uint8, (PAIRS * PAIR_STATES, MOVES * MOVES)),
    ("fits", np.uint64, (PAIRS,)),
    ("fits_two", np.uint8, (TRIPLES, MOVES * MOVES)),
    ("move_triple", np.int32, (TRIPLES, MOVES * MOVES, MOVES)),
    ("untried", np.int64, (AGENTS, AGENTS)),
    ("bucket", np.int32, (COSTS,)),
    ("key", np.int64, (MOST_ENTRIES,)),
    ("cost", np.int32, (MOST_ENTRIES,)),
    ("parent", np.int32, (MOST_ENTRIES,)),
    ("slots", np.int32, (2 * MOST_ENTRIES,)),
    ("node_entry", np.int32, (MOST_NODES,)),
    ("node_pack", np.int64, (MOST_NODES,)),
    ("node_next", np.int32, (MOST_NODES,)),
    ("reach", np.uint64, (MOMENTS, 2)),
    ("barred", np.uint64, (MOMENTS, 2)),
    ("barred_moves", np.int64, (SPLITS, 3)),
    ("split", np.int64, (SPLITS, 6)),
    ("clash", np.int64, (SPLITS, PAIRS)),
    ("clashes", np.int64, (SPLITS, PAIRS)),
    ("rank", np.int64, (SPLITS,)),
    ("walk", np.int8, (SPLITS, AGENTS, MOMENTS)),
    ("length", np.int64, (SPLITS, AGENTS)),
    ("narrow", np.uint64, (SPLITS, AGENTS)),
]


def allocate() -> Workspace:
    """A fresh workspace; memory that no search touches is never backed by pages."""
    return cast(Workspace, np.zeros(1, np.dtype(_FIELDS, align=True))[0])
