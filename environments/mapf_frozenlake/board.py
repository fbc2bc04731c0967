"""A board: a square grid with holes and agents, its canonical form, and how it looks to a person.

Cells are row-major indices ``row * n + column``, row 0 on top. Agents are numbered from 1 wherever a person or a
model sees them and from 0 inside the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

RESERVED = {"validation": range(30), "held_out": range(30, 100)}
"""Share of all boards (in thousandths of the digest space) that only the named frozen set may contain."""
RESERVED_MANY = {"validation": range(30), "held_out": range(30, 65), "benchmark": range(65, 100)}
"""The same for three agents and more: together the same tenth, so that training is the same for all."""

START_SYMBOLS = "12345"
GOAL_SYMBOLS = "abcde"

CanonicalForm = tuple[int, int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Board:
    """One instance without labels: ``holes`` ascending, ``starts`` and ``goals`` by agent."""

    n: int
    holes: tuple[int, ...]
    starts: tuple[int, ...]
    goals: tuple[int, ...]

    @classmethod
    def from_payload(cls, data: Mapping[str, Any]) -> Board:
        """Read the board keys of a task payload; raises KeyError, TypeError or ValueError if it isn't one."""
        board = cls(
            int(data["n"]),
            tuple(int(c) for c in data["holes"]),
            tuple(int(c) for c in data["starts"]),
            tuple(int(c) for c in data["goals"]),
        )
        board.check()
        return board

    def check(self) -> None:
        """Raise ValueError unless this is a well-formed instance (solvability is not looked at)."""
        taken = set(self.holes)
        if not self.starts or len(self.starts) != len(self.goals):
            raise ValueError(f"{len(self.starts)} starts and {len(self.goals)} goals")
        for kind, cells in (("holes", self.holes), ("starts", self.starts), ("goals", self.goals)):
            if len(set(cells)) != len(cells) or any(not 0 <= c < self.n * self.n for c in cells):
                raise ValueError(f"{kind} must be distinct cells of a {self.n}x{self.n} board: {cells}")
        if taken & {*self.starts, *self.goals} or any(s == g for s, g in zip(self.starts, self.goals, strict=True)):
            raise ValueError("starts and goals must be free cells, and no agent may start on its goal")

    def payload(self) -> dict[str, Any]:
        """The board keys of a task payload, and all that a labeller is given."""
        return {"n": self.n, "holes": list(self.holes), "starts": list(self.starts), "goals": list(self.goals)}

    def coordinates(self, cell: int) -> tuple[int, int]:
        """(row, column) of a cell."""
        return divmod(cell, self.n)

    def cell_words(self) -> list[list[str]]:
        """One word per cell: ``.`` free, ``#`` hole, ``1``.. start, ``a``.. goal, ``1b`` both."""
        words = [""] * (self.n * self.n)
        for symbols, cells in ((START_SYMBOLS, self.starts), (GOAL_SYMBOLS, self.goals)):
            for symbol, cell in zip(symbols, cells, strict=False):
                words[cell] += symbol
        for cell in self.holes:
            words[cell] = "#"
        return [[w or "." for w in words[r * self.n : (r + 1) * self.n]] for r in range(self.n)]

    def ascii(self) -> str:
        """The board as a framed grid with row and column numbers."""
        return framed(self.cell_words())


def framed(rows: Sequence[Sequence[str]]) -> str:
    """A grid of words as aligned text with row and column numbers."""
    width = max(2, *(len(word) for row in rows for word in row))
    head = "    " + " ".join(f"{c:<{width}}" for c in range(len(rows))).rstrip()
    body = [f"{r:>2}  " + " ".join(f"{word:<{width}}" for word in row).rstrip() for r, row in enumerate(rows)]
    return "\n".join([head, *body])


def coordinate_word(cell: int, n: int) -> str:
    """``r0c2``: the one-word name of a cell."""
    row, column = divmod(cell, n)
    return f"r{row}c{column}"


@cache
def symmetries(n: int) -> tuple[tuple[int, ...], ...]:
    """The eight symmetries of the square as maps from cell to cell."""
    out = []
    for transpose in (False, True):
        for flip_rows in (False, True):
            for flip_columns in (False, True):
                image = []
                for cell in range(n * n):
                    row, column = divmod(cell, n)
                    row = n - 1 - row if flip_rows else row
                    column = n - 1 - column if flip_columns else column
                    image.append(column * n + row if transpose else row * n + column)
                out.append(tuple(image))
    return tuple(out)


@cache
def _hole_bits(n: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(1 << image for image in symmetry) for symmetry in symmetries(n))


def _bits(table: Sequence[int], cells: Iterable[int]) -> int:
    return sum(map(table.__getitem__, cells))


def canonical_form(board: Board) -> CanonicalForm:
    """The same value for every board that differs only by a symmetry or by the names of the agents."""
    masks = [_bits(table, board.holes) for table in _hole_bits(board.n)]
    least = min(masks)
    pairs = list(zip(board.starts, board.goals, strict=True))
    agents = min(
        sorted((image[start], image[goal]) for start, goal in pairs)
        for image, mask in zip(symmetries(board.n), masks, strict=True)
        if mask == least
    )
    return board.n, least, tuple(agents)


def canonical_digest(form: CanonicalForm) -> int:
    """128-bit content hash of a canonical form, stable across processes and releases."""
    n, mask, agents = form
    text = f"{n}:{mask:x}:" + ",".join(f"{start}>{goal}" for start, goal in agents)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


def reserved_for(board: Board) -> str | None:
    """The frozen set that alone may hold this board, or None if training may use it."""
    residue = canonical_digest(canonical_form(board)) % 1000
    for name, residues in (RESERVED if len(board.starts) <= 2 else RESERVED_MANY).items():
        if residue in residues:
            return name
    return None
