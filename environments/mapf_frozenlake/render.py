"""A task and an answer carried out on it, as plain text for a person."""

from __future__ import annotations

from environments.base import Failure, Verdict
from environments.mapf_frozenlake.board import GOAL_SYMBOLS, START_SYMBOLS, Board, coordinate_word
from environments.mapf_frozenlake.plan import Fault, PlanFormat, parse_plan
from environments.mapf_frozenlake.verdict import execute


def legend(board: Board) -> str:
    """One line per agent: symbol and cell of start and goal."""
    return "\n".join(
        f"agent {i + 1}: {START_SYMBOLS[i]} {coordinate_word(start, board.n)} -> {GOAL_SYMBOLS[i]} "
        f"{coordinate_word(goal, board.n)}"
        for i, (start, goal) in enumerate(zip(board.starts, board.goals, strict=True))
    )


def paths(board: Board, completion: str, plan_format: PlanFormat = "lines") -> str:
    """One line per agent with the cells it visits up to the end or the first violation; empty if nothing parses."""
    plans = parse_plan(completion, len(board.starts), plan_format=plan_format)
    if isinstance(plans, Fault):
        return ""
    states = execute(board, plans).states
    return "\n".join(
        f"agent {i + 1}: " + " ".join(coordinate_word(state[i], board.n) for state in states)
        for i in range(len(board.starts))
    )


def verdict_line(verdict: Verdict | Failure) -> str:
    """Outcome, reward and the facts behind them on one line."""
    if isinstance(verdict, Failure):
        return f"failure ({verdict.kind}): {verdict.message}"
    facts = ", ".join(f"{name} {value}" for name, value in verdict.facts.items())
    return f"{verdict.outcome}, reward {verdict.reward:.3f}" + (f": {facts}" if facts else "")
