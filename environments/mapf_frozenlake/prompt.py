"""What the policy is shown, in two templates, and how an answer is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence

from environments.base import Message
from environments.mapf_frozenlake.board import GOAL_SYMBOLS, START_SYMBOLS, Board, coordinate_word
from environments.mapf_frozenlake.plan import MOVES, Actions, PlanFormat
from environments.mapf_frozenlake.settings import BoardView, Objective
from environments.mapf_frozenlake.verdict import execute

_AIMS = {
    "makespan": "The best plan is the one whose last agent arrives after the fewest steps.",
    "sum_of_costs": "The best plan is the one with the smallest sum of the agents' arrival steps.",
}

# The answer format comes last: a model that merely repeats the prompt then ends on lines that are no plan.
_TEXT = """\
Plan paths for {agents} agents on a frozen lake, a board of {n} rows and {n} columns.

Coordinates are (row, column), counted from 0. Row 0 is the top row, column 0 is the leftmost column.
{moves}

Rules:
- No agent may leave the board or enter a hole.
- After each step no two agents may be on the same cell.
- Two neighbouring agents may not swap cells in one step. Moving into a cell that another agent is just leaving is fine.
- An agent whose list of {items} has ended stays on its cell and blocks it.
- In the end every agent must be on its own goal. {aim}

Example on a board of 3 rows and 3 columns without holes: agent 1 goes from (0, 0) to (0, 2), agent 2 goes from \
(1, 1) to (0, 1). If both set off at once they meet on (0, 1), so agent 2 lets agent 1 pass first:
{example}

{board}

Think it through if you need to, then end your answer with exactly {form}, in this format:
{formats}"""

_ACTIONS = """\
In each step every agent does one action, all at the same time:
UP (row - 1), DOWN (row + 1), LEFT (column - 1), RIGHT (column + 1), WAIT (stay)."""
_CELLS = """\
In each step every agent moves up, down, left or right to a neighbouring cell, or stays on its cell, all at the same \
time.
A list of cells has the start first and then the cell after each step; to stay, repeat the cell."""

_EXAMPLE_BOARD = Board(3, (), (0, 4), (2, 1))
_EXAMPLE_PLAN = (("RIGHT", "RIGHT"), ("WAIT", "UP"))


def format_answer(plans: Sequence[Actions]) -> str:
    """One line per agent: ``1: RIGHT DOWN``."""
    return "\n".join(" ".join([f"{agent}:", *actions]) for agent, actions in enumerate(plans, 1))


def write_answer(
    board: Board, plans: Sequence[Actions], plan_format: PlanFormat = "lines", *, compact: bool = False
) -> str:
    """A legal plan as the parser of ``plan_format`` reads it; ``compact`` has single words with spaces between them."""
    if plan_format == "json":
        listed = {str(agent): list(actions) for agent, actions in enumerate(plans, 1)}
        return _spaced(listed) if compact else json.dumps(listed)
    if plan_format == "coordinates":
        states = execute(board, plans).states
        lengths = [len(actions) + 1 for actions in plans]
        return format_answer(
            [tuple(_cell(board, state[i], compact) for state in states[:length]) for i, length in enumerate(lengths)]
        )
    return format_answer(plans)


def _cell(board: Board, cell: int, compact: bool) -> str:
    return coordinate_word(cell, board.n) if compact else str(board.coordinates(cell))


def _spaced(listed: dict[str, list[str]]) -> str:
    """JSON in which every mark is a word of its own."""
    rows = [f'"{agent}" : [ ' + "".join(f'"{a}" , ' for a in actions) for agent, actions in listed.items()]
    return "{ " + " , ".join(row.removesuffix(", ") + "]" for row in rows) + " }"


def text_prompt(
    board: Board, objective: Objective, board_view: BoardView = "both", plan_format: PlanFormat = "lines"
) -> list[Message]:
    """Rules, example, board and format in plain English, as one user turn."""
    agents = range(1, len(board.starts) + 1)
    cells = plan_format == "coordinates"
    if plan_format == "json":
        form = "one JSON object with the list of actions of each agent"
        formats = json.dumps({str(agent): [f"<actions of agent {agent}>"] for agent in agents})
    else:
        form = "one line for each agent"
        what = "cells" if cells else "actions"
        formats = "\n".join(f"{agent}: <{what} of agent {agent}, separated by spaces>" for agent in agents)
    content = _TEXT.format(
        agents=len(agents),
        n=board.n,
        moves=_CELLS if cells else _ACTIONS,
        items="cells" if cells else "actions",
        aim=_AIMS[objective],
        example=write_answer(_EXAMPLE_BOARD, _EXAMPLE_PLAN, plan_format),
        board=_board(board, board_view),
        form=form,
        formats=formats,
    )
    return [{"role": "user", "content": content}]


def _board(board: Board, board_view: BoardView) -> str:
    """The board in symbols, in sentences, or both."""
    agents = range(1, len(board.starts) + 1)
    legend = ", ".join(f'"{START_SYMBOLS[a - 1]}" start and "{GOAL_SYMBOLS[a - 1]}" goal of agent {a}' for a in agents)
    grid = "\n".join(" ".join(f"{word:<2}" for word in row).rstrip() for row in board.cell_words())
    symbols = f'Your board ("." free, "#" hole, {legend}):\n{grid}'
    tasks = "\n".join(
        f"Agent {agent} starts at {board.coordinates(start)} and must end at {board.coordinates(goal)}."
        for agent, start, goal in zip(agents, board.starts, board.goals, strict=True)
    )
    if board_view == "grid":
        return symbols
    if board_view == "both":
        return f"{symbols}\n\n{tasks}"
    holes = ", ".join(str(board.coordinates(hole)) for hole in board.holes)
    return f"Your board has {f'holes at {holes}' if holes else 'no holes'}. All other cells are free.\n\n{tasks}"


def compact_prompt(board: Board, board_view: BoardView = "both") -> list[Message]:
    """Size, cells and one line per agent: every word is one token of a small word tokenizer."""
    lines = [f"{board.n}x{board.n}"]
    if board_view == "coordinates":
        lines.append(" ".join(["#", *(coordinate_word(hole, board.n) for hole in board.holes)]))
    else:
        lines += [" ".join(row) for row in board.cell_words()]
    if board_view != "grid":
        for agent, (start, goal) in enumerate(zip(board.starts, board.goals, strict=True), 1):
            lines.append(f"{agent} {coordinate_word(start, board.n)} {coordinate_word(goal, board.n)}")
    return [{"role": "user", "content": "\n".join(lines)}]


def compact_vocabulary(sizes: Sequence[int], agents: int, plan_format: PlanFormat = "lines") -> tuple[str, ...]:
    """Every word of compact prompts and of answers, without leading spaces; newline is the tokenizer's own."""
    starts, goals = START_SYMBOLS[:agents], GOAL_SYMBOLS[:agents]
    side = range(max(sizes))
    marks = ("{", "}", "[", "]", ",", ":", *(f'"{word}"' for word in (*MOVES, *starts)))
    return (
        *MOVES,
        *(f"{agent}:" for agent in range(1, agents + 1)),
        *(".", "#"),
        *starts,
        *goals,
        *(start + goal for i, start in enumerate(starts) for j, goal in enumerate(goals) if i != j),
        *(f"{n}x{n}" for n in sizes),
        *(f"r{row}c{column}" for row in side for column in side),
        *(marks if plan_format == "json" else ()),
    )
