"""The task stream: reproducible, seekable, exactly as the knobs say, and disjoint from the frozen sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.base import Failure, FailureKind, Labeller
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.board import Board, canonical_digest, canonical_form, reserved_for, symmetries
from environments.mapf_frozenlake.candidates import components, draw
from environments.mapf_frozenlake.labeller import InProcessLabeller, LabelFailure
from environments.mapf_frozenlake.settings import MapfKnobs, MapfSettings, hole_count
from environments.mapf_frozenlake.straight import wait_free
from environments.mapf_frozenlake.yields import InfeasibleKnobs, label_candidates


def environment(labeller: Labeller | None = None, **values: Any) -> MapfFrozenLake:
    return MapfFrozenLake(MapfSettings(**values), labeller)


def knobs(**rows: dict[str, int]) -> MapfKnobs:
    return MapfKnobs.model_validate({"strata": {name[1:]: row for name, row in rows.items()}})


class OneByOne:
    """A labeller with nothing but the contract's method, and the payloads it saw."""

    def __init__(self) -> None:
        self.inner = InProcessLabeller()
        self.batches: list[int] = []

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        self.batches.append(len(payloads))
        return self.inner.label(payloads)


class Broken:
    """A labeller that has given up."""

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        return [Failure(FailureKind.INFRASTRUCTURE, "three workers died")] * len(payloads)


def test_an_item_is_the_same_alone_in_company_after_a_restart_and_with_any_labeller() -> None:
    rows = knobs(_3x3={"share": 20, "wait_ratio": 100}, _5x5={"share": 100, "hole_ratio": 50, "wait_ratio": 50})
    together = environment(sizes=(3, 5)).generate(rows, 1, 0, 300)
    fresh = environment(OneByOne(), sizes=(3, 5))
    assert fresh.generate(rows, 1, 0, 300) == together
    for index in (0, 7, 123, 299):
        assert environment(OneByOne(), sizes=(3, 5)).generate(rows, 1, index, 1) == [together[index]]
    assert [t for start in range(0, 300, 50) for t in fresh.generate(rows, 1, start, 50)] == together


def test_the_order_of_rows_does_not_change_the_stream() -> None:
    one = knobs(_3x3={"share": 20}, _4x4={"share": 80})
    other = knobs(_4x4={"share": 80}, _3x3={"share": 20})
    assert one.digest() == other.digest()
    assert environment(sizes=(3, 4)).generate(one, 1, 0, 30) == environment(sizes=(3, 4)).generate(other, 1, 0, 30)


@pytest.mark.parametrize("objective", ["makespan", "sum_of_costs"])
def test_boards_are_what_the_knobs_say(objective: str) -> None:
    rows = knobs(
        _3x3={"share": 10, "hole_ratio": 0, "wait_ratio": 0},
        _4x4={"share": 30, "hole_ratio": 30, "wait_ratio": 100},
        _5x5={"share": 0},
        _6x6={"share": 60, "hole_ratio": 50, "wait_ratio": 50},
    )
    env = environment(sizes=(3, 4, 5, 6), objective=objective)
    tasks = env.generate(rows, 0, 0, 1_000)
    shares = Counter(task.stratum for task in tasks)
    assert shares["5x5"] == 0 and abs(shares["3x3"] - 100) <= 4 and abs(shares["6x6"] - 600) <= 16
    waits: Counter[str] = Counter()
    for task in tasks:
        data = task.data()
        board = Board.from_payload(data)
        assert len(board.holes) == hole_count(board.n, rows.strata[task.stratum].hole_ratio)
        assert len(board.starts) == 2 and task.stratum == f"{board.n}x{board.n}"
        assert 1 <= data["makespan"] <= data["sum_of_costs"] <= 2 * data["makespan"]
        waits[task.stratum] += data["wait_makespan" if objective == "makespan" else "wait_sum_of_costs"]
    assert waits["3x3"] == 0 and waits["4x4"] == shares["4x4"]
    assert abs(waits["6x6"] - shares["6x6"] / 2) <= 12, "the items are twelve blocks and half of one, 48 of 80 on 6x6"


@pytest.mark.parametrize("wait_ratio", [0, 30, 50, 80, 100])
def test_the_wait_ratio_of_5000_boards_is_the_one_asked_for(wait_ratio: int) -> None:
    tasks = environment(sizes=(4,)).generate(knobs(_4x4={"hole_ratio": 20, "wait_ratio": wait_ratio}), 0, 37, 5_000)
    measured = sum(task.data()["wait_makespan"] for task in tasks)
    assert abs(measured - 50 * wait_ratio) <= 40, "two cut blocks of 80"


def test_hole_counts_round_halves_up() -> None:
    assert [hole_count(3, ratio) for ratio in range(0, 51, 10)] == [0, 1, 2, 3, 4, 5]
    assert [hole_count(5, ratio) for ratio in range(0, 51, 10)] == [0, 3, 5, 8, 10, 13]
    assert hole_count(10, 50) == 50


def test_a_report_counts_what_the_stream_took() -> None:
    rows = knobs(_3x3={"hole_ratio": 0, "wait_ratio": 100}, _5x5={"share": 0})
    report = environment(sizes=(3, 5)).generation_report(rows, 0, 0, 60)
    assert report["3x3"].kept == 60 and report["3x3"].drawn > 60 * 30
    assert report["3x3"].distinct <= 4, "a hole-free 3x3 board has four canonical instances that need a wait"
    assert report["5x5"].kept == report["5x5"].drawn == 0


# --------------------------------------------------------------------------------------------------------- feasibility


def test_a_setting_that_no_board_meets_is_refused_with_the_nearest_that_works() -> None:
    env = environment(agents=5, sizes=(3, 4))
    rows = knobs(_3x3={"hole_ratio": 50, "wait_ratio": 0}, _4x4={"hole_ratio": 20})
    (problem,) = env.feasibility(rows)
    assert (problem.stratum, problem.knob, problem.value) == ("3x3", "hole_ratio", 50)
    assert problem.nearest == 30, "five agents do not fit on a 3x3 board with 5 holes, and with 4 there is no way"
    with pytest.raises(InfeasibleKnobs, match=r"measured 0 of 20000 \(nearest that works: 30\)"):
        env.generate(rows, 0, 0, 1)
    repaired = env.repaired(rows)
    assert repaired.strata["3x3"].hole_ratio == 30 and env.feasibility(repaired) == []
    assert env.feasibility(env.reweight(rows, {"4x4": 1.0})) == [], "a row without a share is not in the way"


def test_a_wait_ratio_that_no_board_meets_is_refused_with_the_nearest_that_works() -> None:
    env = environment(agents=3, sizes=(3,))
    for wait_ratio in (10, 100):
        (problem,) = env.feasibility(knobs(_3x3={"hole_ratio": 50, "wait_ratio": wait_ratio}))
        assert (problem.knob, problem.value, problem.nearest) == ("wait_ratio", wait_ratio, 0)
    assert env.feasibility(knobs(_3x3={"hole_ratio": 50, "wait_ratio": 0})) == []


def test_every_setting_is_feasible_for_two_agents_on_small_boards() -> None:
    env = environment(sizes=(3, 4, 5))
    for hole_ratio in range(0, 51, 10):
        row = {"hole_ratio": hole_ratio, "wait_ratio": 50}
        assert env.feasibility(knobs(_3x3=row, _4x4=row, _5x5=row)) == []


def test_knobs_of_another_run_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        environment(sizes=(3, 4)).generate(knobs(_3x3={}), 0, 0, 1)


def test_a_labeller_that_gave_up_stops_the_stream_with_its_reason() -> None:
    with pytest.raises(LabelFailure, match="three workers died") as caught:
        environment(Broken(), sizes=(3,)).generate(knobs(_3x3={}), 0, 0, 1)
    assert caught.value.failure.kind is FailureKind.INFRASTRUCTURE


def test_undecided_boards_are_passed_over_alike_by_every_labeller() -> None:
    class Hesitant(InProcessLabeller):
        def label_boards(self, holes: Any, starts: Any, goals: Any) -> Any:
            found = super().label_boards(holes, starts, goals)
            found.status[starts[:, 0] % 2 == 0] = 2
            return found

    class HesitantOneByOne(OneByOne):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Hesitant()

    rows = knobs(_4x4={})
    tasks = environment(Hesitant(), sizes=(4,)).generate(rows, 0, 0, 50)
    assert all(task.data()["starts"][0] % 2 for task in tasks)
    assert environment(HesitantOneByOne(), sizes=(4,)).generate(rows, 0, 0, 50) == tasks


# ----------------------------------------------------------------------------------------------------- boards and draws


@pytest.mark.parametrize("agents", [2, 3, 5])
def test_straight_walks_prove_only_what_the_solver_confirms(agents: int) -> None:
    proven = 0
    for n, hole_ratio in ((3, 0), (3, 20), (4, 10), (6, 20), (10, 0), (10, 10)):
        count = 2_000 if agents == 2 else 300
        numbers = np.arange(count, dtype=np.uint64)
        drawn = draw(n, hole_count(n, hole_ratio), agents, numbers, numbers)
        free = wait_free(drawn) & drawn.usable
        labels = label_candidates(InProcessLabeller(), replace(drawn, usable=free))
        assert not labels.wait_makespan[free].any() and not labels.wait_sum_of_costs[free].any()
        steps = sum(abs(part) for part in np.subtract(np.divmod(drawn.goals, n), np.divmod(drawn.starts, n)))
        assert (labels.makespan[free] == steps.max(axis=1)[free]).all()
        proven += int(free.sum())
    assert proven > count


def test_hardly_any_board_is_solved_where_waits_are_rare() -> None:
    labeller = OneByOne()
    env = environment(labeller, sizes=(10,))
    rows = knobs(_10x10={"hole_ratio": 0, "wait_ratio": 100})
    env.feasibility(rows)
    labeller.batches.clear()
    drawn = env.generation_report(rows, 0, 0, 20)["10x10"].drawn
    assert drawn > 20 * 200 and sum(labeller.batches) < drawn / 20


@given(st.integers(3, 10), st.integers(0, 2**64 - 1), st.integers(0, 50), st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_a_board_and_its_images_have_one_canonical_form(n: int, key: int, hole_ratio: int, agents: int) -> None:
    drawn = draw(n, hole_count(n, hole_ratio), agents, np.array([key], dtype=np.uint64), np.zeros(1, dtype=np.uint64))
    if not drawn.usable[0]:
        return
    board = drawn.board(0)
    board.check()
    form = canonical_form(board)
    for image in symmetries(n):
        moved = Board(
            n,
            tuple(sorted(image[c] for c in board.holes)),
            tuple(image[c] for c in reversed(board.starts)),
            tuple(image[c] for c in reversed(board.goals)),
        )
        assert canonical_form(moved) == form and reserved_for(moved) == reserved_for(board)


def test_the_eight_symmetries_are_distinct_bijections_that_keep_neighbours() -> None:
    images = set(symmetries(4))
    assert len(images) == 8
    for image in images:
        assert sorted(image) == list(range(16))
        (row, column), (below, beside) = divmod(image[0], 4), divmod(image[1], 4)
        assert abs(row - below) + abs(column - beside) == 1


@pytest.mark.parametrize(
    ("n", "holes", "agents", "board"),
    [
        (3, 2, 2, Board(3, (6, 7), (4, 1), (1, 0))),
        (6, 11, 3, Board(6, (6, 9, 10, 16, 19, 26, 28, 29, 30, 33, 34), (7, 15, 11), (5, 12, 7))),
        (9, 0, 5, Board(9, (), (60, 16, 67, 51, 49), (45, 64, 23, 10, 75))),
    ],
)
def test_drawn_boards_never_change(n: int, holes: int, agents: int, board: Board) -> None:
    numbers = np.arange(3, dtype=np.uint64)
    assert draw(n, holes, agents, numbers + np.uint64(7), numbers).board(2) == board


def test_canonical_digests_never_change() -> None:
    board = Board(3, (4,), (0, 2), (8, 3))
    assert canonical_digest(canonical_form(board)) == 28695959242002674956012627139354858558


def test_a_drawn_goal_is_reachable_and_every_cell_is_used() -> None:
    count = 4_000
    drawn = draw(4, 5, 2, np.arange(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64))
    reach = components(~drawn.holes, drawn.starts)
    use: Counter[int] = Counter()
    for i in np.flatnonzero(drawn.usable).tolist():
        drawn.board(i).check()
        assert reach[i, 0, drawn.goals[i, 0]] and reach[i, 1, drawn.goals[i, 1]]
        use.update(drawn.starts[i].tolist())
    assert min(use.values()) > 0.7 * sum(use.values()) / 16


@pytest.mark.parametrize("n", [3, 7, 8, 9, 10])
def test_components_are_those_of_a_plain_flood_fill(n: int) -> None:
    rng = np.random.default_rng(0)
    free = rng.random((50, n, n)) < 0.6
    starts = rng.integers(0, n * n, (50, 2))
    free.reshape(50, n * n)[np.arange(50)[:, None], starts] = True
    found = components(free, starts)
    for grid, cells, masks in zip(free, starts.tolist(), found):
        for cell, mask in zip(cells, masks):
            seen, queue = {cell}, [cell]
            while queue:
                row, column = divmod(queue.pop(), n)
                for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                    if 0 <= r < n and 0 <= c < n and grid[r, c] and r * n + c not in seen:
                        seen.add(r * n + c)
                        queue.append(r * n + c)
            assert seen == set(np.flatnonzero(mask).tolist())
