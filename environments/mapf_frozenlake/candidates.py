"""Candidate boards, drawn by the thousand, each a pure function of (item key, candidate number).

The random words come from a counter-based stream (the splitmix64 finaliser over key + counter), so any candidate of
any item can be computed at any time, in any company, and always comes out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from environments.mapf_frozenlake.board import Board

WORDS_PER_CANDIDATE = 128  # at least n * n + agents = 105
_CELL_BITS = np.uint64(127)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Candidates:
    """B drawn boards of one shape; ``usable`` bool[B] is False where some agent has no cell to go to."""

    holes: NDArray[np.bool_]
    """bool[B, n, n]"""
    starts: NDArray[np.int64]
    """int64[B, k]"""
    goals: NDArray[np.int64]
    """int64[B, k]"""
    usable: NDArray[np.bool_]

    def board(self, index: int) -> Board:
        """One of them as a record."""
        return Board(
            int(self.holes.shape[1]),
            tuple(np.flatnonzero(self.holes[index]).tolist()),
            tuple(self.starts[index].tolist()),
            tuple(self.goals[index].tolist()),
        )


def random_words(keys: NDArray[np.uint64], numbers: NDArray[np.uint64], words: int) -> NDArray[np.uint64]:
    """uint64[B, words]: the first words of candidate ``numbers[b]`` in the stream of ``keys[b]``."""
    first = numbers * np.uint64(WORDS_PER_CANDIDATE) + np.uint64(1)
    counter = first[:, None] + np.arange(words, dtype=np.uint64)
    z = keys[:, None] + counter * _GOLDEN
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    z ^= z >> np.uint64(31)
    return z


def draw(n: int, holes: int, agents: int, keys: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> Candidates:
    """One candidate per (key, number): holes and starts uniform, each goal uniform in its start's component."""
    cells, count = n * n, len(keys)
    if holes + agents > cells:
        nothing = np.zeros((count, agents), dtype=np.int64)
        return Candidates(np.zeros((count, n, n), dtype=np.bool_), nothing, nothing, np.zeros(count, dtype=np.bool_))
    words = random_words(keys, numbers, cells + agents)
    # The cell's number in the low bits: plain numbers sort several times faster than indices, and nothing can tie.
    ranked = np.sort((words[:, :cells] & ~_CELL_BITS) | np.arange(cells, dtype=np.uint64), axis=1)
    order = (ranked[:, : holes + agents] & _CELL_BITS).astype(np.int64)
    is_hole = np.zeros((count, cells), dtype=np.bool_)
    is_hole[np.arange(count)[:, None], order[:, :holes]] = True
    starts = np.ascontiguousarray(order[:, holes:])
    if holes:
        reachable = components(~is_hole.reshape(count, n, n), starts)
    else:
        reachable = np.ones((count, agents, cells), dtype=np.bool_)
    goals, usable = _draw_goals(reachable, starts, words[:, cells:])
    return Candidates(is_hole.reshape(count, n, n), starts, goals, usable)


def _draw_goals(
    reachable: NDArray[np.bool_], starts: NDArray[np.int64], words: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Goals one agent after another, uniform over what is left of its component; also where that worked."""
    count, agents, _ = reachable.shape
    rows = np.arange(count)
    goals = np.zeros((count, agents), dtype=np.int64)
    usable = np.ones(count, dtype=np.bool_)
    for agent in range(agents):
        allowed = reachable[:, agent].copy()
        allowed[rows, starts[:, agent]] = False
        for earlier in range(agent):
            allowed[rows, goals[:, earlier]] = False
        ranks = np.cumsum(allowed, axis=1, dtype=np.uint8)
        choices = ranks[:, -1].astype(np.uint64)
        # The top half of the word scaled to 1..choices; the bias is under 100 / 2**32.
        rank = (((words[:, agent] >> np.uint64(32)) * choices) >> np.uint64(32)).astype(np.uint8) + np.uint8(1)
        usable &= choices > 0
        goals[:, agent] = np.argmax(ranks == rank[:, None], axis=1)
    return goals, usable


WORD = 64


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a board lies in uint64 words: whole rows, cell 0 in the lowest bit; 9x9 and 10x10 take two words."""

    words: int
    cells: int
    """Cells of a full word."""
    not_first: np.uint64
    """All bits but those of column 0."""
    not_last: np.uint64


@cache
def _layout(n: int) -> _Layout:
    rows = min(n, WORD // n)
    first = sum(1 << n * row for row in range(rows))
    full = (1 << WORD) - 1
    return _Layout(-(-n // rows), rows * n, np.uint64(full & ~first), np.uint64(full & ~(first << n - 1)))


def _to_words(cells: NDArray[np.bool_], layout: _Layout) -> NDArray[np.uint64]:
    """uint64[..., words] from bool[..., n * n]."""
    padded = np.zeros((*cells.shape[:-1], layout.words, WORD), dtype=np.bool_)
    for word in range(layout.words):
        part = cells[..., word * layout.cells : (word + 1) * layout.cells]
        padded[..., word, : part.shape[-1]] = part
    packed = np.packbits(padded, axis=-1, bitorder="little").view("<u8")[..., 0]
    return packed.astype(np.uint64, copy=False)


def components(free: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[B, k, n * n]: the cells each start can reach, from bool[B, n, n] and int64[B, k]; flooded bit-parallel."""
    count, n, _ = free.shape
    layout, row, one = _layout(n), np.uint64(n), np.uint64(1)
    open_cells = _to_words(free.reshape(count, n * n), layout)[:, None, :]
    reached = np.zeros((count, starts.shape[1], layout.words), dtype=np.uint64)
    word, bit = np.divmod(starts, layout.cells)
    np.put_along_axis(reached, word[..., None], (one << bit.astype(np.uint64))[..., None], axis=2)
    border = np.uint64(layout.cells - n)
    while True:
        grown = reached | ((reached << one) & layout.not_first) | ((reached >> one) & layout.not_last)
        grown |= (reached << row) | (reached >> row)
        if layout.words == 2:
            grown[..., 1] |= reached[..., 0] >> border
            grown[..., 0] |= reached[..., 1] << border
        grown &= open_cells
        if np.array_equal(grown, reached):
            break
        reached = grown
    bits = np.unpackbits(reached.astype("<u8", copy=False).view(np.uint8), axis=-1, bitorder="little")
    by_word = bits.reshape(count, -1, layout.words, WORD)[..., : layout.cells]
    return by_word.reshape(count, -1, layout.words * layout.cells)[..., : n * n].view(np.bool_)
