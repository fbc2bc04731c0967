"""Claims about replies and engineers."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from environments.base import Message
from orchestrator.engineer.controller import classify, moved, plan, read_rate, share
from orchestrator.engineer.factory import KINDS, build
from orchestrator.engineer.replies import Constraint, parse_reply, reply_constraint, reply_tokens, write_reply
from orchestrator.evidence import CLASSES, Style, compact, swap
from tests.orchestrator.test_evidence import INFO, evidence, long_evidence, table, toy

REPLY = "small mastered share 20 walls 30 hints 2\nlarge hard share 80 walls 50 hints 6"
STYLES: tuple[Style, ...] = ("compact", "full")


def random_reply(rng: random.Random, style: Style) -> tuple[dict[str, Any], str]:
    knobs = toy().random_knobs(rng).model_dump(mode="json")
    return knobs, write_reply(knobs, {name: rng.choice(CLASSES) for name in INFO.strata}, INFO, style)


def allowed(constraint: Constraint, reply: str) -> bool:
    rule = constraint[1]
    if isinstance(rule, str):
        return re.fullmatch(rule, reply) is not None
    return bool(jsonschema.Draft202012Validator(rule).is_valid(json.loads(reply)))


# -------------------------------------------------------------------------------------------------------------- replies


@pytest.mark.parametrize("style", STYLES)
def test_whatever_can_be_written_is_allowed_and_reads_back(style: Style) -> None:
    rng = random.Random(1)
    for _ in range(50):
        knobs, reply = random_reply(rng, style)
        assert allowed(reply_constraint(INFO, style), reply)
        assert parse_reply(reply, INFO, style).knobs == knobs


def test_compact_constraint_allows_nothing_that_the_writer_cannot_write() -> None:
    constraint = reply_constraint(INFO, "compact")
    values: list[list[str]] = [list(CLASSES), *(list(map(str, spec.grid)) for spec in INFO.knobs)]
    written = {" ".join([kind, "share", a, "walls", b, "hints", c]) for kind, a, b, c in itertools.product(*values)}
    _, rule = constraint
    line = re.compile(str(rule).split("\n")[0])
    tried = {
        " ".join([kind, "share", a, "walls", b, "hints", c])
        for kind, a, b, c in itertools.product(
            (*CLASSES, "easy"), map(str, range(-5, 111, 5)), map(str, range(-5, 56, 5)), map(str, range(-1, 10))
        )
    }
    assert {reply for reply in tried if line.fullmatch(f"small {reply}")} == written
    assert not any(
        allowed(constraint, bad) for bad in (REPLY + "\n", REPLY + " ", REPLY.split("\n")[0], "", "x" + REPLY)
    )


def test_json_constraint_refuses_off_grid_missing_and_unknown() -> None:
    constraint = reply_constraint(INFO, "full")
    good = json.loads(random_reply(random.Random(2), "full")[1])
    for spoil in (
        {**good, "strata": {**good["strata"], "small": {**good["strata"]["small"], "walls": 15}}},
        {**good, "strata": {"small": good["strata"]["small"]}},
        {**good, "reward": 2},
        {**good, "expected": {**good["expected"], "small": 2}},
    ):
        assert not allowed(constraint, json.dumps(spoil))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("", "wanted 'small', the reply ended"),
        (REPLY.replace("mastered", "easy"), "wanted 'mastered' or 'learnable'"),
        (REPLY.replace("walls 30", "walls many"), "wanted an integer for small walls, got 'many'"),
        (REPLY + " and more", "wanted the end of the reply"),
        (REPLY[:-2], "wanted an integer for large hints"),
    ],
)
def test_unreadable_compact_replies_say_why(reply: str, error: str) -> None:
    parsed = parse_reply(reply, INFO, "compact")
    assert parsed.knobs is None
    assert error in parsed.error


def test_full_parser_finds_the_object_in_extra_text_and_never_completes_a_cut_table() -> None:
    knobs, reply = random_reply(random.Random(3), "full")
    assert parse_reply(f"Sure {{ok}}:\n```json\n{reply}\n``` done", INFO, "full").knobs == knobs
    table_ends = reply.index('"expected"')
    for cut in range(len(reply)):
        parsed = parse_reply(reply[:cut], INFO, "full")
        assert parsed.knobs in ((None, knobs) if cut >= table_ends - 2 else (None,))
        assert bool(parsed.error) == (parsed.knobs is None)


@pytest.mark.parametrize(
    "text", ["[" * 20_000, '{"strata": ' * 200, "null", '{"strata": []}', '{"strata": {"small": 1}}']
)
def test_full_parser_is_total(text: str) -> None:
    assert parse_reply(text, INFO, "full").error


def test_compact_reply_bound_is_the_number_of_its_words_and_newlines() -> None:
    words = len(re.findall(r"\S+|\n", REPLY))
    assert words <= reply_tokens(INFO, "compact") <= words + 3


# ----------------------------------------------------------------------------------------------------------- controller


def test_share_peaks_where_half_is_solved_and_no_stratum_is_dropped() -> None:
    spec = INFO.knobs[0]
    shares = [share(spec, p / 20) for p in range(21)]
    assert shares[:11] == sorted(shares[:11])
    assert shares == shares[::-1]
    assert (min(shares), max(shares)) == (10, 100)


@pytest.mark.parametrize("spec", INFO.knobs[1:], ids=lambda spec: spec.name)
def test_difficulty_never_falls_when_more_is_solved(spec: Any) -> None:
    for value in spec.grid:
        difficulty = [spec.harder * moved(spec, value, classify(p / 20)) for p in range(21)]
        assert difficulty == sorted(difficulty)
        assert all(abs(d - spec.harder * value) <= spec.step for d in difficulty)


def test_controller_makes_solved_strata_harder_and_failing_ones_easier() -> None:
    made = plan(evidence(), INFO)
    assert made.classes == {"small": "mastered", "large": "hard"}
    assert made.rows == {
        "small": {"share": 70, "walls": 40, "hints": 0},
        "large": {"share": 20, "walls": 40, "hints": 8},
    }


def test_without_a_configuration_to_start_from_difficulty_moves_from_the_defaults() -> None:
    for made in (plan(evidence(0), INFO), plan(evidence(1), INFO, frozenset("FGT"))):
        assert made.rows["small"] == {"share": 70, "walls": 30, "hints": 2}


def test_without_failures_nothing_is_known_and_nothing_is_moved() -> None:
    made = plan(evidence(), INFO, frozenset("GHT"))
    assert set(made.classes.values()) == {"unknown"}
    assert made.rows["large"] == {"share": 50, "walls": 50, "hints": 6}
    assert plan(evidence(small={}), INFO).classes["small"] == "unknown"


def test_read_plan_depends_on_nothing_that_the_compact_text_hides() -> None:
    one = evidence(small={"best": 100, "fair": 50})
    other = evidence(small={"best": 101, "fair": 49})
    assert compact(one, INFO) == compact(other, INFO)
    assert plan(one, INFO, rate=read_rate) == plan(other, INFO, rate=read_rate)


def test_proposal_follows_when_two_strata_exchange_their_results() -> None:
    same = table((50, 20, 4), (50, 20, 4))
    made = evidence(knobs=same)
    before, after = plan(made, INFO).rows, plan(swap(made, "small", "large"), INFO).rows
    assert before["small"] != before["large"]
    assert (after["small"], after["large"]) == (before["large"], before["small"])


# ------------------------------------------------------------------------------------------------------------ engineers


def test_policy_engineer_asks_once_under_the_constraint_and_keeps_the_reply() -> None:
    asked: list[tuple[list[Message], Constraint, int, float, int]] = []

    def generate(
        messages: list[Message], constraint: Constraint, *, max_tokens: int, temperature: float, seed: int
    ) -> str:
        asked.append((messages, constraint, max_tokens, temperature, seed))
        return REPLY

    engineer = build("base", toy(), seed=7, style="compact", generate=generate)
    proposal = engineer.propose(evidence())
    assert proposal.source == "base"
    assert proposal.knobs == table((20, 30, 2), (80, 50, 6)).model_dump()
    assert proposal.reply == REPLY
    assert proposal.rationale == "small mastered large hard"
    assert proposal.expected == {"small": 0, "large": 1}
    assert asked[0][0] == list(proposal.prompt) == compact(evidence(), INFO)
    assert asked[0][1] == reply_constraint(INFO, "compact")
    engineer.propose(evidence())
    engineer.propose(evidence(2))
    assert asked[0][4] == asked[1][4] != asked[2][4]


def test_unreadable_reply_becomes_a_proposal_without_knobs_and_is_counted() -> None:
    def generate(messages: list[Message], constraint: Constraint, **settings: Any) -> str:
        return "I would rather not"

    engineer = build("policy", toy(), seed=7, style="compact", generate=generate)
    proposal = engineer.propose(evidence())
    assert proposal.knobs is None
    assert (proposal.reply, "wanted 'small'" in proposal.error) == ("I would rather not", True)
    restored = build("policy", toy(), seed=7, style="compact", generate=generate)
    restored.load_state_dict(engineer.state_dict())
    assert restored.metrics() == {"engineer/proposals": 1.0, "engineer/unread_share": 1.0}


def test_random_engineer_redraws_each_stage_and_repeats_with_the_seed() -> None:
    first, again, other = (build("random", toy(), seed=seed) for seed in (1, 1, 2))
    drawn = [first.propose(evidence(stage)).knobs for stage in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    assert drawn == [again.propose(evidence(stage)).knobs for stage in range(3)]
    assert drawn != [other.propose(evidence(stage)).knobs for stage in range(3)]


def test_fixed_engineer_keeps_the_configuration() -> None:
    made = long_evidence()
    assert build("fixed", toy(), seed=0).propose(made).knobs == made.knobs


def test_factory_knows_every_kind_and_names_the_nearest() -> None:
    for kind in set(KINDS) - {"policy", "base"}:
        engineer = build(kind, toy(), seed=0)
        engineer.load_state_dict(engineer.state_dict())
        assert engineer.propose(evidence()).source == kind
    with pytest.raises(ValueError, match=r"allowed are policy, base, .*did you mean 'controller'"):
        build("controler", toy(), seed=0)
    with pytest.raises(ValueError, match="needs a model"):
        build("policy", toy(), seed=0)
    with pytest.raises(ValueError, match="unknown context module X"):
        build("controller", toy(), seed=0, modules="FGX")
