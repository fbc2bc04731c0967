"""The MovingAI benchmark's files: `.map` (terrain) and `.scen` (starts and goals), format version 1.

The format is Sturtevant's (2012, *Benchmarks for Grid-Based Pathfinding*, IEEE TCIAIG 4). `.`, `G` (ground) and `S`
(swamp, which its documentation lets one enter from ground) are passable; trees, water and all else are holes. The
readers take maps of any size; only `instance` has the limits of the solver. x counts columns, y rows, both from 0 in
the upper left corner. The optimal lengths are those of one agent with diagonal moves: read, and not used here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from solvers.boards import BoardError, Instance
from solvers.instances import MAX_AGENTS, MAX_SIZE, MIN_AGENTS, MIN_SIZE

PASSABLE = ".GS"
FIELDS = ("bucket", "map", "map width", "map height", "start x", "start y", "goal x", "goal y", "optimal length")

_COUNT = re.compile(r"[0-9]{1,9}")
_LENGTH = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a scenario; start and goal are (row, column) inside the height x width map."""

    bucket: int
    map: str
    height: int
    width: int
    start: tuple[int, int]
    goal: tuple[int, int]
    optimal_length: float


def read_map(path: str | Path) -> NDArray[np.bool_]:
    """Holes bool [height, width] of a `.map` file; BoardError names the file and the line that is wrong."""
    lines = _lines(path, "map")
    height, width = _header(lines, path)
    rows = lines[4 : 4 + height]
    if len(rows) < height or any(line.strip() for line in lines[4 + height :]):
        raise BoardError(
            f"map {path}: {len(lines) - 4} rows are not allowed after height {height}; correct height, or the file"
        )
    for number, row in enumerate(rows, 5):
        if len(row) != width:
            raise BoardError(
                f"map {path}, line {number}: {len(row)} cells are not allowed after width {width}; "
                "the file is cut off, or width is wrong"
            )
    codes = np.frombuffer("".join(rows).encode("ascii"), np.uint8).reshape(height, width)
    strange = np.argwhere((codes <= 32) | (codes == 127))
    if len(strange):
        row, column = strange[0].tolist()
        raise BoardError(
            f"map {path}, line {row + 5}: {rows[row][column]!r} is not allowed; terrain is a visible letter"
        )
    return ~np.isin(codes, list(PASSABLE.encode()))


def read_scenario(path: str | Path) -> tuple[Entry, ...]:
    """The entries of a `.scen` file in order; BoardError names the file and the line that is wrong."""
    lines = _lines(path, "scenario")
    if not lines or not re.fullmatch(r"version 1(\.0)?", lines[0].strip()):
        raise BoardError(f"scenario {path}, line 1: {_first(lines)} is not allowed; it must be 'version 1'")
    entries = tuple(_entry(f"scenario {path}, line {i}", line) for i, line in enumerate(lines[1:], 2) if line.strip())
    if not entries:
        raise BoardError(f"scenario {path}: no entry after the version; it needs a line per agent")
    return entries


def instance(map_path: str | Path, scenario_path: str | Path, agents: int) -> Instance:
    """The first `agents` entries of a scenario as one question.

    A map that is not square, or smaller than 3x3, is padded with holes on the right and below, which changes no answer.
    BoardError if map and scenario disagree or the solver's limits (10x10, five agents) are exceeded.
    """
    holes, entries = read_map(map_path), read_scenario(scenario_path)
    height, width = holes.shape
    if max(height, width) > MAX_SIZE:
        raise BoardError(
            f"map {map_path}: {height}x{width} is too large; the solver takes square boards of "
            f"{MIN_SIZE}..{MAX_SIZE} rows (smaller maps are padded with holes), so give a smaller map"
        )
    if not MIN_AGENTS <= agents <= min(MAX_AGENTS, len(entries)):
        raise BoardError(
            f"agents: {agents} is not allowed; give {MIN_AGENTS}..{min(MAX_AGENTS, len(entries))} "
            f"(the scenario has {len(entries)} entries, the solver takes {MAX_AGENTS})"
        )
    chosen = entries[:agents]
    for number, entry in enumerate(chosen, 1):
        if (entry.height, entry.width) != (height, width):
            raise BoardError(
                f"scenario {scenario_path}, entry {number}: map height and width {entry.height}x{entry.width} are not "
                f"those of map {map_path}, {height}x{width}; give the map that the scenario was made for"
            )
    size = max(height, width, MIN_SIZE)
    board = np.ones((size, size), bool)
    board[:height, :width] = holes
    starts, goals = (_cells([getattr(entry, field) for entry in chosen], size) for field in ("start", "goal"))
    return Instance(tuple(map(tuple, board.tolist())), starts, goals)


def _cells(places: Sequence[tuple[int, int]], size: int) -> tuple[int, ...]:
    return tuple(row * size + column for row, column in places)


def _lines(path: str | Path, kind: str) -> list[str]:
    """The lines of a text file without their ends, and without the empty one after the last."""
    try:
        text = Path(path).read_bytes().decode("ascii")
    except OSError as error:
        raise BoardError(f"{kind} {path}: cannot be read ({error.strerror}); give a MovingAI {kind} file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BoardError(f"{kind} {path}, line {line}: not ASCII text; give a MovingAI {kind} file") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _header(lines: list[str], path: str | Path) -> tuple[int, int]:
    sizes = []
    for number, wanted in enumerate(("type octile", "height", "width", "map"), 1):
        words = lines[number - 1].split() if number <= len(lines) else []
        sized = wanted in ("height", "width")
        good = len(words) == 2 and words[0] == wanted and _COUNT.fullmatch(words[1]) and int(words[1]) > 0
        if not (good if sized else words == wanted.split()):
            allowed = f"{wanted} and a positive integer" if sized else repr(wanted)
            raise BoardError(
                f"map {path}, line {number}: {_first(lines[number - 1 :])} is not allowed; it must be {allowed}"
            )
        if sized:
            sizes.append(int(words[1]))
    height, width = sizes
    return height, width


def _entry(where: str, line: str) -> Entry:
    words = line.split("\t")
    if len(words) != len(FIELDS):
        raise BoardError(
            f"{where}: {len(words)} fields are not allowed; give {len(FIELDS)}, apart by tabs: " + ", ".join(FIELDS)
        )
    numbers = []
    for field, word in zip(FIELDS, words):
        if field in ("map", "optimal length"):
            continue
        if not _COUNT.fullmatch(word):
            raise BoardError(f"{where}: {field} {_first([word])} is not allowed; it must be an integer of 0 or more")
        numbers.append(int(word))
    bucket, width, height, start_x, start_y, goal_x, goal_y = numbers
    for field, value, limit in zip(FIELDS[4:8], numbers[3:], (width, height, width, height)):
        if value >= limit:
            raise BoardError(f"{where}: {field} {value} is not allowed; it must be 0..{limit - 1} on this map")
    length = float(words[8]) if _LENGTH.fullmatch(words[8].strip()) else math.inf
    if math.isinf(length):
        raise BoardError(
            f"{where}: optimal length {_first([words[8]])} is not allowed; it must be a number of 0 or more"
        )
    return Entry(bucket, words[1], height, width, (start_y, start_x), (goal_y, goal_x), length)


def _first(lines: Sequence[str]) -> str:
    """A quoted, shortened first line, or a word for its absence."""
    return repr(lines[0][:40]) if lines else "the end of the file"
