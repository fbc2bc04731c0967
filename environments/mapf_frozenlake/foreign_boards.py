"""Boards from elsewhere, as a fixed set: a JSON, JSONL or Parquet file, or a Hugging Face dataset folder on disk.

`Fields` says where a row keeps what. Every board is checked and solved here; labels of the file are only compared.

    python -m environments.mapf_frozenlake.foreign_boards FILE --field starts=agents[].start --field goals=agents[].goal
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from environments.base import Failure, FrozenSet, Labeller, Task, canonical_json, digest
from environments.mapf_frozenlake.board import START_SYMBOLS, Board
from environments.mapf_frozenlake.foreign_rows import ForeignBoardsError, at, read_rows
from environments.mapf_frozenlake.generator import LABELS
from environments.mapf_frozenlake.labeller import STATUS, InProcessLabeller
from environments.mapf_frozenlake.settings import LARGEST, SMALLEST, stratum_name


class Fields(BaseModel):
    """Where a row keeps a board. A path is keys joined by dots; ``key[]`` takes each entry of a list or object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    starts: str = Field(default="starts", description="path of the start cells, in the order of the agents")
    goals: str = Field(default="goals", description="path of the goal cells, in the same order")
    holes: str | None = Field(default="holes", description="path of the hole cells; left out where `grid` is given")
    size: str | None = Field(default="n", description="path of the side length; left out where `grid` is given")
    grid: str | None = Field(default=None, description="path of the rows of cells, texts or lists; it has the holes")
    hole: tuple[str, ...] = Field(default=("#", "H", "1"), description="how the grid spells a hole")
    order: Literal["row_column", "x_y"] = Field(default="row_column", description="how a cell is written as a pair")
    makespan: str | None = Field(default=None, description="path of the optimal makespan, to be compared")
    sum_of_costs: str | None = Field(default=None, description="path of the optimal sum of costs, to be compared")


def read_boards(path: Path | str, fields: Fields | None = None, labeller: Labeller | None = None) -> FrozenSet:
    """Every row as a labelled task, in the file's order, under one checksum over boards and labels.

    Raises ForeignBoardsError, which names the file, the row (from 1), the field and what is allowed.
    """
    path, fields = Path(path), fields or Fields()
    rows = read_rows(path)
    boards = [_board(where, row, fields) for where, row in rows]
    labels = (labeller or InProcessLabeller()).label([board.payload() for board in boards])
    payloads = []
    for (where, row), board, label in zip(rows, boards, labels, strict=True):
        payloads.append(canonical_json(board.payload() | _checked(where, row, label, fields)))
    tasks = tuple(
        Task("mapf_frozenlake", payload, stratum_name(board.n), split=path.stem, index=index)
        for index, (payload, board) in enumerate(zip(payloads, boards, strict=True))
    )
    return FrozenSet(path.stem, tasks, digest(payloads))


def _board(where: str, row: Mapping[str, Any], fields: Fields) -> Board:
    if fields.grid is not None:
        n, holes = _grid(where, at(where, row, "grid", fields.grid), fields.hole)
    elif fields.size is None or fields.holes is None:
        raise ForeignBoardsError("fields: give `grid`, or both `size` and `holes`")
    else:
        n = _size(where, at(where, row, "size", fields.size))
    if not SMALLEST <= n <= LARGEST:
        raise ForeignBoardsError(f"{where}: size = {n}; boards from {SMALLEST} to {LARGEST} are allowed")

    def cells(field: str, path: str) -> tuple[int, ...]:
        return _cells(where, field, at(where, row, field, path), n, fields.order)

    if fields.grid is None:
        holes = tuple(sorted(cells("holes", fields.holes or "")))
    board = Board(n, holes, cells("starts", fields.starts), cells("goals", fields.goals))
    if not 2 <= len(board.starts) <= len(START_SYMBOLS):
        raise ForeignBoardsError(
            f"{where}: starts has {len(board.starts)} agents; 2 to {len(START_SYMBOLS)} are allowed"
        )
    try:
        board.check()
    except ValueError as error:
        raise ForeignBoardsError(f"{where}: {error}") from None
    return board


def _size(where: str, value: Any) -> int:
    """The side length, from a number or a text such as ``5`` or ``5x5``."""
    if match := re.fullmatch(r"(\d{1,3})(?:x\1)?", str(value)):
        return int(match[1])
    raise ForeignBoardsError(f"{where}: size = {value!r:.40}; a whole number or a text such as 5x5 is allowed")


def _grid(where: str, grid: Any, hole: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    """(side, hole cells) of rows of cells; a text is a row per line."""
    rows = grid.split() if isinstance(grid, str) else grid
    if not isinstance(rows, list) or not rows:
        raise ForeignBoardsError(f"{where}: grid = {grid!r:.60} is not a list of rows")
    words = [word for row in rows for word in (row if isinstance(row, list | str) else [])]
    if any(not isinstance(row, list | str) or len(row) != len(rows) for row in rows):
        raise ForeignBoardsError(f"{where}: grid is not square: {len(rows)} rows of which some have other lengths")
    return len(rows), tuple(cell for cell, word in enumerate(words) if str(word) in hole)


def _cells(where: str, field: str, value: Any, n: int, order: str) -> tuple[int, ...]:
    """Cell numbers from a list of numbers (row-major) or pairs, or from an object of them (keys in order)."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=lambda key: (len(key), key))]
    if not isinstance(value, list):
        raise ForeignBoardsError(f"{where}: {field} = {value!r:.60} is not a list of cells")
    out = []
    for cell in value:
        pair = cell if isinstance(cell, list) else divmod(cell, n) if type(cell) is int else None
        if pair is None or len(pair) != 2 or any(type(part) is not int or not 0 <= part < n for part in pair):
            raise ForeignBoardsError(
                f"{where}: {field} has {cell!r:.40}; a cell is a number 0..{n * n - 1} or a pair of numbers 0..{n - 1}"
            )
        row, column = pair[::-1] if isinstance(cell, list) and order == "x_y" else pair
        out.append(row * n + column)
    return tuple(out)


def _checked(where: str, row: Mapping[str, Any], label: Mapping[str, Any] | Failure, fields: Fields) -> dict[str, Any]:
    """The labels, unless there is no plan or the file says otherwise."""
    if isinstance(label, Failure):
        raise ForeignBoardsError(f"{where}: no ground truth ({label.kind}): {label.message}")
    if label["status"] != STATUS[1]:
        raise ForeignBoardsError(f"{where}: the board is {label['status']}; leave it out")
    for name, path in (("makespan", fields.makespan), ("sum_of_costs", fields.sum_of_costs)):
        if path is not None and (said := at(where, row, name, path)) != label[name]:
            raise ForeignBoardsError(
                f"{where}: {name} = {said!r:.40}, the solver finds {label[name]}: the file counts in another way "
                "(states for steps, another objective), or the board was read wrongly; check `order`, or drop the field"
            )
    return {name: label[name] for name in LABELS}


def main(arguments: list[str] | None = None) -> int:
    """Read, print what there is, and with ``--write`` store the payloads, one a line. Exit status 1 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m environments.mapf_frozenlake.foreign_boards", description=__doc__)
    parser.add_argument("path", type=Path, help="file or dataset folder")
    parser.add_argument("--field", action="append", default=[], metavar="NAME=PATH", help="a field of the mapping")
    parser.add_argument("--write", type=Path, metavar="FILE", help="store the labelled boards as JSONL")
    chosen = parser.parse_args(arguments)
    try:
        pairs = (entry.partition("=") for entry in chosen.field)
        given: dict[str, Any] = {name: path or None for name, _, path in pairs}
        if isinstance(given.get("hole"), str):
            given["hole"] = tuple(given["hole"].split(","))
        found = read_boards(chosen.path, Fields(**given))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        print(f"--field: {problems}. Known are {', '.join(Fields.model_fields)}", file=sys.stderr)
        return 1
    except ForeignBoardsError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.write:
        scratch = chosen.write.with_name(f".{chosen.write.name}.{os.getpid()}")
        scratch.write_text("".join(task.payload + "\n" for task in found.tasks), "utf-8")
        os.replace(scratch, chosen.write)
    print(summary(found))
    return 0


def summary(found: FrozenSet) -> str:
    """Boards and waits by agents and size, and the checksum."""
    boards: Counter[tuple[int, int]] = Counter()
    waits: Counter[tuple[int, int]] = Counter()
    for task in found.tasks:
        data = json.loads(task.payload)
        cell = len(data["starts"]), data["n"]
        boards[cell] += 1
        waits[cell] += data["wait_makespan"]
    lines = [
        f"{agents} agents, {n}x{n}: {boards[agents, n]} boards, {waits[agents, n]} need a wait"
        for agents, n in sorted(boards)
    ]
    return "\n".join([*lines, f"{found.name}: {len(found.tasks)} boards, checksum {found.checksum}"])


if __name__ == "__main__":
    raise SystemExit(main())
