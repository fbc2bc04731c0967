from __future__ import annotations

from typing import Any

from orchestrator.counterfactual import Counterfactual, compare
from orchestrator.records import Proposal


def proposal(small: int, large: int) -> Proposal:
    return Proposal("policy", {"strata": {"small": {"share": small}, "large": {"share": large}}})


EXPECTED, EXPECTED_AFTER = proposal(80, 20), proposal(20, 80)


def test_an_engineer_that_moves_as_the_controller_does_follows_every_cell() -> None:
    assert compare(EXPECTED, EXPECTED_AFTER, proposal(70, 30), proposal(40, 50)) == Counterfactual(2, 2)


def test_an_engineer_that_ignores_its_evidence_follows_none() -> None:
    assert compare(EXPECTED, EXPECTED_AFTER, proposal(50, 50), proposal(50, 50)) == Counterfactual(2, 0)


def test_moving_the_wrong_way_is_not_following() -> None:
    assert compare(EXPECTED, EXPECTED_AFTER, proposal(10, 30), proposal(40, 50)) == Counterfactual(2, 1)


def test_cells_that_the_controller_leaves_alone_are_not_asked() -> None:
    assert compare(EXPECTED, EXPECTED, proposal(10, 30), proposal(40, 50)) == Counterfactual(0, 0)


def test_a_reply_that_could_not_be_read_follows_nothing() -> None:
    unread: Any = Proposal("policy", None, error="no")
    assert compare(EXPECTED, EXPECTED_AFTER, unread, unread) == Counterfactual(2, 0)
