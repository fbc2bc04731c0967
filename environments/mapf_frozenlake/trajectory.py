"""A board and what an answer makes of it, step by step: the one thing that every picture is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments.base import Failure
from environments.mapf_frozenlake.board import Board, framed
from environments.mapf_frozenlake.plan import Fault, Place, PlanFormat, parse_plan
from environments.mapf_frozenlake.render import legend
from environments.mapf_frozenlake.verdict import MapfOutcome, Violation, execute, judge


@dataclass(frozen=True, slots=True)
class Trajectory:
    """``places`` holds the place of every agent from step 0 on, up to and including the step of the violation.

    In that step an agent may be in a hole, or just off the board, which also stands for anywhere farther out; a path
    that begins elsewhere has its beginning there. An answer that holds no plan has step 0 alone. ``facts`` are those
    of the verdict.
    """

    board: Board
    places: tuple[tuple[Place, ...], ...]
    outcome: MapfOutcome
    violation: Violation | None
    facts: Mapping[str, Any]
    optimum: int
    """Of the objective that the answer was judged by, in steps."""

    @property
    def steps(self) -> int:
        """Steps carried out, the one with the violation included."""
        return len(self.places) - 1

    @property
    def crashes(self) -> bool:
        """Whether the last step breaks a rule, so that its places are wishes."""
        return self.violation is not None and self.outcome is not MapfOutcome.GOAL_NOT_REACHED

    def headline(self) -> str:
        """Outcome, makespan and optimum on one line."""
        cost = f"makespan {self.facts['makespan']}, " if "makespan" in self.facts else ""
        return f"{self.outcome.value}: {cost}optimum {self.optimum}"

    def explanation(self) -> str:
        """The first violation, or why there is no plan, as a sentence; empty for a solved board."""
        if self.violation is None:
            return str(self.facts.get("reason", ""))
        who, plural = _agents(self.violation.agents)
        row, column = self.violation.cell
        short = "are not at their goals" if plural else "is not at its goal"
        jump = "jumps to" if self.violation.step else "does not begin at its start but at"
        what = {
            MapfOutcome.ILLEGAL_MOVE: f"{who} {jump} row {row}, column {column}",
            MapfOutcome.OUT_OF_BOUNDS: f"{who} leaves the board at row {row}, column {column}",
            MapfOutcome.HOLE: f"{who} enters the hole at row {row}, column {column}",
            MapfOutcome.VERTEX_CONFLICT: f"{who} meet at row {row}, column {column}",
            MapfOutcome.EDGE_CONFLICT: f"{who} swap cells",
            MapfOutcome.GOAL_NOT_REACHED: f"the plan ends, {who} {short}",
        }[self.violation.outcome]
        return f"step {self.violation.step}: {what}"


def follow(
    board: Board,
    optima: dict[str, int],
    completion: str,
    *,
    objective: str = "makespan",
    truncated: bool = False,
    plan_format: PlanFormat = "lines",
) -> Trajectory:
    """Carry a completion out on a board with its labels ``{makespan, sum_of_costs}`` (steps).

    Raises ValueError if a legal plan beats a label: then the label is wrong.
    """
    verdict = judge(board, optima, objective, completion, truncated, plan_format)
    if isinstance(verdict, Failure):
        raise ValueError(verdict.message)
    plans = parse_plan(completion, len(board.starts), truncated=truncated, plan_format=plan_format)
    run = None if isinstance(plans, Fault) else execute(board, plans)
    cells = (board.starts,) if run is None else run.states
    places = tuple(tuple(board.coordinates(cell) for cell in state) for state in cells)
    if run is not None and run.attempt:
        # A path may jump any number of cells away, which no picture could hold.
        places += (tuple((_near(row, board.n), _near(column, board.n)) for row, column in run.attempt),)
    violation = None if run is None else run.violation
    return Trajectory(board, places, MapfOutcome(verdict.outcome), violation, verdict.facts, optima[objective])


def _near(at: int, n: int) -> int:
    """A row or column, at most one off a board of ``n``."""
    return max(-1, min(at, n))


def frames_text(trajectory: Trajectory) -> str:
    """For a terminal: legend, one board per step and the verdict. ``!`` marks the violation."""
    blocks = [f"step {step}\n{framed(_words(trajectory, step))}" for step in range(trajectory.steps + 1)]
    verdict = [line for line in (trajectory.headline(), trajectory.explanation()) if line]
    return "\n\n".join([legend(trajectory.board), *blocks, "\n".join(verdict)]) + "\n"


def _words(trajectory: Trajectory, step: int) -> list[list[str]]:
    """One word per cell: agents that are there, else a goal or a hole."""
    board, last = trajectory.board, step == trajectory.steps
    words = Board(board.n, board.holes, (), board.goals).cell_words()
    occupied: dict[Place, str] = {}
    for agent, place in enumerate(trajectory.places[step], 1):
        if not all(0 <= at < board.n for at in place):
            place = trajectory.places[step - 1][agent - 1]
        occupied[place] = f"{occupied.get(place, '')}{agent}"
        if last and trajectory.violation and agent in trajectory.violation.agents:
            occupied[place] += "!"
    for (row, column), agents in occupied.items():
        here = words[row][column]
        words[row][column] = agents if here == "." else agents + here
    return words


def _agents(agents: tuple[int, ...]) -> tuple[str, bool]:
    """``agent 1`` or ``agents 1, 2 and 4``, and whether there are several."""
    *most, last = map(str, agents)
    return (f"agents {', '.join(most)} and {last}", True) if most else (f"agent {last}", False)
