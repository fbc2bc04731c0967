"""The task stream: item i is a pure function of (run seed, split, stage, knobs digest, i).

An item's ticket (``tickets``) decides its stratum and whether its board must need a wait, its hash the key of its
candidates. The first candidate that fits is the item. Items are worked on together in rounds, which changes the speed
and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from environments.base import Labeller, Problem, canonical_json, stream
from environments.mapf_frozenlake import straight
from environments.mapf_frozenlake.board import Board, reserved_for
from environments.mapf_frozenlake.candidates import draw
from environments.mapf_frozenlake.settings import STRATUM_SIZES, MapfKnobs, Objective, hole_count
from environments.mapf_frozenlake.tickets import Position, Ticket, deal
from environments.mapf_frozenlake.yields import RAREST, Cell, InfeasibleKnobs, YieldTable, judged, label_candidates

LABELS = ("makespan", "sum_of_costs", "wait_makespan", "wait_sum_of_costs")
"""What a task payload holds besides the board."""

ROUND = 4_096
"""Candidates drawn and labelled together."""
PATIENCE = 60 * RAREST
"""Candidates after which an item is given up: a feasible cell gets here once in e**60 items."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is decided about an item before any board is drawn."""

    index: int
    ticket: Ticket
    key: int


class Items(NamedTuple):
    """Finished consecutive items, a list for each field: a million of them are a million rows, not as many objects."""

    first: int
    """Index of the first."""
    strata: list[str]
    payloads: list[str]
    """Task payloads: canonical JSON."""
    drawn: list[int]
    """Candidates drawn up to and including the item's board."""


@dataclass(frozen=True, slots=True)
class LabelledBoard:
    """A board with its labels; ``drawn`` counts the candidates up to and including it."""

    board: Board
    makespan: int
    sum_of_costs: int
    wait_makespan: bool
    wait_sum_of_costs: bool
    drawn: int

    def payload(self) -> str:
        """The task payload: the board's own keys and LABELS, as canonical JSON."""
        return canonical_json(self.board.payload() | {label: getattr(self, label) for label in LABELS})


def draft_items(knobs: MapfKnobs, position: Position, start: int, count: int) -> list[Draft]:
    """Items ``start`` .. ``start + count - 1`` of a stream, none of them drawn yet."""
    return [
        Draft(index, ticket, stream(*position, index).getrandbits(64))
        for index, ticket in enumerate(deal(knobs, position, start, count), start)
    ]


def generate(
    drafts: Sequence[Draft], knobs: MapfKnobs, agents: int, objective: Objective, labeller: Labeller, table: YieldTable
) -> Items:
    """The items of consecutive drafts. Raises LabelFailure or InfeasibleKnobs."""
    groups: defaultdict[Ticket, list[Draft]] = defaultdict(list)
    for draft in drafts:
        groups[draft.ticket].append(draft)
    first = drafts[0].index
    out = Items(first, [draft.ticket.stratum for draft in drafts], [""] * len(drafts), [0] * len(drafts))
    for (stratum, wait), members in groups.items():
        row = knobs.strata[stratum]
        n = STRATUM_SIZES[stratum]
        cell = Cell(n, hole_count(n, row.hole_ratio), agents, objective)
        rate = table.of(cell).rate(wait)
        for start in range(0, len(members), ROUND):
            part = members[start : start + ROUND]
            found = search(cell, wait, [draft.key for draft in part], rate, labeller)
            for draft, labelled in zip(part, found, strict=True):
                if labelled is None:
                    reason = f"no fitting board among {PATIENCE} candidates"
                    raise InfeasibleKnobs([Problem(stratum, "wait_ratio", row.wait_ratio, reason, 0 if wait else 100)])
                out.payloads[draft.index - first] = labelled.payload()
                out.drawn[draft.index - first] = labelled.drawn
    return out


def search(cell: Cell, wait: bool, keys: Sequence[int], rate: float, labeller: Labeller) -> list[LabelledBoard | None]:
    """The first fitting candidate of each key, None where ``PATIENCE`` candidates had none."""
    found: list[LabelledBoard | None] = [None] * len(keys)
    pending = list(range(len(keys)))
    drawn = 0
    while pending and drawn < PATIENCE:
        each = max(1, min(round(1 / max(rate, 1 / RAREST)), ROUND // len(pending), PATIENCE - drawn))
        numbers = np.tile(np.arange(drawn, drawn + each, dtype=np.uint64), len(pending))
        key_array = np.repeat(np.array([keys[p] for p in pending], dtype=np.uint64), each)
        for position, labelled in _first_fits(cell, wait, key_array, numbers, each, labeller):
            found[pending[position]] = labelled
        pending = [p for p in pending if found[p] is None]
        drawn += each
    return found


def _first_fits(
    cell: Cell,
    wait: bool,
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]],
    numbers: np.ndarray[tuple[int], np.dtype[np.uint64]],
    each: int,
    labeller: Labeller,
) -> Iterator[tuple[int, LabelledBoard]]:
    """(item position, board) for every item that has a fitting board in this round of ``each`` candidates per item."""
    candidates = draw(cell.n, cell.holes, cell.agents, keys, numbers)
    if wait and 100 * cell.holes <= straight.WORTH_IT * cell.n**2:
        candidates = replace(candidates, usable=candidates.usable & ~straight.wait_free(candidates))
    labels = label_candidates(labeller, candidates)
    last = -1
    for index in np.flatnonzero(judged(labels, cell.objective) == int(wait)).tolist():
        position = index // each
        if position == last:
            continue
        board = candidates.board(index)
        if reserved_for(board) is not None:
            continue
        last = position
        yield (
            position,
            LabelledBoard(
                board,
                int(labels.makespan[index]),
                int(labels.sum_of_costs[index]),
                bool(labels.wait_makespan[index]),
                bool(labels.wait_sum_of_costs[index]),
                int(numbers[index]) + 1,
            ),
        )
