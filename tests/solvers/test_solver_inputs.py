"""A malformed batch is refused with one message that names the field, the value and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from solvers import solve, solve_batch

GOOD = {"holes": np.zeros((2, 3, 3), bool), "starts": np.array([[0, 1], [0, 1]]), "goals": np.array([[2, 3], [2, 3]])}
WALL = np.zeros((2, 3, 3), bool)
WALL[1, 0, 1] = True


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("holes", np.zeros((2, 3, 4), bool), r"holes: shape \(2, 3, 4\).*\[B, n, n\]"),
        ("holes", np.zeros((3, 3), bool), r"holes: shape \(3, 3\)"),
        ("holes", np.zeros((2, 2, 2), bool), r"holes: board size 2 .*3\.\.10"),
        ("holes", np.zeros((2, 11, 11), bool), r"holes: board size 11 .*3\.\.10"),
        ("holes", np.zeros((2, 3, 3), float), r"holes: dtype float64"),
        ("holes", np.full((2, 3, 3), 2), r"holes: value 2 in instance 0 .*only 0 and 1"),
        ("holes", WALL, r"starts: cell 1 of agent 1 in instance 1 is a hole"),
        ("starts", np.array([[0, 1]]), r"starts: shape \(1, 2\).*\[2, k\]"),
        ("starts", np.array([0, 1]), r"starts: shape \(2,\)"),
        ("starts", np.zeros((2, 0), int), r"starts: 0 agents .*1\.\.5"),
        ("starts", np.tile(np.arange(6), (2, 1)), r"starts: 6 agents .*1\.\.5"),
        ("starts", np.array([[0, 1], [0.0, 1]]), r"starts: dtype float64"),
        ("starts", np.array([[0, 1], [0, 9]]), r"starts: cell 9 of agent 1 in instance 1 .*0\.\.8"),
        ("goals", np.array([[2, 3], [-1, 3]]), r"goals: cell -1 of agent 0 in instance 1 .*0\.\.8"),
        ("starts", np.array([[0, 1], [4, 4]]), r"starts: cell 4 occurs twice in instance 1"),
        ("goals", np.array([[5, 5], [2, 3]]), r"goals: cell 5 occurs twice in instance 0"),
        ("goals", np.array([[2, 3, 4], [2, 3, 4]]), r"goals: has 3 agents, starts has 2"),
    ],
)
def test_a_bad_field_is_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        solve_batch(**{**GOOD, field: value})


def test_options_are_checked_too():
    with pytest.raises(ValueError, match="node_budget: 0 is not allowed"):
        solve_batch(**GOOD, node_budget=0)
    with pytest.raises(ValueError, match=r"want: \['fuel'\] is not allowed"):
        solve_batch(**GOOD, want={"fuel"})
    with pytest.raises(ValueError, match="starts: shape"):
        solve(np.zeros((3, 3), bool), 4, 5)
