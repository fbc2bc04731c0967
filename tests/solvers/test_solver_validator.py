"""The validator names the first violation: earliest step, then kind, then lowest agent."""

from __future__ import annotations

import pytest

from solvers import validate_plan

BOARD = [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("starts", "goals", "plan", "violation"),
    [
        ([0], [2], [("UP",)], ("out_of_bounds", 1, (0,), 0)),
        ([0], [2], [("LEFT",)], ("out_of_bounds", 1, (0,), 0)),
        ([1], [7], [("DOWN", "DOWN")], ("hole", 1, (0,), 4)),
        ([0, 2], [1, 0], [("RIGHT",), ("LEFT", "LEFT")], ("vertex_conflict", 1, (0, 1), 1)),
        ([0, 1], [1, 0], [("RIGHT",), ("LEFT",)], ("edge_conflict", 1, (0, 1), 1)),
        ([0, 3], [1, 1], [("RIGHT",), ("UP", "RIGHT")], ("vertex_conflict", 2, (0, 1), 1)),
        ([0], [2], [("RIGHT",)], ("goal_not_reached", 1, (0,), 1)),
        ([0], [2], [()], ("goal_not_reached", 0, (0,), 0)),
        ([1, 0], [7, 3], [("DOWN",), ("LEFT",)], ("out_of_bounds", 1, (1,), 0)),
        ([0, 1, 8], [1, 0, 8], [("RIGHT",), ("LEFT",), ("DOWN",)], ("out_of_bounds", 1, (2,), 8)),
    ],
)
def test_the_first_violation_is_named(starts, goals, plan, violation):
    check = validate_plan(BOARD, starts, goals, plan)
    assert (check.valid, check.makespan, check.sum_of_costs, check.violation) == (False, None, None, violation)


def test_following_and_rotation_are_legal():
    follow = validate_plan(BOARD, [0, 1], [1, 2], [("RIGHT",), ("RIGHT",)])
    assert (follow.valid, follow.makespan, follow.sum_of_costs) == (True, 1, 2)
    rotate = validate_plan([[0] * 3] * 3, [0, 1, 4, 3], [1, 4, 3, 0], [("RIGHT",), ("DOWN",), ("LEFT",), ("UP",)])
    assert (rotate.valid, rotate.makespan) == (True, 1)


def test_waits_after_the_final_arrival_are_free_and_earlier_ones_count():
    assert validate_plan(BOARD, [0], [1], [("RIGHT", "WAIT", "WAIT")]).sum_of_costs == 1
    assert validate_plan(BOARD, [0], [1], [("WAIT", "RIGHT")]).sum_of_costs == 2
    assert validate_plan(BOARD, [1], [1], [("LEFT", "RIGHT")]).makespan == 2


def test_an_agent_whose_plan_ended_still_blocks():
    check = validate_plan(BOARD, [1, 0], [1, 2], [(), ("RIGHT", "RIGHT")])
    assert check.violation == ("vertex_conflict", 1, (0, 1), 1)


def test_malformed_plans_are_refused():
    with pytest.raises(ValueError, match="has 1 agents; 2 are allowed"):
        validate_plan(BOARD, [0, 1], [1, 2], [()])
    with pytest.raises(ValueError, match="action 'JUMP' in step 1"):
        validate_plan(BOARD, [0], [1], [("JUMP",)])
