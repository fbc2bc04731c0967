"""The labels agree with a plain exhaustive search and keep the symmetries of the problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import Status, solve, solve_batch, validate_plan
from solvers.reference import reference_labels

ROOM = {1: 16, 2: 14, 3: 10, 4: 8, 5: 8}
"""Free cells up to which the reference search is quick, by agent count."""

quick = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def instances(draw):
    size, agents = draw(st.integers(3, 4)), draw(st.integers(1, 4))
    cells = draw(st.permutations(range(size * size)))
    free = cells[: draw(st.integers(agents + 1, min(ROOM[agents], size * size)))]
    return _instance(size, free, draw(st.permutations(free))[:agents], draw(st.permutations(free))[:agents])


def _instance(size, free, starts, goals):
    holes = np.ones(size * size, bool)
    holes[list(free)] = False
    return holes.reshape(size, size), np.array(starts), np.array(goals)


def draw_connected(generator, size, agents, free_cells):
    """A random connected room of `free_cells` cells with the agents inside: nearly always solvable, often tight."""
    room = [int(generator.integers(size * size))]
    while len(room) < free_cells:
        cell = room[generator.integers(len(room))]
        row, column = divmod(cell, size)
        r, c = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))[generator.integers(4)]
        if 0 <= r < size and 0 <= c < size and r * size + c not in room:
            room.append(r * size + c)
    return _instance(size, room, generator.permutation(room)[:agents], generator.permutation(room)[:agents])


def summary(labels):
    return labels.makespan, labels.sum_of_costs, labels.wait_makespan, labels.wait_sum_of_costs


def assert_exact(holes, starts, goals, labels):
    expected = reference_labels(holes.tolist(), starts.tolist(), goals.tolist())
    assert summary(labels) == tuple(expected), (holes.tolist(), starts.tolist(), goals.tolist())
    assert labels.status == (Status.UNSOLVABLE if expected.makespan is None else Status.SOLVABLE)
    if labels.status == Status.SOLVABLE:
        assert_certified(holes, starts, goals, labels)


def assert_certified(holes, starts, goals, labels):
    fast = validate_plan(holes, starts, goals, labels.plan_makespan)
    cheap = validate_plan(holes, starts, goals, labels.plan_sum_of_costs)
    assert fast.valid and cheap.valid
    assert fast.makespan == labels.makespan <= cheap.makespan
    assert cheap.sum_of_costs == labels.sum_of_costs <= fast.sum_of_costs


def random_rooms(seed, count, teams=(1, 2, 3, 4)):
    generator = np.random.default_rng(seed)
    for number in range(count):
        agents = teams[number % len(teams)]
        size = int(generator.integers(3, 6))
        most = min(ROOM[agents] - 1, size * size)
        yield draw_connected(generator, size, agents, int(generator.integers(agents + 1, most + 1)))


@quick
@given(instances())
def test_labels_agree_with_the_reference(instance):
    assert_exact(*instance, solve(*instance))


def test_labels_of_two_thousand_random_rooms_are_exact():
    for instance in random_rooms(seed=11, count=2000):
        assert_exact(*instance, solve(*instance))


def test_the_searches_behind_the_quick_stages_are_exact_too():
    """Most small instances end in a first stage; here those are skipped and the slower searches answer alone."""
    from solvers.kernels.label import COLUMNS, FALLBACKS_ONLY, MAKESPAN, STATUS, WAIT_COST, label_batch
    from solvers.kernels.workspace import HORIZON, allocate

    workspace = allocate()
    answers = np.empty((1, COLUMNS), np.int64)
    for holes, starts, goals in (*random_rooms(seed=14, count=600), *random_rooms(seed=15, count=150, teams=(5,))):
        plans = np.empty((1, 2, len(starts), HORIZON), np.uint8)
        label_batch(
            workspace, holes[None].astype(np.uint8), starts[None], goals[None], 15 | FALLBACKS_ONLY, 10**6, answers,
            plans,
        )  # fmt: skip
        expected = reference_labels(holes.tolist(), starts.tolist(), goals.tolist())
        found = [None if value == -1 else value for value in answers[0, MAKESPAN : WAIT_COST + 1].tolist()]
        assert found == list(expected), (holes.tolist(), starts.tolist(), goals.tolist())
        assert answers[0, STATUS] == (expected.makespan is not None)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_labels_of_a_hundred_thousand_random_rooms_are_exact():
    for instance in random_rooms(seed=12, count=100_000):
        assert_exact(*instance, solve(*instance))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_labels_with_five_agents_are_exact():
    generator = np.random.default_rng(13)
    for _ in range(100):
        instance = draw_connected(generator, 4, 5, int(generator.integers(6, 9)))
        assert_exact(*instance, solve(*instance))


@quick
@given(instances(), st.integers(0, 3), st.booleans())
def test_the_eight_symmetries_keep_all_labels(instance, turns, mirrored):
    holes, starts, goals = instance
    grid = np.arange(holes.size).reshape(holes.shape)
    turned = np.rot90(grid.T if mirrored else grid, turns).reshape(-1)
    place = np.argsort(turned)
    moved = (holes.reshape(-1)[turned].reshape(holes.shape), place[starts], place[goals])
    assert summary(solve(*instance)) == summary(solve(*moved))


@quick
@given(instances(), st.randoms(use_true_random=False))
def test_renaming_agents_keeps_all_labels(instance, random):
    holes, starts, goals = instance
    names = list(range(len(starts)))
    random.shuffle(names)
    assert summary(solve(*instance)) == summary(solve(holes, starts[names], goals[names]))


@quick
@given(instances())
def test_makespan_is_the_same_backwards_in_time(instance):
    holes, starts, goals = instance
    assert solve(holes, starts, goals).makespan == solve(holes, goals, starts).makespan


@quick
@given(instances(), st.integers(0, 24))
def test_a_new_hole_never_lowers_an_optimum(instance, cell):
    holes, starts, goals = instance
    cell %= holes.size
    if cell in starts or cell in goals:
        return
    before = solve(holes, starts, goals)
    harder = holes.copy()
    harder.reshape(-1)[cell] = True
    after = solve(harder, starts, goals)
    if after.status == Status.SOLVABLE:
        assert before.makespan <= after.makespan
        assert before.sum_of_costs <= after.sum_of_costs


def test_large_boards_keep_symmetry_and_are_certified():
    """Beyond the reference's reach: small rooms on large boards are wound around one word, in the mirror another way;
    boards of 65 and more free cells use the second word of every bit set."""
    generator = np.random.default_rng(5)
    for free, agents in (
        (20, 5),
        (24, 5),
        (28, 5),
        (32, 5),
        (36, 5),
        (40, 4),
        (50, 4),
        (64, 4),
        (65, 4),
        (80, 4),
        (95, 4),
    ):
        holes, starts, goals = draw_connected(generator, 10, agents, free)
        labels = solve(holes, starts, goals)
        assert labels.status == Status.SOLVABLE
        assert_certified(holes, starts, goals, labels)
        mirrored = solve(holes.T, (starts % 10) * 10 + starts // 10, (goals % 10) * 10 + goals // 10)
        assert summary(labels) == summary(mirrored)


def test_a_batch_equals_its_instances():
    generator = np.random.default_rng(3)
    drawn = [draw_connected(generator, 5, 3, 14) for _ in range(40)]
    holes, starts, goals = (np.stack(field) for field in zip(*drawn, strict=True))
    batch = solve_batch(holes, starts, goals)
    assert len(batch) == 40
    assert [summary(one) for one in batch] == [summary(solve(*instance)) for instance in drawn]
    for instance, one in zip(drawn, batch, strict=True):
        assert_certified(*instance, one)
