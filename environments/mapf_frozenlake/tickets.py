"""Size and kind of each item of a stream: tickets, dealt in shuffled blocks that hold what the knobs ask for.

A block is a fixed number of consecutive items. Every block has the same tickets of each size, in proportion to the
shares, and of the s of one size either ⌊ws⌋ or ⌈ws⌉ need a wait, w the wait ratio. Which of the two is systematic
sampling (Madow, 1949): the stream draws a phase once, and the block's number carries what was rounded off. So over all
seeds an item of the size needs a wait with probability w exactly.

**Bound.** Consecutive items are whole blocks between two that are cut. Any F whole blocks hold Fs tickets of a size,
of which less than one more or less than wFs need a wait. A cut block adds at most min(w⌈(1−w)s⌉, (1−w)⌈ws⌉) to that,
and nothing if s = 1. Blocks have at most ``LONGEST`` items, so any 5 000 items hold 61 of them, and the wait ratio of
every size is within (1 + 2 min(w⌈(1−w)s⌉, (1−w)⌈ws⌉)) / 61s of w, which is at most 0.018 (at s = 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple, TypeAlias

from environments.base import stream
from environments.mapf_frozenlake.settings import MapfKnobs

LONGEST = 80
"""Items of a block at most: eight sizes with shares of up to ten steps cannot need more."""

Position: TypeAlias = tuple[int, str, int, str]
"""What a stream is keyed by: run seed, split, stage, digest of the knobs."""


class Ticket(NamedTuple):
    """What an item must be: a board of this size, with or without a necessary wait."""

    stratum: str
    wait: bool


def deal(knobs: MapfKnobs, position: Position, start: int, count: int) -> Iterator[Ticket]:
    """The tickets of items ``start`` .. ``start + count - 1``; each is a function of the position and its index."""
    places = tickets_per_block(knobs)
    length = sum(places.values())
    rng = stream(*position, "phases")
    phases = {stratum: rng.randrange(100) for stratum in places}
    end = start + count
    for block in range(start // length, -(-end // length)):
        tickets: list[Ticket] = []
        for stratum, size in places.items():
            waits = waits_in_block(size, knobs.strata[stratum].wait_ratio, phases[stratum], block)
            tickets += [Ticket(stratum, True)] * waits + [Ticket(stratum, False)] * (size - waits)
        stream(*position, "block", block).shuffle(tickets)
        first = block * length
        yield from tickets[max(start - first, 0) : end - first]


def tickets_per_block(knobs: MapfKnobs) -> dict[str, int]:
    """Stratum -> its tickets in each block: the shares in lowest terms, as often as ``LONGEST`` has room for."""
    shares = {stratum: row.share for stratum, row in knobs.strata.items() if row.share}
    step = gcd(*shares.values())
    repeats = max(1, LONGEST // (sum(shares.values()) // step))
    return {stratum: share // step * repeats for stratum, share in shares.items()}


def waits_in_block(tickets: int, wait_ratio: int, phase: int, block: int) -> int:
    """How many of a size's tickets in a block need a wait; ``wait_ratio`` in percent, ``phase`` from 0 to 99."""
    return (wait_ratio * tickets * (block + 1) + phase) // 100 - (wait_ratio * tickets * block + phase) // 100
