"""What the policy is shown, in two templates, and how an answer is written down."""

from __future__ import annotations

from collections.abc import Sequence

from environments.base import Message
from environments.mapf_frozenlake.board import GOAL_SYMBOLS, START_SYMBOLS, Board, coordinate_word
from environments.mapf_frozenlake.plan import MOVES, Actions
from environments.mapf_frozenlake.settings import Objective

_AIMS = {
    "makespan": "The best plan is the one whose last agent arrives after the fewest steps.",
    "sum_of_costs": "The best plan is the one with the smallest sum of the agents' arrival steps.",
}

# The answer format comes last: a model that merely repeats the prompt then ends on lines that are no plan.
_TEXT = """\
Plan paths for {agents} agents on a frozen lake, a board of {n} rows and {n} columns.

Coordinates are (row, column), counted from 0. Row 0 is the top row, column 0 is the leftmost column.
In each step every agent does one action, all at the same time:
UP (row - 1), DOWN (row + 1), LEFT (column - 1), RIGHT (column + 1), WAIT (stay).

Rules:
- No agent may leave the board or enter a hole.
- After each step no two agents may be on the same cell.
- Two neighbouring agents may not swap cells in one step. Moving into a cell that another agent is just leaving is fine.
- An agent whose list of actions has ended stays on its cell and blocks it.
- In the end every agent must be on its own goal. {aim}

Example on a board of 3 rows and 3 columns without holes: agent 1 goes from (0, 0) to (0, 2), agent 2 goes from \
(1, 1) to (0, 1). If both set off at once they meet on (0, 1), so agent 2 lets agent 1 pass first:
1: RIGHT RIGHT
2: WAIT UP

Your board ("." free, "#" hole, {legend}):
{grid}

{tasks}

Think it through if you need to, then end your answer with exactly one line for each agent, in this format:
{formats}"""


def format_answer(plans: Sequence[Actions]) -> str:
    """One line per agent: ``1: RIGHT DOWN``."""
    return "\n".join(" ".join([f"{agent}:", *actions]) for agent, actions in enumerate(plans, 1))


def text_prompt(board: Board, objective: Objective) -> list[Message]:
    """Rules, example, board and format in plain English, as one user turn."""
    agents = range(1, len(board.starts) + 1)
    places = [
        (agent, board.coordinates(start), board.coordinates(goal))
        for agent, start, goal in zip(agents, board.starts, board.goals, strict=True)
    ]
    content = _TEXT.format(
        agents=len(agents),
        n=board.n,
        aim=_AIMS[objective],
        legend=", ".join(
            f'"{START_SYMBOLS[a - 1]}" start and "{GOAL_SYMBOLS[a - 1]}" goal of agent {a}' for a in agents
        ),
        grid="\n".join(" ".join(f"{word:<2}" for word in row).rstrip() for row in board.cell_words()),
        tasks="\n".join(f"Agent {agent} starts at {start} and must end at {goal}." for agent, start, goal in places),
        formats="\n".join(f"{agent}: <actions of agent {agent}, separated by spaces>" for agent in agents),
    )
    return [{"role": "user", "content": content}]


def compact_prompt(board: Board) -> list[Message]:
    """Size, cells and one line per agent: every word is one token of a small word tokenizer."""
    lines = [f"{board.n}x{board.n}", *(" ".join(row) for row in board.cell_words())]
    for agent, (start, goal) in enumerate(zip(board.starts, board.goals, strict=True), 1):
        lines.append(f"{agent} {coordinate_word(start, board.n)} {coordinate_word(goal, board.n)}")
    return [{"role": "user", "content": "\n".join(lines)}]


def compact_vocabulary(sizes: Sequence[int], agents: int) -> tuple[str, ...]:
    """Every word of compact prompts and of answers, without leading spaces; newline is the tokenizer's own."""
    starts, goals = START_SYMBOLS[:agents], GOAL_SYMBOLS[:agents]
    side = range(max(sizes))
    return (
        *MOVES,
        *(f"{agent}:" for agent in range(1, agents + 1)),
        *(".", "#"),
        *starts,
        *goals,
        *(start + goal for i, start in enumerate(starts) for j, goal in enumerate(goals) if i != j),
        *(f"{n}x{n}" for n in sizes),
        *(f"r{row}c{column}" for row in side for column in side),
    )
