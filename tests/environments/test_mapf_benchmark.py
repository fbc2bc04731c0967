"""The sets for three to five agents: complete, as the protocol says, disjoint from all else, and every label right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.base import Task, digest
from environments.mapf_frozenlake import MapfFrozenLake, cells, frozen
from environments.mapf_frozenlake.board import Board, CanonicalForm, canonical_form, reserved_for
from environments.mapf_frozenlake.labeller import InProcessLabeller
from environments.mapf_frozenlake.settings import MapfSettings, hole_count
from environments.mapf_frozenlake.yields import YieldTable
from solvers import solve, validate_plan
from solvers.labels import UNKNOWN, WAIT
from solvers.reference import reference_labels

EDITIONS = ("benchmark", "held_out")
NEEDED_WAITS = {25: 13, 50: 25, 75: 38}
FILES = ("validation", "held_out", "validation_3to5", "held_out_3to5", "benchmark")


def environment(agents: int, *sizes: int) -> MapfFrozenLake:
    return MapfFrozenLake(MapfSettings(agents=agents, sizes=sizes or tuple(range(3, 11))))


def board_of(payload: str) -> Board:
    return Board.from_payload(json.loads(payload))


def grid(board: Board) -> list[list[int]]:
    return [[int(row * board.n + column in board.holes) for column in range(board.n)] for row in range(board.n)]


# ------------------------------------------------------------------------------------------------------------ protocol


@pytest.mark.parametrize("edition", EDITIONS)
def test_an_edition_has_21_cells_of_150_boards_with_50_at_each_wait_ratio(edition: str) -> None:
    found = MapfFrozenLake().benchmark(edition)
    expected = [(k, n) for k, first in ((3, 3), (4, 4), (5, 5)) for n in range(first, 11)]
    assert [(cell.agents, cell.n) for cell in found.cells] == expected and len(expected) == 21
    tasks = [task for cell in found.cells for task in cell.tasks]
    assert [task.index for task in tasks] == list(range(3_150)) and {task.split for task in tasks} == {edition}
    assert found.checksum == digest([task.payload for task in tasks])
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
    assert f"| `{edition}` | `{found.checksum}` |" in page
    for cell in found.cells:
        assert len(cell.tasks) == 150
        assert {(len(task.data()["starts"]), task.stratum) for task in cell.tasks} == {
            (cell.agents, f"{cell.n}x{cell.n}")
        }
        for ratio, waits in NEEDED_WAITS.items():
            assert len(cell.at(ratio)) == 50
            assert sum(task.data()["wait_makespan"] for task in cell.at(ratio)) == waits


def test_hole_ratios_are_uniform_wherever_the_cell_allows() -> None:
    full = 0
    for edition in EDITIONS:
        for cell in MapfFrozenLake().benchmark(edition).cells:
            counts = Counter(len(task.data()["holes"]) for task in cell.tasks)
            if set(counts) == {hole_count(cell.n, ratio) for ratio in range(0, 51, 10)}:
                assert max(counts.values()) - min(counts.values()) <= 3, (cell.agents, cell.n, counts)
                full += 1
    assert full >= 40, "only on 3x3 five holes leave no room for three agents"


def test_a_prefix_of_a_cell_is_a_fair_sample() -> None:
    for cell in MapfFrozenLake().benchmark().cells:
        for size in (30, 60, 90):
            waits = sum(task.data()["wait_makespan"] for task in cell.tasks[:size])
            assert abs(waits - size / 2) <= 2


@pytest.mark.parametrize("agents", [3, 4, 5])
def test_runs_with_more_agents_have_150_boards_per_size_to_steer_and_to_claim_on(agents: int) -> None:
    env = environment(agents)
    for chosen in (env.validation(), env.held_out()):
        assert Counter(task.stratum for task in chosen.tasks) == dict.fromkeys(env.stratum_names(), 150)
        assert {len(task.data()["starts"]) for task in chosen.tasks} == {agents}
    small = environment(agents, 3, 4).validation()
    assert len(small.tasks) == 300 and small.checksum != env.validation().checksum


def test_the_second_edition_holds_the_held_out_boards_of_the_same_cells() -> None:
    edition = MapfFrozenLake().benchmark("held_out")
    five = environment(5, 5, 6).held_out()
    assert [task.payload for cell in edition.cells if cell.agents == 5 and cell.n < 7 for task in cell.tasks] == [
        task.payload for task in five.tasks
    ]
    with pytest.raises(frozen.FrozenSetUnavailable, match="known are benchmark, held_out"):
        MapfFrozenLake().benchmark("third")


# -------------------------------------------------------------------------------------------------------- disjointness


def all_boards() -> Iterator[tuple[str, Board]]:
    for file in FILES:
        name = next((name for name, many in frozen.MANY.items() if many == file), file)
        for payload in frozen.load(file):
            yield name, board_of(payload)


def test_no_board_is_in_two_sets_or_twice_in_one_and_each_is_reserved_for_its_own() -> None:
    forms: set[CanonicalForm] = set()
    count = 0
    for name, board in all_boards():
        forms.add(canonical_form(board))
        count += 1
        assert reserved_for(board) == name
    assert len(forms) == count == 1_200 + 1_752 + 2 * 24 * 150 + 3_150


@pytest.mark.parametrize("split", ["train", "warm_start"])
def test_no_stream_can_draw_a_frozen_board(split: str) -> None:
    fixed = {canonical_form(board) for _, board in all_boards()}
    env = environment(3, 3, 4)
    boards = [board_of(task.payload) for task in env.generate(env.default_knobs(), 0, 0, 1_500, split=split)]
    assert {reserved_for(board) for board in boards} == {None}
    assert not {canonical_form(board) for board in boards} & fixed


# ------------------------------------------------------------------------------------------------------------- storage


def test_packing_keeps_every_board_and_refuses_what_is_none() -> None:
    for board, labels in (
        (Board(3, (), (0, 1, 2, 3, 4), (8, 7, 6, 5, 1)), (4, 12, 1, 0)),
        (Board(10, tuple(range(50)), (50, 99), (98, 51)), (255, 1023, 0, 1)),
        (Board(7, (0, 48), (1, 2, 3), (45, 46, 47)), (0, 0, 0, 0)),
    ):
        text = cells.pack(board, labels)
        assert cells.unpack(text) == (board, labels) and '"' not in text and "\\" not in text
        with pytest.raises(ValueError, match="bytes for"):
            cells.unpack(text + "00000")
    with pytest.raises(ValueError, match="does not fit"):
        cells.pack(Board(3, (), (0, 1), (2, 3)), (256, 0, 0, 0))


def test_the_stored_sets_are_small() -> None:
    sizes = [len(frozen._data(f"{file}.jsonl").read_bytes()) for file in frozen.MANY.values()]
    assert sum(sizes) < 400_000


@pytest.mark.parametrize(("name", "agents", "n"), [("benchmark", 3, 5), ("validation", 4, 5), ("held_out", 3, 6)])
def test_a_rebuilt_cell_has_the_stored_rows(name: str, agents: int, n: int) -> None:
    labeller = InProcessLabeller(cells.NODE_BUDGET)
    first = cells.SET_CELLS[name].index((agents, n)) * cells.BOARDS
    rebuilt = cells.build_cell(name, agents, n, labeller, YieldTable(labeller))
    stored = frozen.load(frozen.MANY[name])[first : first + cells.BOARDS]
    assert tuple(map(frozen._payload, rebuilt)) == stored


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_complete_rebuild_gives_the_stored_sets() -> None:
    assert frozen.main(["--check", *frozen.MANY.values()]) == 0


def test_a_board_that_the_solver_leaves_open_stops_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    labeller = InProcessLabeller(node_budget=1)
    with pytest.raises(cells.UndecidedBoard, match="undecided: Board"):
        cells.build_cell("benchmark", 5, 5, labeller, YieldTable(InProcessLabeller()))


# -------------------------------------------------------------------------------------------------------------- labels

QUICK, PATIENT = 60_000, 1_500_000
"""Joint states times joint moves up to which the plain search is asked, which takes a microsecond for each."""


def by_reference(task: Task, work: int) -> bool:
    """Whether the board is small enough for the independent reference; if so, that it confirms every label."""
    board = Board.from_payload(task.data())
    free, agents = board.n**2 - len(board.holes), len(board.starts)
    if (5 * free) ** agents > work:
        return False
    found = reference_labels(grid(board), board.starts, board.goals)
    assert [task.data()[label] for label in found._fields] == list(found), task.payload
    return True


@cache
def workspace() -> Any:
    from solvers.kernels.workspace import allocate

    return allocate()


def by_other_searches(task: Task, budget: int) -> int:
    """How many of the four labels the searches behind the quick stages confirm within a budget; none may differ.

    Besides, plans certify that makespan and sum of costs are reached.
    """
    from solvers.kernels.label import COLUMNS, FALLBACKS_ONLY, MAKESPAN, WAIT_COST, label_batch
    from solvers.kernels.workspace import HORIZON

    data = task.data()
    board = Board.from_payload(data)
    holes = np.array(grid(board), np.uint8)
    answers = np.empty((1, COLUMNS), np.int64)
    plans = np.full((1, 2, len(board.starts), HORIZON), WAIT, np.uint8)
    starts, goals = (np.array([row], np.int64) for row in (board.starts, board.goals))
    label_batch(workspace(), holes[None], starts, goals, 15 | FALLBACKS_ONLY, budget, answers, plans)
    stored = [int(data[label]) for label in ("makespan", "sum_of_costs", "wait_makespan", "wait_sum_of_costs")]
    found = answers[0, MAKESPAN : WAIT_COST + 1].tolist()
    assert all(value in (UNKNOWN, label) for value, label in zip(found, stored, strict=True)), task.payload
    best = solve(holes, board.starts, board.goals, node_budget=cells.NODE_BUDGET)
    assert best.plan_makespan is not None and best.plan_sum_of_costs is not None
    assert validate_plan(holes, board.starts, board.goals, best.plan_makespan).makespan == data["makespan"]
    assert validate_plan(holes, board.starts, board.goals, best.plan_sum_of_costs).sum_of_costs == data["sum_of_costs"]
    return 4 - found.count(UNKNOWN)


def fixed_tasks() -> list[Task]:
    return [Task("mapf_frozenlake", payload, "", "", 0) for file in FILES for payload in frozen.load(file)]


def test_a_sample_of_the_frozen_labels_is_confirmed() -> None:
    assert sum(by_reference(task, QUICK) for task in fixed_tasks()[::101]) > 15
    sample = fixed_tasks()[50::101]
    confirmed = sum(by_other_searches(task, 20_000) for task in sample)
    assert confirmed > 0.75 * 4 * len(sample)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("file", FILES)
def test_every_frozen_label_is_confirmed(file: str) -> None:
    """By the independent reference on small boards; by two unrelated searches on all, where the second one ends."""
    tasks = [Task("mapf_frozenlake", payload, "", "", 0) for payload in frozen.load(file)]
    confirmed = 0
    for task in tasks:
        by_reference(task, PATIENT)
        confirmed += by_other_searches(task, 200_000)
    print(f"{file}: {confirmed} of {4 * len(tasks)} labels confirmed by the second search")
    assert confirmed > 0.9 * 4 * len(tasks)
