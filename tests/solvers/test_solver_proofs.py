"""Boards with a known answer: proofs of unsolvability, rotations, and the traps of the problem."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from solvers import ACTIONS, Status, solve, solve_batch, validate_plan

OPEN = np.zeros((3, 3), bool)
RING = np.zeros((3, 3), bool)
RING[1, 1] = True
ROUND = [0, 1, 2, 5, 8, 7, 6, 3]


def room(size, cells):
    holes = np.ones((size, size), bool)
    holes.reshape(-1)[list(cells)] = False
    return holes


def test_agents_on_a_ring_cannot_change_their_cyclic_order():
    """Every two of the three can pass around each other, all three cannot: only the joint space is a proof."""
    starts, goals = [0, 2, 8], [2, 0, 8]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert solve(RING, [starts[a], starts[b]], [goals[a], goals[b]]).status == Status.SOLVABLE
    labels = solve(RING, starts, goals)
    assert labels.status == Status.UNSOLVABLE
    assert (labels.makespan, labels.plan_makespan, labels.wait_makespan) == (None, None, None)


def test_a_full_square_solves_rotations_only():
    square = room(3, (0, 1, 3, 4))
    assert solve(square, [0, 1, 4, 3], [1, 4, 3, 0]).makespan == 1
    assert solve(square, [0, 1, 4, 3], [1, 0, 4, 3]).status == Status.UNSOLVABLE


def test_a_corridor_without_a_siding_is_unsolvable():
    assert solve(room(3, (0, 1, 2)), [0, 2], [2, 0]).status == Status.UNSOLVABLE


def test_a_goal_in_another_component_is_unsolvable():
    assert solve(room(3, (0, 1, 7, 8)), [0], [8]).status == Status.UNSOLVABLE


def test_a_siding_costs_a_wait():
    labels = solve(room(3, (0, 1, 2, 4)), [0, 2], [2, 0])
    assert (labels.makespan, labels.sum_of_costs, labels.wait_makespan) == (4, 7, True)


def test_components_share_one_makespan():
    """The lower pair needs a wait at its own optimum, but not when the long way of another agent sets the makespan."""
    holes = room(5, (0, 1, 2, 3, 4, 10, 11, 12, 16))
    pair = solve(holes, [10, 12], [12, 10])
    both = solve(holes, [10, 12, 0], [12, 10, 4])
    assert both.makespan == max(pair.makespan, 4)
    assert both.sum_of_costs == pair.sum_of_costs + 4


def test_rotation_of_all_eight_cells_is_one_step():
    holes = room(3, ROUND)
    labels = solve(holes, ROUND[:5], ROUND[1:6])
    assert (labels.makespan, labels.sum_of_costs, labels.wait_makespan) == (1, 5, False)


@pytest.mark.parametrize(("starts", "goals", "cost"), [([4], [4], 0), ([0, 4], [0, 4], 0)])
def test_agents_that_start_at_their_goals_have_nothing_to_do(starts, goals, cost):
    labels = solve(OPEN, starts, goals)
    assert (labels.status, labels.makespan, labels.sum_of_costs) == (Status.SOLVABLE, 0, cost)
    assert labels.plan_makespan == ((),) * len(starts)


def test_an_agent_that_must_step_aside_pays_until_it_is_back():
    """The middle agent starts on its goal, lets the other one follow through, and is back in the second step."""
    labels = solve(room(3, (0, 1, 2, 4)), [1, 0], [1, 2])
    assert (labels.makespan, labels.sum_of_costs) == (2, 4)


def test_a_spent_budget_is_undecided_and_never_unsolvable():
    generator = np.random.default_rng(0)
    board = generator.random((10, 10)) < 0.3
    free = np.flatnonzero(~board.reshape(-1))
    starts, goals = generator.permutation(free)[:5], generator.permutation(free)[:5]
    full = solve(board, starts, goals)
    tiny = solve(board, starts, goals, node_budget=1)
    if full.status == Status.SOLVABLE:
        assert tiny.status in (Status.UNDECIDED, Status.SOLVABLE)
    labels = solve(RING, [0, 2, 8], [2, 0, 8], node_budget=3)
    assert labels.status == Status.UNDECIDED
    assert (labels.makespan, labels.sum_of_costs, labels.wait_makespan) == (None, None, None)


def test_only_wanted_labels_are_filled():
    labels = solve(OPEN, [0, 1], [1, 0], want={"makespan"})
    assert labels.status == Status.SOLVABLE
    assert labels.makespan is not None and labels.plan_makespan is not None
    assert (labels.sum_of_costs, labels.wait_makespan, labels.plan_sum_of_costs) == (None, None, None)


def test_an_empty_batch_has_no_labels():
    empty = solve_batch(np.zeros((0, 4, 4), bool), np.zeros((0, 2), int), np.zeros((0, 2), int))
    assert len(empty) == 0
    assert empty.plan_makespan.shape == (0, 2, 0)


def test_arrays_have_the_promised_types():
    labels = solve_batch(OPEN[None], np.array([[0, 1]]), np.array([[1, 0]]))
    promised = {
        "status": "uint8", "makespan": "int16", "sum_of_costs": "int16", "wait_makespan": "int8",
        "wait_sum_of_costs": "int8", "plan_makespan": "uint8", "plan_makespan_length": "int16",
        "plan_sum_of_costs": "uint8", "plan_sum_of_costs_length": "int16", "expansions": "int64",
    }  # fmt: skip
    for field, dtype in promised.items():
        assert getattr(labels, field).dtype == dtype
        assert getattr(labels, field).flags.c_contiguous
    assert set(labels[0].plan_makespan[0]) <= set(ACTIONS)


def test_threads_do_not_disturb_each_other():
    generator = np.random.default_rng(8)
    holes = generator.random((60, 6, 6)) < 0.25
    cells = [generator.permutation(np.flatnonzero(~board.reshape(-1))) for board in holes]
    starts, goals = np.stack([c[:4] for c in cells]), np.stack([c[-4:] for c in cells])
    expected = solve_batch(holes, starts, goals)
    answers = [None] * 4

    def work(number):
        answers[number] = solve_batch(holes, starts, goals)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        for field in ("status", "makespan", "sum_of_costs", "plan_makespan", "plan_sum_of_costs", "expansions"):
            np.testing.assert_array_equal(getattr(answer, field), getattr(expected, field))


def test_the_seven_cell_room_is_certified():
    holes = room(3, (0, 1, 2, 3, 4, 5, 6))
    labels = solve(holes, [0, 2, 6], [6, 0, 2])
    assert validate_plan(holes, [0, 2, 6], [6, 0, 2], labels.plan_sum_of_costs).valid
