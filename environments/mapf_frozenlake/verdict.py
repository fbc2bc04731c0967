"""Carrying a plan out and judging it. Knows nothing of solvers: it is the second opinion on what is legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from environments.base import Failure, FailureKind, Outcomes, Verdict
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.plan import MOVES, Actions, Fault, Path, Place, PlanFormat, parse_plan


class MapfOutcome(Outcomes):
    """Everything that can become of a completion, worst first. Only a path can have an illegal move."""

    TRUNCATED = "truncated", "the token limit came before a complete plan"
    PARSE_ERROR = ("parse_error", "no agent line, an unknown action, or a duplicate or extra agent")
    MISSING_AGENT = "missing_agent", "an agent has no line"
    ILLEGAL_MOVE = "illegal_move", "a path jumps, or does not begin at the agent's start"
    OUT_OF_BOUNDS = "out_of_bounds", "an agent leaves the board"
    HOLE = "hole", "an agent enters a hole"
    VERTEX_CONFLICT = "vertex_conflict", "two agents are on one cell after a step"
    EDGE_CONFLICT = "edge_conflict", "two agents swap neighbouring cells in one step"
    GOAL_NOT_REACHED = ("goal_not_reached", "a legal plan that leaves an agent off its goal")
    VALID = ("valid", "a legal plan that reaches every goal at more than the optimal cost")
    OPTIMAL = "optimal", "a legal plan that reaches every goal at the optimal cost"


_by_function: Any = Outcomes
ActionOutcome: type[Outcomes] = _by_function(
    "ActionOutcome",
    {o.name: (o.value, o.description) for o in MapfOutcome if o is not MapfOutcome.ILLEGAL_MOVE},
    module=__name__,
)
"""The outcomes of a plan of actions, which cannot jump: runs on paths alone know the word ``illegal_move``."""

SOLVED = frozenset({MapfOutcome.VALID.value, MapfOutcome.OPTIMAL.value})


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a plan that is not valid can earn. Valid plans share the rest, so that any of them earns more.

    ``goals`` is multiplied by the share of agents that are on their goals when the plan ends or breaks a rule,
    ``prefix`` by the steps up to then over the least makespan, at most 1.
    """

    goals: float = 0.0
    prefix: float = 0.0

    def credit(self, board: Board, makespan: int, states: Sequence[tuple[int, ...]]) -> float:
        """Reward of a plan that is not valid; ``states`` are the cells of all agents while no rule was broken."""
        arrived = sum(cell == goal for cell, goal in zip(states[-1], board.goals, strict=True))
        return self.goals * arrived / len(board.goals) + self.prefix * min(1.0, (len(states) - 1) / makespan)

    def valid(self, quotient: float) -> float:
        """Reward of a valid plan with this optimum over cost: above all credit, and 1 if optimal."""
        credit = self.goals + self.prefix
        return credit + (1.0 - credit) * quotient


UNSHAPED = Shaping()


@dataclass(frozen=True, slots=True)
class Violation:
    """The first broken rule: in ``step`` (from 1) by ``agents`` (from 1) at ``cell`` (row, column).

    A path that begins elsewhere breaks it in step 0; agents off their goals do so in the last step.
    """

    outcome: MapfOutcome
    step: int
    agents: tuple[int, ...]
    cell: tuple[int, int]

    def facts(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return {"step": self.step, "agents": list(self.agents), "cell": list(self.cell)}


@dataclass(frozen=True, slots=True)
class Execution:
    """A plan carried out: ``states`` are the cells of all agents from step 0 on, up to a violation if there is one."""

    states: tuple[tuple[int, ...], ...]
    violation: Violation | None
    arrivals: tuple[int, ...]
    """By agent, the step after which it is on its goal for good; meaningful without a violation only."""
    attempt: tuple[tuple[int, int], ...] = ()
    """(row, column) that each agent was bound for in a step that broke a rule: perhaps a hole, or off the board."""

    @property
    def makespan(self) -> int:
        """Latest arrival, in steps."""
        return max(self.arrivals)

    @property
    def sum_of_costs(self) -> int:
        """Sum of arrivals, in steps."""
        return sum(self.arrivals)


def execute(board: Board, plans: Sequence[Actions | Path]) -> Execution:
    """Move all agents at once, step by step; an agent whose plan ended stays where it is."""
    holes = frozenset(board.holes)
    states = [board.starts]
    places = tuple(board.coordinates(start) for start in board.starts)
    begun = tuple(plan[0] if _is_path(plan) else place for plan, place in zip(plans, places, strict=True))
    for agent, (place, start) in enumerate(zip(begun, places, strict=True), 1):
        if place != start:
            return Execution(tuple(states), Violation(MapfOutcome.ILLEGAL_MOVE, 0, (agent,), place), (), begun)
    moves = [plan[1:] if _is_path(plan) else plan for plan in plans]
    for step in range(1, max(map(len, moves), default=0) + 1):
        actions = [plan[step - 1] if step <= len(plan) else "WAIT" for plan in moves]
        wished = wishes(board.n, states[-1], actions)
        violation = first_violation(board.n, holes, states[-1], wished, step)
        if violation is not None:
            return Execution(tuple(states), violation, (), wished)
        states.append(tuple(row * board.n + column for row, column in wished))
    return carried_out(board, states)


def carried_out(board: Board, states: Sequence[tuple[int, ...]]) -> Execution:
    """The execution of a plan whose every step was legal: cells of all agents from step 0 on."""
    arrivals = tuple(_arrival([state[i] for state in states], goal) for i, goal in enumerate(board.goals))
    last = states[-1]
    astray = tuple(i + 1 for i, goal in enumerate(board.goals) if last[i] != goal)
    violation = None
    if astray:
        cell = board.coordinates(last[astray[0] - 1])
        violation = Violation(MapfOutcome.GOAL_NOT_REACHED, len(states) - 1, astray, cell)
    return Execution(tuple(states), violation, arrivals)


def _is_path(plan: Actions | Path) -> TypeGuard[Path]:
    """Whether the plan has cells rather than actions, at least one."""
    return bool(plan) and not isinstance(plan[0], str)


def wishes(n: int, before: Sequence[int], actions: Sequence[str | Place]) -> tuple[Place, ...]:
    """Where each agent wants to go, as (row, column), which may be off the board."""
    return tuple(_wish(n, cell, action) for cell, action in zip(before, actions, strict=True))


def _wish(n: int, cell: int, action: str | Place) -> Place:
    if not isinstance(action, str):
        return action
    row, column = divmod(cell, n)
    down, right = MOVES[action]
    return row + down, column + right


def _arrival(path: Sequence[int], goal: int) -> int:
    return next((step + 1 for step in range(len(path) - 1, -1, -1) if path[step] != goal), 0)


def first_violation(
    n: int, holes: frozenset[int], before: Sequence[int], wished: Sequence[Place], step: int
) -> Violation | None:
    """The first broken rule of one step: kind by kind, then by the lowest agent."""
    agents = range(len(wished))
    for i in agents:
        row, column = divmod(before[i], n)
        if abs(wished[i][0] - row) + abs(wished[i][1] - column) > 1:
            return Violation(MapfOutcome.ILLEGAL_MOVE, step, (i + 1,), wished[i])
    for i in agents:
        row, column = wished[i]
        if not (0 <= row < n and 0 <= column < n):
            return Violation(MapfOutcome.OUT_OF_BOUNDS, step, (i + 1,), wished[i])
    after = [row * n + column for row, column in wished]
    for i in agents:
        if after[i] in holes:
            return Violation(MapfOutcome.HOLE, step, (i + 1,), wished[i])
    pairs = [(i, j) for i in agents for j in range(i + 1, len(wished))]
    for i, j in pairs:
        if after[i] == after[j]:
            return Violation(MapfOutcome.VERTEX_CONFLICT, step, (i + 1, j + 1), wished[i])
    for i, j in pairs:
        if after[i] == before[j] and after[j] == before[i]:
            return Violation(MapfOutcome.EDGE_CONFLICT, step, (i + 1, j + 1), wished[i])
    return None


def judge(
    board: Board,
    optima: dict[str, int],
    objective: str,
    completion: str,
    truncated: bool,
    plan_format: PlanFormat = "lines",
    shaping: Shaping = UNSHAPED,
) -> Verdict | Failure:
    """The verdict on any string. A plan better than its label means that the label is wrong: a data failure."""
    plans = parse_plan(completion, len(board.starts), truncated=truncated, plan_format=plan_format)
    if isinstance(plans, Fault):
        return Verdict(0.0, MapfOutcome[plans.kind.name].value, {"reason": plans.reason})
    return verdict_on(board, optima, objective, execute(board, plans), shaping)


def verdict_on(
    board: Board, optima: dict[str, int], objective: str, run: Execution, shaping: Shaping = UNSHAPED
) -> Verdict | Failure:
    """What an executed plan is worth: optimum over cost if it is legal and ends on all goals, else 0, unless shaped."""
    facts: dict[str, Any] = {"optimum": optima[objective]}
    if run.violation is not None:
        credit = shaping.credit(board, optima["makespan"], run.states)
        return Verdict(credit, run.violation.outcome.value, {**run.violation.facts(), **facts})
    costs = {"makespan": run.makespan, "sum_of_costs": run.sum_of_costs}
    for name, cost in costs.items():
        if cost < optima[name]:
            return Failure(FailureKind.DATA, f"a legal plan has {name} {cost}, below the label {optima[name]}: {board}")
    outcome = MapfOutcome.OPTIMAL if costs[objective] == optima[objective] else MapfOutcome.VALID
    return Verdict(shaping.valid(optima[objective] / costs[objective]), outcome.value, {**costs, **facts})
