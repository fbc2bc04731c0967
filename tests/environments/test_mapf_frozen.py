"""The fixed sets: complete, checksummed, disjoint from each other and from everything training can see."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from environments.base import FrozenSet
from environments.mapf_frozenlake import MapfFrozenLake, frozen
from environments.mapf_frozenlake.board import Board, CanonicalForm, canonical_form, reserved_for, symmetries
from environments.mapf_frozenlake.labeller import SOLVABLE, InProcessLabeller
from environments.mapf_frozenlake.settings import MapfSettings


def forms(tasks: FrozenSet) -> set[CanonicalForm]:
    return {canonical_form(Board.from_payload(task.data())) for task in tasks.tasks}


def test_the_sets_have_their_sizes_and_every_board_differs_from_every_other_up_to_symmetry() -> None:
    full, small = MapfFrozenLake(), MapfFrozenLake(MapfSettings(sizes=(3, 4, 5)))
    assert len(small.held_out().tasks) == 1_002 and len(small.validation().tasks) == 450
    assert len(full.validation().tasks) == 8 * 150 and len(full.held_out().tasks) == 3 * 334 + 5 * 150
    assert len(forms(full.validation()) | forms(full.held_out())) == 1_200 + 1_752
    assert small.held_out().checksum != full.held_out().checksum
    assert small.held_out() == MapfFrozenLake(MapfSettings(sizes=(3, 4, 5))).held_out()


def test_every_board_is_reserved_for_its_set() -> None:
    for chosen in (MapfFrozenLake().validation(), MapfFrozenLake().held_out()):
        assert {reserved_for(Board.from_payload(task.data())) for task in chosen.tasks} == {chosen.name}


def test_training_never_meets_a_frozen_board() -> None:
    env = MapfFrozenLake(MapfSettings(sizes=(3, 4)))
    fixed = forms(env.validation()) | forms(env.held_out())
    tasks = env.generate(env.default_knobs(), 0, 0, 3_000) + env.generate(env.default_knobs(), 0, 0, 500, split="warm")
    boards = [Board.from_payload(task.data()) for task in tasks]
    assert not {canonical_form(board) for board in boards} & fixed
    assert {reserved_for(board) for board in boards} == {None}


def test_a_set_takes_at_most_a_tenth_of_a_small_cell() -> None:
    taken: Counter[tuple[int, int, bool]] = Counter()
    for chosen in (MapfFrozenLake().validation(), MapfFrozenLake().held_out()):
        for task in chosen.tasks:
            data = task.data()
            taken[data["n"], len(data["holes"]), data["wait_makespan"]] += 1
    for (n, holes), counts in frozen.SMALL_CELLS.items():
        for wait in (False, True):
            assert 10 * taken[n, holes, wait] <= counts[wait]


def test_hole_ratios_are_spread_evenly_where_there_are_boards_enough() -> None:
    counts = Counter(
        (task.stratum, len(task.data()["holes"]))
        for task in MapfFrozenLake(MapfSettings(sizes=(6, 10))).held_out().tasks
    )
    assert set(counts.values()) == {25} and len(counts) == 12


def test_a_changed_label_or_board_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "_checksums", lambda: {"validation": "0" * 32})
    with pytest.raises(frozen.FrozenSetCorrupt, match="restore the file"):
        frozen.load.__wrapped__("validation")


def test_a_rebuild_gives_the_stored_rows() -> None:
    stored = frozen.load("validation")
    for position, n in ((0, 3), (2, 5)):
        rebuilt = [frozen._payload(row) for row in frozen.build("validation", n, InProcessLabeller())]
        assert tuple(rebuilt) == stored[150 * position : 150 * (position + 1)]


@pytest.mark.slow
def test_a_complete_rebuild_gives_the_stored_files() -> None:
    assert frozen.main(["--check", "validation", "held_out"]) == 0


def test_the_enumerated_spaces_are_those_of_the_design() -> None:
    threes = [counts for (n, holes), counts in frozen.SMALL_CELLS.items() if n == 3 and holes <= 4]
    assert sum(map(sum, threes)) == 6_852 and sum(waits for _, waits in threes) == 672
    assert sum(frozen.SMALL_CELLS[4, 0]) == 3_237 and frozen.SMALL_CELLS[4, 0][1] == 35


@pytest.mark.parametrize(
    ("n", "holes"), [*((3, holes) for holes in range(6)), (4, 0), pytest.param(5, 0, marks=pytest.mark.slow)]
)
def test_the_counts_of_small_cells_are_those_of_full_enumeration(n: int, holes: int) -> None:
    boards: dict[CanonicalForm, Board] = {}
    for taken in itertools.combinations(range(n * n), holes):
        images = [sum(1 << image[c] for c in taken) for image in symmetries(n)]
        if min(images) != sum(1 << c for c in taken):
            continue
        free = [c for c in range(n * n) if c not in taken]
        for starts in itertools.combinations(free, 2):
            for goals in itertools.permutations(free, 2):
                if starts[0] != goals[0] and starts[1] != goals[1]:
                    board = Board(n, taken, starts, goals)
                    boards.setdefault(canonical_form(board), board)
    labels = InProcessLabeller().label([board.payload() for board in boards.values()])
    counts = Counter(record["wait_makespan"] for record in labels if record["status"] == "solvable")
    assert (counts[False], counts[True]) == frozen.SMALL_CELLS[n, holes]
    assert np.all([record["status"] != "undecided" for record in labels]) and SOLVABLE == 1
