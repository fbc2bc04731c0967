"""The parser is generous about dress, strict about content, and total."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.base import Task, Verdict, canonical_json
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.plan import Fault, PlanFault, parse_plan

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


def test_reading_takes_linear_time() -> None:
    begin = time.process_time()
    for text in ("-" * 200_000, "* " * 100_000 + "x", "1" * 200_000, "<think>" * 30_000, "1: " + "UP," * 70_000):
        parse_plan(text, 2)
    assert time.process_time() - begin < 5


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
