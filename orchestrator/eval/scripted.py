"""Solvers without a model: the optimum as upper bound, random and greedy plans as lower ones."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from environments.base import Task
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.environment import MapfFrozenLake
from environments.mapf_frozenlake.plan import MOVES, Actions
from environments.mapf_frozenlake.prompt import format_answer
from orchestrator.eval.records import Keep, Question, Reply

Script = Callable[[MapfFrozenLake, Task, random.Random], str]


class Scripted:
    """Answers by a rule. See ``SCRIPTS`` for the names."""

    def __init__(self, name: str, environment: MapfFrozenLake) -> None:
        self.name, self.deterministic = name, name != "random"
        self._script, self._environment = SCRIPTS[name], environment

    def identity(self) -> dict[str, Any]:
        """The rule's name."""
        return {"kind": "scripted", "name": self.name}

    def answer(self, questions: Sequence[Question], keep: Keep) -> None:
        """One plan per question; nothing counts tokens."""
        for question in questions:
            started = time.perf_counter()
            text = self._script(self._environment, question.task, random.Random(question.seed))
            keep(question, Reply(text, "stop", time.perf_counter() - started))


def oracle(environment: MapfFrozenLake, task: Task, rng: random.Random) -> str:
    """An optimal plan, solved for."""
    return environment.answer(task)


def greedy(environment: MapfFrozenLake, task: Task, rng: random.Random) -> str:
    """Every agent on a shortest path of its own, as if it were alone."""
    board = Board.from_payload(task.data())
    return format_answer([shortest_path(board, *pair) for pair in zip(board.starts, board.goals, strict=True)])


def wander(environment: MapfFrozenLake, task: Task, rng: random.Random) -> str:
    """For every agent 1 to 2n actions, each uniform over those that stay on the board and out of holes."""
    board = Board.from_payload(task.data())
    return format_answer([_random_walk(board, start, rng) for start in board.starts])


def shortest_path(board: Board, start: int, goal: int) -> Actions:
    """Fewest moves from cell to cell, first found in the order of ``MOVES``; no actions if there is no way."""
    came_from: dict[int, tuple[int, str]] = {start: (start, "")}
    queue = deque([start])
    while queue and goal not in came_from:
        cell = queue.popleft()
        for action, after in _steps(board, cell):
            if after not in came_from:
                came_from[after] = (cell, action)
                queue.append(after)
    actions: list[str] = []
    cell = goal
    while cell != start and cell in came_from:
        cell, action = came_from[cell]
        actions.append(action)
    return tuple(reversed(actions))


def _random_walk(board: Board, cell: int, rng: random.Random) -> Actions:
    actions = []
    for _ in range(rng.randint(1, 2 * board.n)):
        action, cell = rng.choice(_steps(board, cell))
        actions.append(action)
    return tuple(actions)


def _steps(board: Board, cell: int) -> list[tuple[str, int]]:
    """(action, cell after it) of every action that one agent alone may do."""
    row, column = divmod(cell, board.n)
    return [
        (action, after)
        for action, (down, right) in MOVES.items()
        if 0 <= row + down < board.n and 0 <= column + right < board.n
        if (after := (row + down) * board.n + column + right) not in board.holes
    ]


SCRIPTS: Mapping[str, Script] = {"oracle": oracle, "greedy": greedy, "random": wander}
