"""MAPF-FrozenLake one joint step at a time, by the rules and rewards of ``verdict``: what both views are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from environments.base import AnyKnobs, Failure, Task, Verdict
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.environment import MapfFrozenLake
from environments.mapf_frozenlake.plan import MOVES
from environments.mapf_frozenlake.settings import MapfSettings
from environments.mapf_frozenlake.verdict import (
    Execution,
    Violation,
    carried_out,
    first_violation,
    verdict_on,
    wishes,
)

ACTIONS = tuple(MOVES)
"""Action numbers in order: 0 UP, 1 DOWN, 2 LEFT, 3 RIGHT, 4 WAIT."""

Planes = NDArray[np.int8]


class Episode:
    """One board, stepped until a rule is broken, all agents are on their goals at once, or ``horizon`` steps are over.

    The verdict is the one that ``score`` gives to the steps taken, as a plan.
    """

    def __init__(self, task: Task, objective: str, horizon: int | None = None) -> None:
        data = task.data()
        self.task = task
        self.board = Board.from_payload(data)
        self.objective = objective
        self.optima = {name: int(data[name]) for name in ("makespan", "sum_of_costs")}
        self.horizon = 2 * self.board.n**2 if horizon is None else horizon
        self.states = [self.board.starts]
        self.verdict: Verdict | None = None
        self.truncated = False

    @property
    def cells(self) -> tuple[int, ...]:
        """Where each agent is, as a row-major cell."""
        return self.states[-1]

    @property
    def reward(self) -> float:
        """0 until the episode is over, then the verdict's: optimum over cost, or 0."""
        return 0.0 if self.verdict is None else self.verdict.reward

    @property
    def terminated(self) -> bool:
        """Whether the episode ended by itself: a broken rule, or every agent on its goal."""
        return self.verdict is not None and not self.truncated

    def step(self, actions: Sequence[int]) -> None:
        """All agents act at once, by number. Raises RuntimeError once over, ValueError for a bad action or label."""
        if self.verdict is not None:
            raise RuntimeError("the episode is over: reset first")
        if len(actions) != len(self.cells) or any(not 0 <= action < len(ACTIONS) for action in actions):
            raise ValueError(f"{list(actions)} must be {len(self.cells)} numbers from 0 to {len(ACTIONS) - 1}")
        step, holes = len(self.states), frozenset(self.board.holes)
        wished = wishes(self.board.n, self.cells, [ACTIONS[action] for action in actions])
        violation = first_violation(self.board.n, holes, self.cells, wished, step)
        if violation is None:
            self.states.append(tuple(row * self.board.n + column for row, column in wished))
        arrived = self.cells == self.board.goals
        self.truncated = violation is None and not arrived and step >= self.horizon
        if violation is not None or arrived or self.truncated:
            self.verdict = self._judge(violation)

    def _judge(self, violation: Violation | None) -> Verdict:
        run = (
            carried_out(self.board, self.states) if violation is None else Execution(tuple(self.states), violation, ())
        )
        found = verdict_on(self.board, self.optima, self.objective, run)
        if isinstance(found, Failure):
            raise ValueError(found.message)
        return found

    def info(self) -> dict[str, Any]:
        """Task, stratum and optimum; once over, outcome and facts of the verdict."""
        known = {"task": self.task.id, "stratum": self.task.stratum, "optimum": self.optima[self.objective]}
        return known if self.verdict is None else known | {"outcome": self.verdict.outcome} | self.verdict.facts

    def text(self) -> str:
        """The board with agents where they are now."""
        return replace(self.board, starts=self.cells).ascii()

    def planes(self, size: int, first: int = 0) -> Planes:
        """(1 + 2 agents, size, size) of 0 and 1: what blocks, then positions, then goals, from agent ``first`` on.

        A board smaller than ``size`` lies in the upper left; the rest blocks.
        """
        agents = len(self.cells)
        out = np.zeros((1 + 2 * agents, size, size), dtype=np.int8)
        out[0] = 1
        out[0, : self.board.n, : self.board.n] = 0
        order = [(first + i) % agents for i in range(agents)]
        marks = [(0, cell) for cell in self.board.holes]
        marks += [(1 + i, self.cells[agent]) for i, agent in enumerate(order)]
        marks += [(1 + agents + i, self.board.goals[agent]) for i, agent in enumerate(order)]
        for plane, cell in marks:
            out[(plane, *self.board.coordinates(cell))] = 1
        return out


class Deck:
    """Where the episodes of a view come from: the environment's own generator, or tasks that are given."""

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        knobs: AnyKnobs | None = None,
        tasks: Sequence[Task] | None = None,
        horizon: int | None = None,
    ) -> None:
        self.settings = MapfSettings.model_validate(dict(settings or {}))
        self._environment = MapfFrozenLake(self.settings)
        self._knobs = knobs if knobs is not None else self._environment.default_knobs()
        self._tasks = None if tasks is None else tuple(tasks)
        self._horizon = horizon
        if self._tasks == () or (horizon is not None and horizon < 1):
            raise ValueError(f"there must be tasks and steps: tasks={tasks!r:.40}, horizon={horizon}")
        for task in self._tasks or ():
            self._check(task)

    @property
    def agents(self) -> int:
        """Agents on every board."""
        return self.settings.agents

    @property
    def size(self) -> int:
        """Side of the largest board."""
        return max(self.settings.sizes)

    def shape(self) -> tuple[int, int, int]:
        """Shape of the planes."""
        return 1 + 2 * self.agents, self.size, self.size

    def deal(self, rng: np.random.Generator, options: Mapping[str, Any] | None = None) -> Episode:
        """An episode drawn with ``rng``, or ``options["index"]`` of the given tasks or of the stream of seed 0."""
        index = (options or {}).get("index")
        if self._tasks is not None:
            chosen = self._tasks[int(rng.integers(len(self._tasks))) if index is None else index]
        else:
            seed, start = (int(rng.integers(2**31)), 0) if index is None else (0, index)
            chosen = self._environment.generate(self._knobs, seed, start, 1)[0]
        return Episode(chosen, self.settings.objective, self._horizon)

    def _check(self, task: Task) -> None:
        board = Board.from_payload(task.data())
        if len(board.starts) != self.agents or board.n > self.size:
            raise ValueError(
                f"task {task.id} has {len(board.starts)} agents on a board of {board.n}x{board.n}; this view is for "
                f"{self.agents} agents and boards up to {self.size}x{self.size}: change `settings`"
            )


class View:
    """What both views have: a deck, the episode under way, and its picture as text.

    Boards come from a generator with ``settings`` (of the environment) and ``knobs``, or are those of ``tasks``; an
    episode is truncated after ``horizon`` steps. ``render_mode`` is ``ansi`` or None.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        knobs: AnyKnobs | None = None,
        tasks: Sequence[Task] | None = None,
        horizon: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._deck = Deck(settings, knobs, tasks, horizon)
        self._dealt: Episode | None = None
        self.render_mode = render_mode
        self._define_spaces()

    def _define_spaces(self) -> None:
        raise NotImplementedError

    def render(self) -> str | None:
        """The board as text in mode ``ansi``: ``1`` agent, ``a`` its goal, ``#`` hole."""
        return self._episode.text() if self.render_mode == "ansi" else None

    def _deal(self, rng: np.random.Generator, options: Mapping[str, Any] | None) -> Episode:
        self._dealt = self._deck.deal(rng, options)
        return self._dealt

    @property
    def _episode(self) -> Episode:
        if self._dealt is None:
            raise RuntimeError("call reset first")
        return self._dealt
