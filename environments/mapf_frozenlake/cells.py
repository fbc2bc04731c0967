"""Fixed sets for three to five agents, built cell by cell: a cell is an agent count and a map size.

Every cell has 50 boards at each wait ratio 25, 50 and 75 % (13, 25 and 38 that need a wait), hole ratios taking turns
where the cell has such boards. In a cell's order the three wait ratios alternate, so every prefix is a fair sample.
"""

from __future__ import annotations

import base64
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from environments.base import Labeller, stream
from environments.mapf_frozenlake.board import Board, CanonicalForm, canonical_form, reserved_for
from environments.mapf_frozenlake.candidates import draw
from environments.mapf_frozenlake.labeller import UNDECIDED
from environments.mapf_frozenlake.settings import LARGEST, SMALLEST, MapfRow, hole_count
from environments.mapf_frozenlake.yields import Cell, CellYield, YieldTable, judged, label_candidates

CELLS = tuple((agents, n) for agents in (3, 4, 5) for n in range(agents, LARGEST + 1))
"""(agents, size) of the benchmark: 3 agents from 3x3, 4 from 4x4, 5 from 5x5."""
ALL_CELLS = tuple((agents, n) for agents in (3, 4, 5) for n in range(SMALLEST, LARGEST + 1))
"""Those of validation and held-out: every size a run can have."""
SET_CELLS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "validation": ALL_CELLS,
    "benchmark": CELLS,
    "held_out": ALL_CELLS,
}
SEEDS: Mapping[str, int] = {"validation": 1, "benchmark": 2, "held_out": 3}
"""Committed: with another seed these are other boards."""

WAIT_RATIOS = (25, 50, 75)
PART = 50
"""Boards of a cell at one wait ratio."""
BOARDS = PART * len(WAIT_RATIOS)
HOLE_RATIOS = next(spec.grid for spec in MapfRow.specs() if spec.name == "hole_ratio")

SMALL = 4
"""Up to this size a kind (size, holes, agents, wait) may have few boards: all are solved and counted as they come."""
SHARE = (3, 100)
"""The most a set takes of those counted: three sets together under 10 %. Above, the digest's 10 % hold by numbers."""
NODE_BUDGET = 10**9
"""Expansions per search of a rebuild: only the solver's memory bounds it, so the sets depend on no budget."""
CHUNK = 1_000
PATIENCE = 12
"""Times the expected number of candidates between two finds after which a source is given up."""

Labels = tuple[int, int, int, int]
"""Makespan, sum of costs, wait_T, wait_SOC."""


class NotEnoughBoards(ValueError):
    """A cell cannot be filled."""


class UndecidedBoard(RuntimeError):
    """A fixed set must not depend on what the solver gives up, so a rebuild stops at a board that it leaves open."""


# ------------------------------------------------------------------------------------------------------------- packing


def pack(board: Board, labels: Labels) -> str:
    """A labelled board as base-85 text: fixed-width fields, most significant first (n and agents in the first byte)."""
    agents = len(board.starts)
    value = sum(1 << cell for cell in board.holes)
    for cell in (*board.starts, *board.goals):
        value = value << 7 | cell
    for label, width in zip(labels, _LABEL_BITS, strict=True):
        if not 0 <= label < 1 << width:
            raise ValueError(f"label {label} does not fit in {width} bits")
        value = value << width | label
    body = value.to_bytes(_body_bytes(board.n, agents), "big")
    return base64.b85encode(bytes([board.n << 4 | agents]) + body).decode("ascii")


def unpack(text: str) -> tuple[Board, Labels]:
    """What ``pack`` packed. Raises ValueError for anything else."""
    head, *body = base64.b85decode(text)
    n, agents = head >> 4, head & 15
    if len(body) != _body_bytes(n, agents):
        raise ValueError(f"{text!r} has {len(body)} bytes for {agents} agents on {n}x{n}")
    value = int.from_bytes(body, "big")
    labels, cells = [], []
    for width in reversed(_LABEL_BITS):
        labels.append(value & (1 << width) - 1)
        value >>= width
    for _ in range(2 * agents):
        cells.append(value & 127)
        value >>= 7
    cells.reverse()
    board = Board(n, tuple(c for c in range(n * n) if value >> c & 1), tuple(cells[:agents]), tuple(cells[agents:]))
    board.check()
    wait_soc, wait_t, cost, makespan = labels
    return board, (makespan, cost, wait_t, wait_soc)


_LABEL_BITS = (8, 10, 1, 1)


def _body_bytes(n: int, agents: int) -> int:
    return -(-(n * n + 14 * agents + sum(_LABEL_BITS)) // 8)


# ------------------------------------------------------------------------------------------------------------ building


class Source:
    """Boards of one cell and hole count that belong to a set, in stream order, those with and without a wait apart."""

    def __init__(self, name: str, cell: Cell, labeller: Labeller, measured: CellYield) -> None:
        self._name, self._cell, self._labeller, self._yield = name, cell, labeller, measured
        key = stream("mapf_frozenlake frozen", name, SEEDS[name], cell.agents, cell.n, cell.holes).getrandbits(64)
        self._keys = np.full(CHUNK, key, dtype=np.uint64)
        self._drawn = 0
        self._seen: tuple[set[CanonicalForm], set[CanonicalForm]] = (set(), set())
        self._found: tuple[deque[str], deque[str]] = (deque(), deque())
        self._taken = [0, 0]

    @property
    def taken(self) -> int:
        """Boards handed out."""
        return sum(self._taken)

    def take(self, wait: bool) -> str | None:
        """The next packed board of this kind; None once the set has its share, or none comes for long."""
        part, whole = SHARE
        idle, patience = 0, max(CHUNK, round(PATIENCE * whole / part / self._yield.rate(wait)))
        while idle < patience:
            small = self._cell.n <= SMALL
            if self._found[wait] and (not small or (self._taken[wait] + 1) * whole <= part * len(self._seen[wait])):
                self._taken[wait] += 1
                return self._found[wait].popleft()
            found, seen = len(self._found[wait]), len(self._seen[wait])
            self._draw()
            more = len(self._found[wait]) > found or (found and len(self._seen[wait]) > seen)
            idle = 0 if more else idle + CHUNK
        return None

    def _draw(self) -> None:
        """Draw a chunk; on large boards solve only what the set may hold."""
        cell = self._cell
        numbers = np.arange(self._drawn, self._drawn + CHUNK, dtype=np.uint64)
        self._drawn += CHUNK
        candidates = draw(cell.n, cell.holes, cell.agents, self._keys, numbers)
        boards = {index: candidates.board(index) for index in np.flatnonzero(candidates.usable).tolist()}
        own = {index for index, board in boards.items() if reserved_for(board) == self._name}
        if cell.n > SMALL:
            usable = np.zeros(CHUNK, dtype=np.bool_)
            usable[list(own)] = True
            candidates = replace(candidates, usable=usable)
        labels = label_candidates(self._labeller, candidates)
        for index in np.flatnonzero(labels.status == UNDECIDED).tolist():
            raise UndecidedBoard(f"undecided: {boards[index]}; a fixed set takes no chances")
        kinds = judged(labels, cell.objective)
        for index in np.flatnonzero(kinds >= 0).tolist():
            wait, form = int(kinds[index]), canonical_form(boards[index])
            if form not in self._seen[wait]:
                self._seen[wait].add(form)
                if index in own:
                    columns = (labels.makespan, labels.sum_of_costs, labels.wait_makespan, labels.wait_sum_of_costs)
                    makespan, cost, wait_t, wait_soc = (int(column[index]) for column in columns)
                    self._found[wait].append(pack(boards[index], (makespan, cost, wait_t, wait_soc)))


def waiting(wait_ratio: int) -> int:
    """Boards of a part that need a wait: the ratio of 50, halves rounded up."""
    return (2 * wait_ratio * PART + 100) // 200


def build_cell(name: str, agents: int, n: int, labeller: Labeller, table: YieldTable) -> list[str]:
    """The 150 packed boards of a cell in the set's order. Raises NotEnoughBoards or UndecidedBoard."""
    sources: dict[bool, list[Source]] = {False: [], True: []}
    for holes in sorted({hole_count(n, ratio) for ratio in HOLE_RATIOS}):
        cell = Cell(n, holes, agents, "makespan")
        source = Source(name, cell, labeller, table.of(cell))
        for wait, able in sources.items():
            if table.of(cell).feasible(wait):
                able.append(source)
    parts = [_part(name, agents, n, waiting(ratio), sources) for ratio in WAIT_RATIOS]
    return [packed for trio in zip(*parts, strict=True) for packed in trio]


def _part(name: str, agents: int, n: int, waits: int, sources: Mapping[bool, list[Source]]) -> Iterator[str]:
    """The boards of one wait ratio, the two kinds spread evenly; the hole count with the fewest boards has its turn."""
    rows: dict[bool, deque[str]] = {True: deque(), False: deque()}
    used: Counter[Source] = Counter()
    for wait, wanted in ((True, waits), (False, PART - waits)):
        able = sources[wait]
        while len(rows[wait]) < wanted:
            if not able:
                kind = "with" if wait else "without"
                raise NotEnoughBoards(
                    f"{name}, {agents} agents, {n}x{n}: {len(rows[wait])} of {wanted} boards {kind} a necessary wait"
                )
            source = min(able, key=lambda source: (used[source], source.taken))
            packed = source.take(wait)
            if packed is None:
                able.remove(source)
            else:
                used[source] += 1
                rows[wait].append(packed)
    for slot in range(PART):
        yield rows[(slot + 1) * waits // PART > slot * waits // PART].popleft()


def build(name: str, labeller: Labeller) -> Iterator[str]:
    """The packed boards of a whole set, cell by cell."""
    table = YieldTable(labeller)
    for agents, n in SET_CELLS[name]:
        yield from build_cell(name, agents, n, labeller, table)


def payload(packed: str) -> dict[str, Any]:
    """The task payload of a packed board."""
    board, (makespan, cost, wait_t, wait_soc) = unpack(packed)
    return board.payload() | {
        "makespan": makespan,
        "sum_of_costs": cost,
        "wait_makespan": bool(wait_t),
        "wait_sum_of_costs": bool(wait_soc),
    }
