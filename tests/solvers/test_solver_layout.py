"""Sets of cells as words: wherever a board's cells lie on the ring, moves are those of the board."""

import numpy as np
import pytest

from benchmarks.solver_instances import Stratum, draw
from solvers.kernels.bits import spread
from solvers.kernels.board import read_board
from solvers.kernels.workspace import SIZE, WIDE, WIDTH, allocate

WORKSPACE = allocate()
U64 = (1 << 64) - 1


def read(size, holes, generator):
    """Read a random board, with two agents in its largest component; the places of the cells."""
    grid, starts, goals = draw(Stratum("", size, 2, holes), generator)
    assert read_board(WORKSPACE, grid, starts, goals) == WORKSPACE["frame"][SIZE]
    return [int(place) for place in np.flatnonzero(WORKSPACE["number"][: size * size] >= 0)]


def spread_of(cells):
    """The cells one move away from these, by the words."""
    spots = sum(1 << int(WORKSPACE["spot"][v]) for v in cells)
    low, high = (int(word) for word in spread(WORKSPACE, np.uint64(spots & U64), np.uint64(spots >> 64)))
    found = low | high << 64
    return {int(WORKSPACE["cell"][spot]) for spot in range(128) if found >> spot & 1}


def assert_moves(size, places, generator):
    count = len(places)
    assert [int(WORKSPACE["number"][place]) for place in places] == list(range(count))
    assert len({int(spot) for spot in WORKSPACE["spot"][:count]}) == count
    cell = {divmod(place, size): v for v, place in enumerate(places)}

    def neighbours(v):
        row, column = divmod(places[v], size)
        near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        return {cell[place] for place in near if place in cell}

    for v in range(count):
        assert spread_of([v]) == neighbours(v)
    chosen = generator.choice(count, size=count // 2, replace=False).tolist()
    assert spread_of(chosen) == set().union(*map(neighbours, chosen))


@pytest.mark.parametrize("size", range(3, 11))
@pytest.mark.parametrize("holes", [0, 20, 35, 45, 50, 55])
def test_moves_of_a_set_are_those_of_its_cells(size, holes):
    generator = np.random.default_rng(100 * size + holes)
    for _ in range(10):
        places = read(size, holes, generator)
        assert_moves(size, places, generator)
        assert (WORKSPACE["frame"][WIDE] == 0) >= (size <= 8)
        assert (WORKSPACE["frame"][WIDE] == 1) >= (len(places) > 64)


def test_rooms_of_twenty_to_forty_cells_mostly_wind_around_one_word():
    generator = np.random.default_rng(0)
    wound, widths = [], set()
    while len(wound) < 100:
        places = read(10, 50, generator)
        if not 20 <= len(places) <= 40:
            continue
        assert_moves(10, places, generator)
        wound.append(WORKSPACE["frame"][WIDE] == 0)
        widths.add(int(WORKSPACE["frame"][WIDTH]))
    assert np.mean(wound) > 0.9
    assert len(widths) > 4
