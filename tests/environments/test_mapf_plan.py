"""The parser is generous about dress, strict about content, and total."""

from __future__ import annotations

import time
from itertools import product
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.base import Task, Verdict, canonical_json
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.plan import Fault, PlanFault, PlanFormat, parse_plan

RIGHT_DOWN = (("RIGHT", "DOWN"), ("LEFT",))

ACCEPTED = {
    "plain": "1: RIGHT DOWN\n2: LEFT",
    "order": "2: LEFT\n1: RIGHT DOWN",
    "lower case": "1: right down\n2: left",
    "agent word": "Agent 1: RIGHT DOWN\nAgent 2: LEFT",
    "commas": "Agent 1: RIGHT, DOWN\nAgent 2: LEFT.",
    "arrows": "1: RIGHT → DOWN\n2: LEFT",
    "ascii arrows": "1: RIGHT -> DOWN\n2: LEFT",
    "brackets": '1: ["RIGHT", "DOWN"]\n2: [LEFT]',
    "bold": "**Agent 1:** RIGHT DOWN\n**Agent 2**: LEFT",
    "bullets": "- Agent 1: RIGHT DOWN\n- Agent 2: LEFT",
    "fence": "Here you are:\n```text\n1: RIGHT DOWN\n2: LEFT\n```\nDone.",
    "blank line between": "1: RIGHT DOWN\n\n2: LEFT",
    "windows": "1: RIGHT DOWN\r\n2: LEFT\r\n",
    "indent": "  1 : RIGHT DOWN\n\t2 :LEFT",
    "leading zero": "01: RIGHT DOWN\n02: LEFT",
    "text around": "The plan is as follows.\n1: RIGHT DOWN\n2: LEFT\nBoth arrive in time: good.",
    "reasoning": "<think>\n1: UP\n2: UP\n</think>\n1: RIGHT DOWN\n2: LEFT",
    "reasoning opened by the template": "1: UP\n2: UP so no\n</think>\n\n1: RIGHT DOWN\n2: LEFT",
    "reasoning after": "1: RIGHT DOWN\n2: LEFT\n<think>\n1: UP\n2: UP",
    "last block": "1: UP\n2: UP\nNo, better:\n1: RIGHT DOWN\n2: LEFT",
    "last block after a blank line": "1: UP\n2: UP\n\n1: RIGHT DOWN\n2: LEFT",
    "last complete block": "1: RIGHT DOWN\n2: LEFT\nIn particular\n1: UP",
}

REJECTED = {
    "empty": ("", PlanFault.PARSE_ERROR),
    "prose": ("I would go right.", PlanFault.PARSE_ERROR),
    "no colon": ("1 RIGHT DOWN\n2 LEFT", PlanFault.PARSE_ERROR),
    "numbered prose": ("1. RIGHT DOWN\n2. LEFT", PlanFault.PARSE_ERROR),
    "unknown action": ("1: RIGHT JUMP\n2: LEFT", PlanFault.PARSE_ERROR),
    "abbreviation": ("1: R D\n2: L", PlanFault.PARSE_ERROR),
    "coordinates": ("1: (0,0) (0,1)\n2: (1,1)", PlanFault.PARSE_ERROR),
    "remark on the line": ("1: RIGHT DOWN (arrived)\n2: LEFT", PlanFault.PARSE_ERROR),
    "look-alike letters": ("1: RıGHT DOWN\n2: LEFT", PlanFault.PARSE_ERROR),
    "duplicate": ("1: RIGHT\n2: LEFT\n1: DOWN", PlanFault.PARSE_ERROR),
    "extra agent": ("1: RIGHT\n2: LEFT\n3: UP", PlanFault.PARSE_ERROR),
    "extra agent after a blank line": ("1: RIGHT\n2: LEFT\n\n3: UP", PlanFault.PARSE_ERROR),
    "agent zero": ("0: RIGHT\n1: LEFT\n2: UP", PlanFault.PARSE_ERROR),
    "huge agent": ("1: RIGHT\n2: LEFT\n" + "9" * 5000 + ": UP", PlanFault.PARSE_ERROR),
    "only one": ("1: RIGHT DOWN", PlanFault.MISSING_AGENT),
    "torn apart": ("1: RIGHT DOWN\nand\n2: LEFT", PlanFault.MISSING_AGENT),
    "only reasoning": ("<think>1: RIGHT DOWN\n2: LEFT", PlanFault.PARSE_ERROR),
    "closed reasoning": ("<think>\n1: RIGHT DOWN\n2: LEFT\n</think>", PlanFault.PARSE_ERROR),
    "later complete block is wrong": ("1: RIGHT\n2: LEFT\nor\n1: HOP\n2: LEFT", PlanFault.PARSE_ERROR),
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_a_plan_in_any_dress_is_read(text: str) -> None:
    assert parse_plan(text, 2) == RIGHT_DOWN
    assert parse_plan(text, 2, truncated=True) == RIGHT_DOWN, "a complete plan counts even at the token limit"


@pytest.mark.parametrize(("text", "kind"), REJECTED.values(), ids=REJECTED)
def test_anything_else_is_a_fault_of_its_kind(text: str, kind: PlanFault) -> None:
    found = parse_plan(text, 2)
    assert isinstance(found, Fault) and found.kind is kind and found.reason
    cut = parse_plan(text, 2, truncated=True)
    assert isinstance(cut, Fault) and cut.kind is PlanFault.TRUNCATED


def test_an_agent_line_without_actions_is_an_agent_that_stays() -> None:
    assert parse_plan("1:\n2: LEFT", 2) == ((), ("LEFT",))


AS_JSON = {
    "plain": '{"1": ["RIGHT", "DOWN"], "2": ["LEFT"]}',
    "order and case": '{"2": ["left"], "1": ["Right", "down"]}',
    "agent word": '{"agent 1": ["RIGHT", "DOWN"], "Agent_2": ["LEFT"]}',
    "over several lines": '{\n  "1": [\n    "RIGHT",\n    "DOWN"\n  ],\n  "2": ["LEFT"]\n}',
    "fence and prose": 'Here {so far}:\n```json\n{"1": ["RIGHT", "DOWN"], "2": ["LEFT"]}\n```\nDone {really}.',
    "inside another object": '{"thought": "go", "plan": {"1": ["RIGHT", "DOWN"], "2": ["LEFT"]}, "n": {"x": 1}}',
    "reasoning": '<think>{"1": ["UP"], "2": []}</think>{"1": ["RIGHT", "DOWN"], "2": ["LEFT"]}',
    "reasoning opened by the template": '{"1": [], "2": []} no</think>\n{"1": ["RIGHT", "DOWN"], "2": ["LEFT"]}',
    "last object": '{"1": ["UP"], "2": []} or {"1": ["RIGHT", "DOWN"], "2": ["LEFT"]}',
    "last complete object": '{"1": ["RIGHT", "DOWN"], "2": ["LEFT"]} that is {"1": ["UP"]}',
    "broken off afterwards": '{"1": ["RIGHT", "DOWN"], "2": ["LEFT"]} and {"1": ["UP", ',
    "escapes": '{"1": ["\\u0052IGHT", "DOWN"], "2": ["LEFT"]}',
}

NO_JSON = {
    "empty": ("", PlanFault.PARSE_ERROR),
    "lines": ("1: RIGHT DOWN\n2: LEFT", PlanFault.PARSE_ERROR),
    "single quotes": ("{'1': ['RIGHT'], '2': []}", PlanFault.PARSE_ERROR),
    "broken off": ('{"1": ["RIGHT", "DOWN"], "2": ["LEFT"', PlanFault.PARSE_ERROR),
    "a list of lists": ('[["RIGHT", "DOWN"], ["LEFT"]]', PlanFault.PARSE_ERROR),
    "one string": ('{"1": "RIGHT DOWN", "2": "LEFT"}', PlanFault.PARSE_ERROR),
    "numbers": ('{"1": [3, 1], "2": [2]}', PlanFault.PARSE_ERROR),
    "nested too deep": ('{"1": ' + "[" * 100_000 + "]" * 100_000 + ', "2": []}', PlanFault.PARSE_ERROR),
    "null": ('{"1": null, "2": []}', PlanFault.PARSE_ERROR),
    "unknown action": ('{"1": ["JUMP"], "2": []}', PlanFault.PARSE_ERROR),
    "two actions in one": ('{"1": ["RIGHT DOWN"], "2": []}', PlanFault.PARSE_ERROR),
    "look-alike letters": ('{"1": ["R\u0131GHT"], "2": []}', PlanFault.PARSE_ERROR),
    "duplicate": ('{"1": ["UP"], "2": [], "1": []}', PlanFault.PARSE_ERROR),
    "extra agent": ('{"1": [], "2": [], "3": []}', PlanFault.PARSE_ERROR),
    "extra key": ('{"1": [], "2": [], "note": "fast"}', PlanFault.PARSE_ERROR),
    "huge agent": ('{"1": [], "2": [], "' + "9" * 5000 + '": []}', PlanFault.PARSE_ERROR),
    "huge number": ('{"1": [], "2": ' + "9" * 5000 + "}", PlanFault.PARSE_ERROR),
    "only one": ('{"1": ["RIGHT"]}', PlanFault.MISSING_AGENT),
    "torn apart": ('{"1": ["RIGHT"]} {"2": ["LEFT"]}', PlanFault.MISSING_AGENT),
    "only reasoning": ('<think>{"1": ["RIGHT"], "2": []}', PlanFault.PARSE_ERROR),
}

PATHS = (((0, 0), (0, 1), (1, 1)), ((2, 1), (2, 0)))

AS_CELLS = {
    "plain": "1: (0, 0) (0, 1) (1, 1)\n2: (2, 1) (2, 0)",
    "tight": "1: (0,0)(0,1)(1,1)\n2: (2,1)(2,0)",
    "arrows": "Agent 1: (0, 0) -> (0, 1) → (1, 1).\n**Agent 2:** (2, 1) => (2, 0)",
    "lists": "1: [(0, 0), (0, 1), (1, 1)]\n2: [[2, 1], [2, 0]]",
    "words": "1: r0c0 r0c1 R1C1\n2: r2c1, r2c0",
    "reasoning": "<think>1: (9, 9)\n2: (9, 9)</think>1: (0, 0) (0, 1) (1, 1)\n2: (2, 1) (2, 0)",
    "last block": "1: (0, 0)\n2: (2, 1)\nBetter:\n1: (0, 0) (0, 1) (1, 1)\n2: (2, 1) (2, 0)",
}

NO_CELLS = {
    "actions": ("1: RIGHT DOWN\n2: LEFT", PlanFault.PARSE_ERROR),
    "bare numbers": ("1: 0,0 0,1\n2: 2,1", PlanFault.PARSE_ERROR),
    "one number": ("1: (0)\n2: (2, 1)", PlanFault.PARSE_ERROR),
    "fraction": ("1: (0.5, 0)\n2: (2, 1)", PlanFault.PARSE_ERROR),
    "huge number": ("1: (" + "9" * 5000 + ", 0)\n2: (2, 1)", PlanFault.PARSE_ERROR),
    "other digits": ("1: (٣, 0)\n2: (2, 1)", PlanFault.PARSE_ERROR),
    "remark": ("1: (0, 0) done\n2: (2, 1)", PlanFault.PARSE_ERROR),
    "only one": ("1: (0, 0)", PlanFault.MISSING_AGENT),
}


@pytest.mark.parametrize("text", AS_JSON.values(), ids=AS_JSON)
def test_a_plan_in_json_is_read_wherever_it_stands(text: str) -> None:
    assert parse_plan(text, 2, plan_format="json") == RIGHT_DOWN


@pytest.mark.parametrize("text", AS_CELLS.values(), ids=AS_CELLS)
def test_a_path_is_read_in_any_usual_spelling_of_cells(text: str) -> None:
    assert parse_plan(text, 2, plan_format="coordinates") == PATHS


WRONG = {
    f"{plan_format}, {name}": (plan_format, *case)
    for plan_format, cases in (("json", NO_JSON), ("coordinates", NO_CELLS))
    for name, case in cases.items()
}


@pytest.mark.parametrize(("plan_format", "text", "kind"), WRONG.values(), ids=WRONG)
def test_other_formats_fail_by_their_kind_too(plan_format: PlanFormat, text: str, kind: PlanFault) -> None:
    found = parse_plan(text, 2, plan_format=plan_format)
    assert isinstance(found, Fault) and found.kind is kind and found.reason
    cut = parse_plan(text, 2, truncated=True, plan_format=plan_format)
    assert isinstance(cut, Fault) and cut.kind is PlanFault.TRUNCATED


def test_a_path_may_name_cells_off_the_board_and_stay_empty() -> None:
    assert parse_plan("1: (-1, 0) (10, 3)\n2:", 2, plan_format="coordinates") == (((-1, 0), (10, 3)), ())


LONG = [
    *("-", "* ", "1", "<think>", "UP,", "1: ", "1:\n", "\n", "{", '{"1": [', '{"1":[1,', '{"1":1} ', "[", "\\", '"'),
    *("(", "(0", "(0,", "( ", "(0, 1) ", "r", "r1c", "agent ", "</think>", "1: UP\n2: UP\n\n"),
]


@pytest.mark.parametrize("plan_format", get_args(PlanFormat))
def test_reading_takes_linear_time(plan_format: PlanFormat) -> None:
    def seconds(head: str, unit: str, size: int) -> float:
        text = head + unit * (size // len(unit))
        begin = time.process_time()
        parse_plan(text, 2, plan_format=plan_format)
        return time.process_time() - begin

    for head, unit in product(("", '{"1": ' if plan_format == "json" else "1: "), LONG):
        # Sixteen times the text may take sixteen times as long; the square would take 256 times as long.
        short = max(min(seconds(head, unit, 20_000) for _ in range(3)), 1e-3)
        assert min(seconds(head, unit, 320_000) for _ in range(3)) < 160 * short, head + unit


TASK = Task(
    "mapf_frozenlake",
    canonical_json(
        {
            "n": 3,
            "holes": [4],
            "starts": [0, 2],
            "goals": [2, 6],
            "makespan": 4,
            "sum_of_costs": 6,
            "wait_makespan": False,
            "wait_sum_of_costs": False,
        }
    ),
    "3x3",
    "train",
    0,
)
WORDS = ["1:", "2:", "3:", "Agent", "agent 1:", "UP", "DOWN", "left", "RIGHT", "WAIT", "hop", "\n", "\n\n", ",", "->"]
WORDS += ["<think>", "</think>", "```", "**", "-", ":", "1", "٣:", "\x1c", "[", "(0, 1)"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)), st.booleans())
@example("1:" * 50, True)
@settings(max_examples=300, deadline=None)
def test_any_text_gets_a_verdict_from_the_enumeration(text: str, truncated: bool) -> None:
    verdict = MapfFrozenLake().score(TASK, text, truncated=truncated)
    if isinstance(verdict, Verdict):
        assert verdict.outcome in set(MapfFrozenLake.Outcome)
        assert (verdict.reward > 0) == (verdict.outcome in MapfFrozenLake.solved) and 0 <= verdict.reward <= 1
        assert verdict == MapfFrozenLake().score(TASK, text, truncated=truncated)
    else:
        raise AssertionError(f"the labels of the fixture are right, yet: {verdict}")
