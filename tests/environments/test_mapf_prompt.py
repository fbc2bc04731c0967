"""What the policy sees: complete, unambiguous, and in the compact template one known word per token."""

from __future__ import annotations

import pytest

from environments.base import Verdict
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.plan import parse_plan
from environments.mapf_frozenlake.prompt import compact_prompt, format_answer, text_prompt
from environments.mapf_frozenlake.settings import MapfSettings
from environments.mapf_frozenlake.verdict import execute

BOARD = Board(4, (5, 6), (0, 3), (3, 13))


def test_the_compact_prompt_is_size_cells_and_one_line_per_agent() -> None:
    (message,) = compact_prompt(BOARD)
    assert message == {
        "role": "user",
        "content": "4x4\n1 . . 2a\n. # # .\n. . . .\n. b . .\n1 r0c0 r0c3\n2 r0c3 r3c1",
    }
    assert len(message["content"].split()) <= 48


@pytest.mark.parametrize("agents", [2, 3])
def test_the_vocabulary_holds_every_word_of_prompts_and_answers_once(agents: int) -> None:
    env = MapfFrozenLake(MapfSettings(agents=agents, sizes=(3, 4, 5), template="compact"))
    words = env.vocabulary()
    assert len(words) == len(set(words)) and not any(word != word.strip() or not word for word in words)
    for task in env.generate(env.default_knobs(), 0, 0, 300):
        text = env.prompt(task)[0]["content"] + "\n" + env.answer(task)
        assert set(text.split()) <= set(words)
        assert all(line == " ".join(line.split()) for line in text.splitlines()), "single spaces only"


def test_the_text_prompt_states_board_places_objective_and_format() -> None:
    content = text_prompt(BOARD, "makespan")[0]["content"]
    assert "Agent 1 starts at (0, 0) and must end at (0, 3)." in content
    assert "Agent 2 starts at (0, 3) and must end at (3, 1)." in content
    assert "1  .  .  2a\n.  #  #  .\n.  .  .  .\n.  b  .  ." in content
    assert content.splitlines()[-2:] == [
        "1: <actions of agent 1, separated by spaces>",
        "2: <actions of agent 2, separated by spaces>",
    ]
    assert "fewest steps" in content and "smallest sum" in text_prompt(BOARD, "sum_of_costs")[0]["content"]


def test_the_worked_example_is_right_and_repeating_the_prompt_is_not_an_answer() -> None:
    example = Board(3, (), (0, 4), (2, 1))
    content = text_prompt(BOARD, "makespan")[0]["content"]
    shown = "\n".join(line for line in content.splitlines() if line in ("1: RIGHT RIGHT", "2: WAIT UP"))
    plan = parse_plan(shown, 2)
    assert isinstance(plan, tuple)
    run = execute(example, plan)
    assert run.violation is None and run.makespan == 2
    assert "Row 0 is the top row" in content
    env = MapfFrozenLake(MapfSettings(sizes=(3,)))
    for task in env.generate(env.default_knobs(), 0, 0, 50):
        echoed = env.score(task, env.prompt(task)[0]["content"])
        assert isinstance(echoed, Verdict) and echoed.reward == 0.0


def test_an_answer_is_written_as_it_is_read() -> None:
    plans = (("RIGHT", "WAIT"), ("UP",))
    assert format_answer(plans) == "1: RIGHT WAIT\n2: UP"
    assert parse_plan(format_answer(plans), 2) == plans
