"""Boards on which the quick stages do not suffice: every one is decided, and unrelated searches agree."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.solver_instances import Stratum, batches, board_of, draw, read
from solvers import Status, solve_batch, validate_plan

SLOWEST = Path(__file__).parent / "slowest.jsonl"


def label_again(holes, starts, goals):
    """The labels by the searches behind the quick stages alone: breadth-first sweeps and A* with tables of three."""
    from solvers.kernels.label import COLUMNS, FALLBACKS_ONLY, MAKESPAN, STATUS, WAIT_COST, label_batch
    from solvers.kernels.workspace import HORIZON, allocate

    answers = np.empty((len(starts), COLUMNS), np.int64)
    plans = np.full((len(starts), 2, starts.shape[1], HORIZON), 4, np.uint8)
    label_batch(allocate(), holes, starts, goals, 15 | FALLBACKS_ONLY, 10**6, answers, plans)
    return answers[:, [STATUS, *range(MAKESPAN, WAIT_COST + 1)]]


def columns(labels):
    fields = (labels.status, labels.makespan, labels.sum_of_costs, labels.wait_makespan, labels.wait_sum_of_costs)
    return np.stack([field.astype(np.int64) for field in fields], axis=1)


@pytest.mark.parametrize(
    ("size", "agents", "holes"), [(4, 3, 30), (5, 4, 40), (6, 4, 40), (7, 3, 30), (10, 3, 40), (9, 5, 55)]
)
def test_unrelated_searches_agree_and_the_validator_certifies_the_plans(size, agents, holes):
    generator = np.random.default_rng(size)
    boards = [draw(Stratum("", size, agents, holes), generator) for _ in range(40)]
    for batch in batches(boards):
        labels = solve_batch(*batch)
        np.testing.assert_array_equal(columns(labels), label_again(*batch))
        for board, one in zip(zip(*batch, strict=True), labels, strict=True):
            if one.status == Status.SOLVABLE:
                fast = validate_plan(*board, one.plan_makespan)
                cheap = validate_plan(*board, one.plan_sum_of_costs)
                assert fast.makespan == one.makespan <= cheap.makespan
                assert cheap.sum_of_costs == one.sum_of_costs <= fast.sum_of_costs


def test_boards_without_a_plan_are_proven_so_though_every_agent_alone_has_one():
    for batch in batches(read()["unsolvable"]):
        assert set(solve_batch(*batch).status.tolist()) == {int(Status.UNSOLVABLE)}


STUCK = [
    {"n": 4, "holes": "354d", "starts": [1, 5, 4, 9, 7], "goals": [9, 4, 5, 1, 15]},
    {"n": 9, "holes": "1aec0e269dd27b1450b1f", "starts": [65, 26, 35, 25], "goals": [60, 35, 26, 17]},
]


@pytest.mark.parametrize("row", STUCK)
def test_a_part_of_the_agents_that_is_stuck_is_a_proof_for_all(row):
    """Three or four of these refute every makespan with a handful of configurations: counting them never ends it."""
    holes, starts, goals = board_of(row)
    assert solve_batch(holes[None], starts[None], goals[None]).status.tolist() == [int(Status.UNSOLVABLE)]


def test_five_agents_in_a_perfect_maze_have_a_shortest_plan_or_a_proof_that_there_is_none():
    """Plain breadth-first search from both ends needs more than twenty million configurations for some of these."""
    for batch in batches(read()["mazes"][:15]):
        labels = solve_batch(*batch, want=["makespan"])
        assert int(Status.UNDECIDED) not in labels.status.tolist()
        for board, one in zip(zip(*batch, strict=True), labels, strict=True):
            if one.status == Status.SOLVABLE:
                assert validate_plan(*board, one.plan_makespan).makespan == one.makespan


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_ten_slowest_of_all_random_boards_keep_their_labels():
    """Found by `python -m benchmarks solver_tail`: seconds each, and more than other searches can do."""
    check_slowest(10)


def test_the_quickest_of_the_ten_slowest_keep_their_labels():
    check_slowest(2)


def check_slowest(count):
    rows = [json.loads(line) for line in SLOWEST.read_text().splitlines()]
    assert len(rows) == 10
    for row in sorted(rows, key=lambda row: row["ms"])[:count]:
        holes, starts, goals = board_of(row)
        labels = solve_batch(holes[None], starts[None], goals[None])
        assert columns(labels)[0].tolist() == row["labels"]
        if labels[0].status == Status.SOLVABLE:  # one of the ten is a proof that there is no plan
            assert validate_plan(holes, starts, goals, labels[0].plan_sum_of_costs).sum_of_costs == row["labels"][2]
            assert validate_plan(holes, starts, goals, labels[0].plan_makespan).makespan == row["labels"][1]


LONG = """
import sys, numpy as np, solvers
solvers.warm_up()
from benchmarks.solver_instances import batches, read
holes, starts, goals = next(batches(read()["S4"]))
print("ready", flush=True)
solvers.solve_batch(np.tile(holes, (400, 1, 1)), np.tile(starts, (400, 1)), np.tile(goals, (400, 1)))
print("finished")
"""


def test_ctrl_c_interrupts_a_long_batch():
    """An hour of boards in one call: the signal ends it, though the kernel never returns to Python by itself."""
    process = subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "finished" not in output
    assert errors.strip().endswith("KeyboardInterrupt")


def test_a_batch_is_right_after_another_one_was_called_off():
    from solvers import batch as front
    from solvers.kernels.workspace import CANCEL

    board = draw(Stratum("", 5, 3, 30), np.random.default_rng(1))
    before = solve_batch(*(field[None] for field in board))
    workspace = front._workspace()

    def interrupted(workspace, *arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        front._run(interrupted, ())
    assert workspace["counter"][CANCEL] == 0
    assert (columns(solve_batch(*(field[None] for field in board))) == columns(before)).all()
