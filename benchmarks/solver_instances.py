"""The boards of the solver benchmark: drawn once by ``python -m benchmarks.solver_instances``, then read from the file.

Boards have an exact hole share and all agents in the largest component, which is the harder way to draw them. Beside
the four strata there are boards whose agents can each walk home alone but not together, and perfect mazes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parent / "instances" / "solver.jsonl"
SEED = 1000


@dataclass(frozen=True, slots=True)
class Stratum:
    name: str
    size: int
    agents: int
    hole_percent: int


STRATA = (Stratum("S1", 3, 2, 20), Stratum("S2", 5, 3, 30), Stratum("S3", 8, 4, 40), Stratum("S4", 10, 5, 50))
PER_STRATUM, UNSOLVABLE, MAZES = 250, 60, 100

Board = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]
Boards = Board
"""The same with a batch axis in front."""


def read() -> dict[str, list[Board]]:
    """Boards by set: S1..S4, unsolvable, mazes."""
    sets: dict[str, list[Board]] = {}
    for line in FILE.read_text().splitlines():
        row = json.loads(line)
        sets.setdefault(row["set"], []).append(board_of(row))
    return sets


def board_of(row: dict[str, Any]) -> Board:
    """The board of one row of a file."""
    size, bits = row["n"], int(row["holes"], 16)
    holes = np.array([bits >> cell & 1 for cell in range(size * size)], np.uint8).reshape(size, size)
    return holes, np.array(row["starts"], np.int64), np.array(row["goals"], np.int64)


def batches(boards: list[Board]) -> Iterator[Boards]:
    """Boards of one size and agent count together, as the solver takes them."""
    shapes = sorted({(len(board[0]), len(board[1])) for board in boards})
    for size, agents in shapes:
        chosen = [board for board in boards if (len(board[0]), len(board[1])) == (size, agents)]
        holes, starts, goals = (np.stack(field) for field in zip(*chosen, strict=True))
        yield holes, starts, goals


def draw(stratum: Stratum, generator: np.random.Generator, *, everywhere: bool = False) -> Board:
    """One board; starts and goals in the largest component, or `everywhere`: each goal in its start's component."""
    cells = stratum.size**2
    count = (stratum.hole_percent * cells + 50) // 100
    while True:
        holes = np.zeros(cells, np.uint8)
        holes[generator.choice(cells, count, replace=False)] = 1
        rooms = components(holes, stratum.size)
        free = [cell for room in rooms for cell in room] if everywhere else rooms[0]
        if len(free) <= stratum.agents:
            continue
        starts = generator.choice(free, stratum.agents, replace=False)
        for _ in range(20):
            if everywhere:
                home = {cell: room for room in rooms for cell in room}
                goals = np.array([generator.choice(home[int(start)]) for start in starts])
            else:
                goals = generator.choice(free, stratum.agents, replace=False)
            if len(set(goals.tolist())) == stratum.agents and not (starts == goals).any():
                return holes.reshape(stratum.size, stratum.size), starts.astype(np.int64), goals.astype(np.int64)


def components(holes: NDArray[np.uint8], size: int) -> list[list[int]]:
    """Cells of every component, the largest first."""
    rest = {cell for cell in range(size * size) if not holes[cell]}
    found = []
    while rest:
        component = [min(rest)]
        rest.discard(component[0])
        for cell in component:
            row, column = divmod(cell, size)
            for near, inside in (
                (cell - size, row > 0),
                (cell + size, row < size - 1),
                (cell - 1, column > 0),
                (cell + 1, column < size - 1),
            ):
                if inside and near in rest:
                    rest.discard(near)
                    component.append(near)
        found.append(sorted(component))
    return sorted(found, key=len, reverse=True)


def draw_maze(generator: np.random.Generator, agents: int) -> Board:
    """A perfect maze on a 10x10 board: rooms on even rows and columns, walls are holes, one way between any two."""
    holes = np.ones((10, 10), np.uint8)
    stack = [(0, 0)]
    holes[0, 0] = 0
    while stack:
        row, column = stack[-1]
        near = [(row - 2, column), (row + 2, column), (row, column - 2), (row, column + 2)]
        near = [(r, c) for r, c in near if 0 <= r < 9 and 0 <= c < 9 and holes[r, c]]
        if not near:
            stack.pop()
            continue
        r, c = near[generator.integers(len(near))]
        holes[r, c] = holes[(row + r) // 2, (column + c) // 2] = 0
        stack.append((r, c))
    free = np.flatnonzero(holes.reshape(-1) == 0)
    while True:
        starts, goals = generator.permutation(free)[:agents], generator.permutation(free)[:agents]
        if not (starts == goals).any():
            return holes, starts.astype(np.int64), goals.astype(np.int64)


def _unsolvable(generator: np.random.Generator) -> Iterator[Board]:
    """Boards without a plan on which every agent alone has one."""
    from solvers import Status, solve

    shapes = [Stratum("", 3, 2, 40), Stratum("", 4, 3, 50), Stratum("", 5, 4, 50), Stratum("", 10, 5, 60)]
    number = 0
    while True:
        board = draw(shapes[number % len(shapes)], generator)
        if solve(*board, want=()).status == Status.UNSOLVABLE:
            number += 1
            yield board


def _rows() -> Iterator[str]:
    for number, stratum in enumerate(STRATA):
        generator = np.random.default_rng(SEED + 10 * number)
        yield from (row_of(stratum.name, draw(stratum, generator)) for _ in range(PER_STRATUM))
    yield from (
        row_of("unsolvable", board) for board in islice(_unsolvable(np.random.default_rng(SEED + 90)), UNSOLVABLE)
    )
    generator = np.random.default_rng(SEED + 91)
    yield from (row_of("mazes", draw_maze(generator, 5)) for _ in range(MAZES))


def row_of(name: str, board: Board) -> str:
    """One line of the file."""
    holes, starts, goals = board
    bits = sum(int(hole) << cell for cell, hole in enumerate(holes.reshape(-1)))
    row = {"set": name, "n": len(holes), "holes": f"{bits:x}", "starts": starts.tolist(), "goals": goals.tolist()}
    return json.dumps(row, separators=(",", ":"))


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("\n".join(_rows()) + "\n")
    print(f"{sum(map(len, read().values()))} boards written to {FILE}")
