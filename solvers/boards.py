"""Boards as text and as JSON: one instance, its readers and its writers. No search and no arrays here.

Text is one row per line, cells apart by blanks: `.` free, `#` hole, `1`..`5` start of an agent, `a`..`e` its goal, and
both for a cell that is both (`1b`; `1a` when an agent starts on its goal). If no row has a blank in it, every character
is a cell. JSON is an object with `holes` (rows of 0 and 1, or hole cells with `n`), `starts` and `goals` (cells or
[row, column] pairs, one form per list), and maybe an `id`. Cells are row-major, rows and columns counted from 0.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from solvers.instances import MAX_AGENTS, MAX_SIZE, MIN_AGENTS, MIN_SIZE

MAX_BYTES = 65_536
"""A longer text is no board: keeps the memory of a reader bounded whatever a pipe brings."""

KEYS = ("holes", "starts", "goals", "n", "id")
STARTS, GOALS = "12345", "abcde"

_WORD = re.compile(f"([{STARTS}]?)([{GOALS}]?)")
_WORDS = ". (free), # (hole), 1..5 (start of an agent), a..e (its goal), or start and goal as in 1b"
_EXAMPLE = '{"holes": [[0, 1, 0], [0, 0, 0], [0, 0, 0]], "starts": [0], "goals": [8]}'

Rows = tuple[tuple[bool, ...], ...]


class BoardError(ValueError):
    """A board that cannot be read; the message is one line and all that a person needs."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One well-formed question: holes[row][column], starts and goals as row-major cells by agent.

    BoardError unless the board is square, of 3..10 rows, with 1..5 agents on distinct free cells inside it.
    """

    holes: Rows
    starts: tuple[int, ...]
    goals: tuple[int, ...]
    id: str | int | None = None

    def __post_init__(self) -> None:
        _check_square(self.holes)
        if not MIN_AGENTS <= len(self.starts) <= MAX_AGENTS:
            raise BoardError(f"starts: {len(self.starts)} agents are not allowed; give {MIN_AGENTS}..{MAX_AGENTS}")
        if len(self.goals) != len(self.starts):
            raise BoardError(
                f"goals: {len(self.goals)} for {len(self.starts)} starts is not allowed; give one goal per start"
            )
        _check_free("starts", self.starts, self.holes)
        _check_free("goals", self.goals, self.holes)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k): board size and agent count, which the boards of one batch share."""
        return len(self.holes), len(self.starts)


def from_bytes(data: bytes) -> Instance:
    """One board, text or JSON by its first character."""
    text = decoded(data)
    return from_json(text) if text.lstrip().startswith(("{", "[")) else from_text(text)


def from_text(text: str) -> Instance:
    """A board drawn as text; errors count lines and cells of a line from 1, as editors do."""
    rows = _text_rows(text)
    starts: dict[int, int] = {}
    goals: dict[int, int] = {}
    for row, (line, words) in enumerate(rows):
        if len(words) != len(rows):
            raise BoardError(
                f"line {line}: {len(words)} cells are not allowed in a board of {len(rows)} rows; boards are square "
                "(without blanks every character is a cell: put blanks between cells if one is like 1b)"
            )
        for column, word in enumerate(words):
            match = _WORD.fullmatch(word)
            for symbols, found, symbol in zip((STARTS, GOALS), (starts, goals), match.groups() if match else ()):
                if not symbol:
                    continue
                if symbols.index(symbol) in found:
                    raise BoardError(f"line {line}: {symbol} is there twice; every start and every goal occurs once")
                found[symbols.index(symbol)] = row * len(rows) + column
    agents = range(max((*starts, *goals), default=-1) + 1)
    if not agents:
        raise BoardError("starts: the board has no agent; write 1 where one starts and a where it must go")
    for agent in agents:
        for kind, symbols, found in (("start", STARTS, starts), ("goal", GOALS, goals)):
            if agent not in found:
                raise BoardError(
                    f"{kind}s: agent {agent + 1} has no {kind}; agents 1..{len(agents)} need one each, "
                    f"so write {symbols[agent]} on a cell"
                )
    holes = tuple(tuple(word == "#" for word in words) for _, words in rows)
    return Instance(holes, tuple(starts[a] for a in agents), tuple(goals[a] for a in agents))


def from_json(text: str) -> Instance:
    """A board from the text of one JSON object."""
    try:
        record = _DECODER.decode(text)
    except BoardError:
        raise
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text.strip() else ""
        raise BoardError(
            f"{line}column {error.colno}: not JSON ({error.msg}); give an object like {_EXAMPLE}"
        ) from None
    except RecursionError:
        raise BoardError(f"JSON nested too deeply is not allowed; give an object like {_EXAMPLE}") from None
    except ValueError:
        raise BoardError("a number has too many digits; cells are small integers") from None
    if type(record) is not dict:
        raise BoardError(f"{_shown(record)} is not a board; give one object per board, like {_EXAMPLE}")
    return _from_record(record)


def read_json_lines(lines: Iterable[bytes], first: int = 1) -> Iterator[tuple[int, Instance | BoardError]]:
    """(line number, board or what is wrong with it) of every line that isn't blank; the first line is `first`."""
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                yield number, from_json(decoded(line))
            except BoardError as error:
                yield number, error


def to_text(instance: Instance) -> str:
    """The board as `from_text` reads it, columns aligned; an `id` has no place in it."""
    n = len(instance.holes)
    words = ["#" if hole else "" for row in instance.holes for hole in row]
    for symbols, cells in ((STARTS, instance.starts), (GOALS, instance.goals)):
        for symbol, cell in zip(symbols, cells):
            words[cell] += symbol
    width = max(map(len, words))
    rows = (words[first : first + n] for first in range(0, n * n, n))
    return "\n".join(" ".join((word or ".").ljust(width) for word in row).rstrip() for row in rows) + "\n"


def to_json(instance: Instance) -> str:
    """The board as one line that `from_json` reads."""
    record: dict[str, Any] = {} if instance.id is None else {"id": instance.id}
    record["holes"] = [[int(hole) for hole in row] for row in instance.holes]
    record |= {"starts": instance.starts, "goals": instance.goals}
    return json.dumps(record)


def decoded(data: bytes) -> str:
    """UTF-8 text of at most MAX_BYTES, without the mark some editors put in front."""
    if len(data) > MAX_BYTES:
        raise BoardError(f"the board is longer than {MAX_BYTES} bytes; give one board as text or JSON, or JSON lines")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        where = f"line {line}: " if b"\n" in data.strip() else ""
        raise BoardError(f"{where}byte 0x{byte:02x} is not UTF-8 text; give a board as text or JSON") from None


def _text_rows(text: str) -> list[tuple[int, list[str]]]:
    """(line number, words) of each row: known words, a sane number of rows."""
    rows = [(number, line.split()) for number, line in enumerate(text.split("\n"), 1)]
    while rows and not rows[-1][1]:
        rows.pop()
    while rows and not rows[0][1]:
        rows.pop(0)
    if not rows:
        raise BoardError("the input is empty; give a board as text or JSON")
    if all(len(words) <= 1 for _, words in rows):
        rows = [(number, list("".join(words))) for number, words in rows]
    for number, words in rows:
        if not words:
            raise BoardError(f"line {number}: a blank line inside a board; text is one board, many go as JSON lines")
        for column, word in enumerate(words, 1):
            if word not in (".", "#") and not _WORD.fullmatch(word):
                raise BoardError(f"line {number}, cell {column}: {_shown(word)} is not allowed; write {_WORDS}")
    _check_size(len(rows))
    return rows


def _from_record(record: dict[str, Any]) -> Instance:
    for key in record:
        if key not in KEYS:
            near = difflib.get_close_matches(key[:40], KEYS, n=1, cutoff=0)[0]
            raise BoardError(f"unknown key {_shown(key)}; did you mean {near}? Allowed: {', '.join(KEYS)}")
    for key in ("holes", "starts", "goals"):
        if key not in record:
            raise BoardError(f"{key}: missing; a board needs holes, starts and goals, as in {_EXAMPLE}")
    holes = _holes(record)
    starts, goals = (_cells(field, record[field], len(holes)) for field in ("starts", "goals"))
    name = record.get("id")
    if "id" in record and type(name) not in (str, int):
        raise BoardError(f"id: {_shown(name)} is not allowed; give a string or an integer, or leave it out")
    return Instance(holes, starts, goals, name)


def _holes(record: dict[str, Any]) -> Rows:
    value, size = record["holes"], record.get("n")
    if "n" in record:
        if type(size) is not int:
            raise BoardError(f"n: {_shown(size)} is not allowed; give the number of rows, an integer")
        _check_size(size)
    if type(value) is not list:
        raise BoardError(f"holes: {_shown(value)} is not allowed; give rows of 0 and 1, or hole cells together with n")
    if value and type(value[0]) is list:
        rows = tuple(_row(row, cells) for row, cells in enumerate(value))
        _check_square(rows)
        if "n" in record and size != len(rows):
            raise BoardError(f"n: {size} is not allowed with {len(rows)} rows of holes; make them agree or drop n")
        return rows
    if size is None:
        raise BoardError("n: missing; holes given as cells need the number of rows n")
    cells = set(_cells("holes", value, size))
    if len(cells) != len(value):
        raise BoardError("holes: a cell is there twice; give each hole once, or rows of 0 and 1")
    return tuple(tuple(row * size + column in cells for column in range(size)) for row in range(size))


def _row(row: int, cells: Any) -> tuple[bool, ...]:
    if type(cells) is not list:
        raise BoardError(f"holes: {_shown(cells)} as row {row} is not allowed; every row is a list of 0 and 1")
    if set(map(type, cells)) - {int} or cells.count(0) + cells.count(1) != len(cells):
        column = next(c for c, cell in enumerate(cells) if type(cell) is not int or not 0 <= cell <= 1)
        raise BoardError(
            f"holes: {_shown(cells[column])} at row {row}, column {column} is not allowed; "
            "write 1 for a hole and 0 for a free cell"
        )
    return tuple(map(bool, cells))


def _cells(field: str, value: Any, size: int) -> tuple[int, ...]:
    """Row-major cells of a list that holds either cells or [row, column] pairs."""
    if type(value) is not list:
        raise BoardError(f"{field}: {_shown(value)} is not allowed; give a list of cells or of [row, column] pairs")
    if value and type(value[0]) is list:
        return tuple(_pair(field, pair, size) for pair in value)
    for cell in value:
        if type(cell) is not int or not 0 <= cell < size * size:
            raise BoardError(
                f"{field}: {_shown(cell)} is not allowed; cells of a {size}x{size} board are integers 0..{size**2 - 1}"
            )
    return tuple(value)


def _pair(field: str, pair: Any, size: int) -> int:
    if type(pair) is not list or len(pair) != 2:
        raise BoardError(f"{field}: {_shown(pair)} is not allowed; after one [row, column] pair all must be pairs")
    for part in pair:
        if type(part) is not int or not 0 <= part < size:
            raise BoardError(
                f"{field}: {_shown(part)} in a [row, column] pair is not allowed; both are integers 0..{size - 1}"
            )
    return int(pair[0] * size + pair[1])


def _check_size(rows: int) -> None:
    if not MIN_SIZE <= rows <= MAX_SIZE:
        raise BoardError(f"holes: {_shown(rows)} rows are not allowed; a board has {MIN_SIZE}..{MAX_SIZE}")


def _check_square(holes: Rows) -> None:
    _check_size(len(holes))
    for row, cells in enumerate(holes):
        if len(cells) != len(holes):
            raise BoardError(
                f"holes: {len(cells)} cells in row {row} are not allowed; a board of {len(holes)} rows is square"
            )


def _check_free(field: str, cells: tuple[int, ...], holes: Rows) -> None:
    n = len(holes)
    for agent, cell in enumerate(cells, 1):
        if not 0 <= cell < n * n:
            raise BoardError(
                f"{field}: cell {cell} of agent {agent} is not allowed; cells of a {n}x{n} board are 0..{n * n - 1}"
            )
        if holes[cell // n][cell % n]:
            raise BoardError(
                f"{field}: cell {cell} (row {cell // n}, column {cell % n}) of agent {agent} is a hole; "
                "give a free cell"
            )
    if len(set(cells)) != len(cells):
        twice = next(cell for cell in cells if cells.count(cell) > 1)
        raise BoardError(f"{field}: cell {twice} is there twice; no two agents share one, so give distinct {field}")


def _shown(value: Any) -> str:
    """A value as JSON writes it, on one line and short; what is inside a list or object does not matter."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BoardError(f"key {_shown(twice)} is there twice; give each key once")
    return record


def _refuse(constant: str) -> NoReturn:
    raise BoardError(f"{constant} is not allowed; cells are integers")


# Made once: json.loads with these hooks would build a decoder for every line of a stream.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
