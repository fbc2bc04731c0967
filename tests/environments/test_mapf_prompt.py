"""What the policy sees: complete, unambiguous, and in the compact template one known word per token."""

from __future__ import annotations

import json
import random
import re
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from environments.base import Task, Verdict, canonical_json, digest
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.plan import Fault, PlanFault, PlanFormat, parse_plan
from environments.mapf_frozenlake.prompt import compact_prompt, format_answer, text_prompt, write_answer
from environments.mapf_frozenlake.settings import BoardView, MapfSettings
from environments.mapf_frozenlake.verdict import MapfOutcome, execute

BOARD = Board(4, (5, 6), (0, 3), (3, 13))
WAYS = list(product(("text", "compact"), get_args(BoardView), get_args(PlanFormat)))


def way(template: str, board_view: BoardView, plan_format: PlanFormat, agents: int = 3) -> MapfFrozenLake:
    return MapfFrozenLake(
        MapfSettings.model_validate(
            {
                "agents": agents,
                "sizes": (3, 5),
                "template": template,
                "board_view": board_view,
                "plan_format": plan_format,
            }
        )
    )


def test_the_compact_prompt_is_size_cells_and_one_line_per_agent() -> None:
    (message,) = compact_prompt(BOARD)
    assert message == {
        "role": "user",
        "content": "4x4\n1 . . 2a\n. # # .\n. . . .\n. b . .\n1 r0c0 r0c3\n2 r0c3 r3c1",
    }
    assert len(message["content"].split()) <= 48


@pytest.mark.parametrize("board_view", get_args(BoardView))
@pytest.mark.parametrize("plan_format", get_args(PlanFormat))
@pytest.mark.parametrize("agents", [2, 3])
def test_the_vocabulary_holds_every_word_of_prompts_and_answers_once(
    agents: int, plan_format: PlanFormat, board_view: BoardView
) -> None:
    env = way("compact", board_view, plan_format, agents)
    words = env.vocabulary()
    assert len(words) == len(set(words)) and not any(word != word.strip() or not word for word in words)
    for task in env.generate(env.default_knobs(), 0, 0, 100):
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


DEFAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"sizes": [3, 6], "objective": "sum_of_costs"}, "0f5229d353c22b90a88720e54bc9a41e"),
    "compact": ({"sizes": [3, 4, 5], "template": "compact"}, "7f5d3edb2d8c41af38edb70d101bb664"),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_prompts_and_words_are_those_of_earlier_releases(name: str) -> None:
    """Models that were warm-started and runs that were recorded depend on every byte of them."""
    settings, wanted = DEFAULTS[name]
    env, rng = MapfFrozenLake(MapfSettings.model_validate(settings)), random.Random(7)
    prompts = []
    for n in settings["sizes"] * 9:
        cells = rng.sample(range(n * n), 4 + n)
        board = Board(n, tuple(sorted(cells[4:])), tuple(cells[:2]), tuple(cells[2:4]))
        prompts.append(env.prompt(Task(env.name, canonical_json(board.payload()), f"{n}x{n}", "train", 0)))
    words = [*env.vocabulary(), *(outcome.value for outcome in env.Outcome)]
    assert digest([prompts, words]) == wanted


@pytest.mark.parametrize(("template", "board_view", "plan_format"), WAYS)
def test_in_every_way_of_asking_best_answers_earn_one_and_echoes_nothing(
    template: str, board_view: BoardView, plan_format: PlanFormat
) -> None:
    env = way(template, board_view, plan_format)
    for task in env.generate(env.default_knobs(), 1, 0, 60):
        best, chat = env.answer(task), env.prompt(task)[0]["content"]
        for text in (best, f"<think>\n{chat}\n</think>\n\n{best}", f"First {best[:7]}.\n```\n{best}\n```\nDone."):
            found = env.score(task, text)
            assert isinstance(found, Verdict) and (found.outcome, found.reward) == ("optimal", 1.0), text
        for text in (chat, f"{best}\n\n{chat}" if template == "text" else chat, f"<think>{best}", ""):
            found = env.score(task, text)
            assert isinstance(found, Verdict) and (found.outcome, found.reward) == ("parse_error", 0.0), text


def test_a_board_is_shown_in_symbols_in_coordinates_or_in_both() -> None:
    grid, places, both = (text_prompt(BOARD, "makespan", view)[0]["content"] for view in get_args(BoardView))
    assert "1  .  .  2a\n.  #  #  .\n" in grid and "Agent 1 starts" not in grid
    assert "Your board has holes at (1, 1), (1, 2). All other cells are free.\n\nAgent 1 starts at (0, 0)" in places
    assert "#" not in places
    assert "1  .  .  2a\n" in both and "Agent 2 starts at (0, 3) and must end at (3, 1)." in both
    bare = text_prompt(Board(3, (), (0, 1), (2, 3)), "makespan", "coordinates")[0]["content"]
    assert "Your board has no holes." in bare
    assert compact_prompt(BOARD, "grid")[0]["content"] == "4x4\n1 . . 2a\n. # # .\n. . . .\n. b . ."
    assert compact_prompt(BOARD, "coordinates")[0]["content"] == "4x4\n# r1c1 r1c2\n1 r0c0 r0c3\n2 r0c3 r3c1"


def test_a_plan_is_written_in_each_format_as_its_parser_reads_it() -> None:
    plans = (("WAIT", "DOWN"), ("LEFT",))
    written = {
        ("lines", False): "1: WAIT DOWN\n2: LEFT",
        ("json", False): '{"1": ["WAIT", "DOWN"], "2": ["LEFT"]}',
        ("json", True): '{ "1" : [ "WAIT" , "DOWN" ] , "2" : [ "LEFT" ] }',
        ("coordinates", False): "1: (0, 0) (0, 0) (1, 0)\n2: (0, 3) (0, 2)",
        ("coordinates", True): "1: r0c0 r0c0 r1c0\n2: r0c3 r0c2",
    }
    for (plan_format, compact), text in written.items():
        assert write_answer(BOARD, plans, plan_format, compact=compact) == text
        read = parse_plan(text, 2, plan_format=plan_format)
        assert read == plans or (plan_format == "coordinates" and not isinstance(read, Fault))
    assert json.loads(write_answer(BOARD, ((), ()), "json", compact=True)) == {"1": [], "2": []}


def test_a_plan_in_another_format_than_asked_for_is_no_plan() -> None:
    texts = {name: write_answer(BOARD, (("DOWN",), ("LEFT",)), name) for name in get_args(PlanFormat)}
    for asked, (name, text) in product(texts, texts.items()):
        found = parse_plan(text, 2, plan_format=asked)
        assert (asked == name) == (not isinstance(found, Fault)), (asked, text)
        assert asked == name or found.kind is PlanFault.PARSE_ERROR


TEMPLATES = {
    "no thinking mode": "{{ messages[0]['content'] }}\nassistant:",
    "an empty thought where thinking is off": (
        "{{ messages[0]['content'] }}\nassistant:{% if not enable_thinking %}<think>\n\n</think>\n{% endif %}"
    ),
    "a thought begun where thinking is on": (
        "{{ messages[0]['content'] }}\nassistant:{% if enable_thinking %}<think>\n{% endif %}"
    ),
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("plan_format", get_args(PlanFormat))
def test_chat_templates_with_and_without_thinking_lead_to_the_same_plan(
    plan_format: PlanFormat, thinking: bool, template: str
) -> None:
    from jinja2 import Template

    env = way("text", "both", plan_format, agents=2)
    for task in env.generate(env.default_knobs(), 2, 0, 5):
        best, trial = env.answer(task), env.answer(task).replace("UP", "DOWN")
        asked = Template(template).render(messages=env.prompt(task), enable_thinking=thinking)
        begun = asked.rpartition("assistant:")[2]
        opened = begun.count("<think>") > begun.count("</think>")
        thought = f"{'' if opened else '<think>'}{trial}\nno, better:\n{best[:9]}</think>\n\n" if thinking else ""
        found = env.score(task, thought + best)
        assert isinstance(found, Verdict) and found.reward == 1.0


PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "prompts.md"


def test_the_page_on_prompts_shows_every_way_of_asking_as_it_is() -> None:
    shown = re.findall(r"^```text\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    task = Task("mapf_frozenlake", canonical_json(BOARD.payload()), "4x4", "train", 0)
    plans = (("RIGHT",) * 3, ("DOWN",) * 3 + ("LEFT",) * 2)
    views = {view: text_prompt(BOARD, "makespan", view)[0]["content"] for view in get_args(BoardView)}
    parts = {view: text[text.index("Your board") : text.index("\n\nThink it")] for view, text in views.items()}
    assert set(parts.values()) <= set(shown)
    for template, view, plan_format in WAYS:
        content = way(template, view, plan_format, agents=2).prompt(task)[0]["content"]
        # The page has each text prompt with both views of the board, and the views on their own.
        assert content.replace(parts[view], parts["both"]) in shown, (template, view, plan_format)
        assert write_answer(BOARD, plans, plan_format, compact=template == "compact") in shown


def test_the_page_on_prompts_lists_every_outcome_in_order() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ", PAGE.read_text().partition("## What becomes of it")[2], re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert listed == [outcome.value for outcome in MapfOutcome]
