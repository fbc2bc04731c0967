"""Claims about the gate."""

from __future__ import annotations

from typing import Any

import pytest

from environments.base import Environment, Knobs
from orchestrator.gate import CHECKS, Finding, decide
from orchestrator.records import Decision, Proposal
from tests.orchestrator.test_evidence import table, toy

PREVIOUS = table((50, 20, 4), (50, 20, 4))
GOOD = table((70, 30, 4), (100, 10, 2)).model_dump()


def proposed(knobs: dict[str, Any] | None, error: str = "") -> Proposal:
    return Proposal(source="policy", knobs=knobs, error=error, reply="as written")


def fallback() -> Proposal:
    return Proposal(source="controller", knobs=GOOD)


def never() -> Proposal:
    raise AssertionError("the fallback was asked although the proposal is usable")


def judged(knobs: dict[str, Any] | None, ask: Any = never) -> Decision:
    return decide(proposed(knobs), PREVIOUS, toy(), ask)


def with_cell(stratum: str, knob: str, value: object) -> dict[str, Any]:
    strata = {name: dict(row) for name, row in GOOD["strata"].items()}
    strata[stratum][knob] = value
    return {"strata": strata}


def test_usable_proposal_is_accepted_with_its_changes() -> None:
    decision = judged(GOOD)
    assert decision.status == "accepted"
    assert decision.fallback is None
    assert all(check.passed for check in decision.checks)
    assert [check.name for check in decision.checks] == ["schema", "normalisation", "feasibility"]
    assert decision.changes[:2] == ("small share 50 → 70", "small walls 20 → 30")


def test_normalising_shares_is_no_repair() -> None:
    twice = table((40, 30, 4), (40, 10, 2)).model_dump()
    decision = judged(twice)
    assert decision.status == "accepted"
    assert decision.knobs == table((40, 30, 4), (40, 10, 2)).normalised().model_dump()


def test_unchanged_configuration_is_taken_as_it_is() -> None:
    odd = table((70, 20, 4), (70, 20, 4))
    decision = decide(proposed(odd.model_dump()), odd, toy(), never)
    assert (decision.status, decision.knobs, decision.changes) == ("accepted", odd.model_dump(), ())


@pytest.mark.parametrize(
    ("stratum", "knob", "value", "taken", "check", "reason"),
    [
        ("large", "walls", 90, 50, "schema", "large.walls = 90 is not one of 0..50 step 10, took 50"),
        ("large", "walls", 14, 10, "schema", "took 10"),
        ("large", "hints", -3, 0, "schema", "took 0"),
        ("large", "hints", 10**400, 8, "schema", "took 8"),
        ("large", "walls", float("inf"), 50, "schema", "took 50"),
        ("small", "walls", 50, 40, "feasibility", "small.walls = 50: no room (nearest that works: 40)"),
    ],
)
def test_values_out_of_bounds_or_infeasible_are_repaired_and_the_reason_is_kept(
    stratum: str, knob: str, value: float, taken: int, check: str, reason: str
) -> None:
    decision = judged(with_cell(stratum, knob, value))
    assert decision.status == "repaired"
    assert decision.knobs["strata"][stratum][knob] == taken
    failed = [c for c in decision.checks if not c.passed]
    assert [c.name for c in failed] == [check]
    assert reason in failed[0].reason


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({}, "no table of strata"),
        ({"strata": {"small": GOOD["strata"]["small"]}}, "missing large"),
        ({"strata": {**GOOD["strata"], "huge": {}}}, "unknown huge"),
        (with_cell("small", "reward", 9), "unknown reward"),
        (with_cell("small", "walls", "many"), "small.walls is not a number"),
        (with_cell("small", "walls", True), "small.walls is not a number"),
        (with_cell("small", "walls", float("nan")), "small.walls is not a number"),
        (table((10, 0, 0), (10, 10, 0)).model_dump() | {"strata": {}}, "missing small, large"),
        (with_cell("large", "walls", 0), "large.walls = 0: too plain"),
    ],
)
def test_unfixable_proposal_is_replaced_by_the_fallback_and_kept_with_the_reason(
    knobs: dict[str, Any], reason: str
) -> None:
    decision = judged(knobs, fallback)
    assert decision.status == "replaced"
    assert decision.proposal.reply == "as written"
    assert decision.fallback == fallback()
    assert decision.knobs == GOOD
    assert reason in next(check.reason for check in decision.checks if not check.passed)


def test_no_data_at_all_is_unfixable() -> None:
    nothing = {"strata": {name: {**row, "share": 0} for name, row in GOOD["strata"].items()}}
    decision = judged(nothing, fallback)
    assert decision.status == "replaced"
    assert "every share is 0" in decision.checks[0].reason


def test_unparseable_reply_is_replaced() -> None:
    decision = decide(proposed(None, "wanted 'small', the reply ended"), PREVIOUS, toy(), fallback)
    assert decision.status == "replaced"
    assert decision.checks[0].reason == "wanted 'small', the reply ended"
    assert [check.name for check in decision.checks[1:]] == [
        "fallback.schema",
        "fallback.normalisation",
        "fallback.feasibility",
    ]


def test_previous_configuration_stays_if_the_fallback_fails_too() -> None:
    decision = judged({}, lambda: proposed(None))
    assert (decision.status, decision.knobs, decision.changes) == ("replaced", PREVIOUS.model_dump(), ())


def test_further_checks_can_be_appended() -> None:
    def no_forgetting(knobs: Knobs[Any], environment: Environment) -> Finding:
        return Finding(None, "large was solved and got no data")

    decision = decide(proposed(GOOD), PREVIOUS, toy(), fallback, [*CHECKS, ("no forgetting", no_forgetting)])
    assert decision.status == "replaced"
    assert decision.knobs == PREVIOUS.model_dump()
