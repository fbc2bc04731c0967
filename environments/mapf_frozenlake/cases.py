"""Single boards to look at: two committed ones of the kinds that the paper shows, and any in a file.

The committed boards are the first of their streams that fulfil ``KINDS`` and on which the agents are in each other's
way: they share one component, and every optimal plan needs a wait. Training never emits them (``held_out``).

    python -m environments.mapf_frozenlake.cases > environments/mapf_frozenlake/data/cases.jsonl    # find them again
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from environments.base import Task, canonical_json, stream
from environments.mapf_frozenlake.board import START_SYMBOLS, Board, reserved_for
from environments.mapf_frozenlake.candidates import components, draw
from environments.mapf_frozenlake.generator import LABELS
from environments.mapf_frozenlake.settings import LARGEST, SMALLEST, hole_count, stratum_name

BOARD_KEYS = ("n", "holes", "starts", "goals")


class CaseError(ValueError):
    """There is no such board; the message says what is wrong with the file or the name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a committed board is like: side, agents, share of holes in percent, least optimal makespan."""

    n: int
    agents: int
    hole_ratio: int
    makespan: int


KINDS: Mapping[str, Kind] = {"paper-3x3": Kind(3, 2, 10, 4), "paper-10x10": Kind(10, 5, 50, 10)}

CHUNK = 2_000


def load_case(name: str) -> Task:
    """The board called ``name``, or the one in a JSON file of the payload's shape, as a labelled task.

    A file needs n, holes, starts and goals; labels are solved for. Raises :class:`CaseError`.
    """
    if name in KINDS:
        return _task(committed()[name])
    path = Path(name)
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CaseError(
            f"board {name!r} is neither a file nor one of {', '.join(KINDS)}: give a JSON file with "
            f"{', '.join(BOARD_KEYS)}"
        ) from None
    except (OSError, ValueError) as error:
        raise CaseError(f"board file {name} cannot be read as JSON: {error}") from None
    try:
        return _task(_checked(data, labelled(_board(data))))
    except CaseError as error:
        raise CaseError(f"board file {name}: {error}") from None


def committed() -> dict[str, dict[str, Any]]:
    """The payloads of the committed boards by name."""
    text = (resources.files("environments.mapf_frozenlake") / "data" / "cases.jsonl").read_text("utf-8")
    return dict(json.loads(line) for line in text.splitlines())


def _board(data: Any) -> Board:
    """The board of a payload, in full words about what is wrong with it."""
    if not isinstance(data, dict) or (missing := [key for key in BOARD_KEYS if key not in data]):
        absent = f"{', '.join(missing)} missing" if isinstance(data, dict) else f"it is a {type(data).__name__}"
        raise CaseError(f"a board is a JSON object with {', '.join(BOARD_KEYS)}; {absent}")
    try:
        board = Board.from_payload(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise CaseError(f"this is no board: {error}") from None
    if not SMALLEST <= board.n <= LARGEST:
        raise CaseError(f"n = {board.n}: boards have {SMALLEST} to {LARGEST} rows")
    if not 2 <= len(board.starts) <= len(START_SYMBOLS):
        raise CaseError(f"{len(board.starts)} starts: boards have 2 to {len(START_SYMBOLS)} agents")
    return board


def labelled(board: Board) -> dict[str, Any]:
    """The board's whole payload, labels solved for. Raises :class:`CaseError` if it has no plan."""
    import solvers

    holes = np.zeros(board.n * board.n, dtype=np.bool_)
    holes[list(board.holes)] = True
    found = solvers.solve(holes.reshape(board.n, board.n), board.starts, board.goals)
    if found.status is not solvers.Status.SOLVABLE:
        raise CaseError(f"the board is {found.status.name.lower()}: give one that has a plan")
    return board.payload() | {label: getattr(found, label) for label in LABELS}


def _checked(data: Mapping[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """The payload, unless the file has labels of its own that are wrong."""
    for label in LABELS:
        if label in data and data[label] != payload[label]:
            raise CaseError(f"{label} = {data[label]!r} is wrong, the solver finds {payload[label]}: drop the label")
    return payload


def _task(payload: Mapping[str, Any]) -> Task:
    return Task("mapf_frozenlake", canonical_json(payload), stratum_name(payload["n"]), "case", 0)


def find(name: str) -> dict[str, Any]:
    """The payload of a committed board, searched for again."""
    kind = KINDS[name]
    key = np.full(CHUNK, stream("mapf_frozenlake case", kind.n, kind.agents).getrandbits(64), dtype=np.uint64)
    for first in count(0, CHUNK):
        numbers = np.arange(first, first + CHUNK, dtype=np.uint64)
        drawn = draw(kind.n, hole_count(kind.n, kind.hole_ratio), kind.agents, key, numbers)
        reached = components(~drawn.holes, drawn.starts)
        together = drawn.usable & (reached == reached[:, :1]).all(axis=(1, 2))
        for index in np.flatnonzero(together).tolist():
            board = drawn.board(index)
            if reserved_for(board) != "held_out":
                continue
            try:
                payload = labelled(board)
            except CaseError:
                continue
            if payload["makespan"] >= kind.makespan and payload["wait_makespan"]:
                return payload
    raise AssertionError("unreachable")


if __name__ == "__main__":
    for case in KINDS:
        print(canonical_json([case, find(case)]))
