"""Sets of cells as words: wherever a board's cells lie on the ring, moves are those of the board."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from solvers.kernels.bits import spread
from solvers.kernels.board import read_board
from solvers.kernels.workspace import SIZE, WIDE, allocate

WORKSPACE = allocate()
U64 = (1 << 64) - 1


def board(size, holes, seed):
    """A random board with this share of holes, and two agents that do not move."""
    grid = (np.random.default_rng(seed).random((size, size)) < holes).astype(np.uint8)
    grid[0, :2] = 0
    cells = np.array([0, 1])
    return grid, cells


def spread_of(cells):
    """The cells one move away from these, by the words."""
    spots = sum(1 << int(WORKSPACE["spot"][v]) for v in cells)
    low, high = (int(word) for word in spread(WORKSPACE, np.uint64(spots & U64), np.uint64(spots >> 64)))
    found = low | high << 64
    return {int(WORKSPACE["cell"][spot]) for spot in range(128) if found >> spot & 1}


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(3, 10), st.floats(0, 0.7), st.integers(0, 10**6), st.data())
@example(8, 0.0, 0, None)
@example(10, 0.0, 0, None)
def test_moves_of_a_set_are_those_of_its_cells(size, holes, seed, data):
    grid, agents = board(size, holes, seed)
    assert read_board(WORKSPACE, grid, agents, agents) > 0
    count = int(WORKSPACE["frame"][SIZE])
    places = [int(v) for v in np.flatnonzero(WORKSPACE["number"][: size * size] >= 0)]
    assert [int(WORKSPACE["number"][place]) for place in places] == list(range(count))
    assert len({int(spot) for spot in WORKSPACE["spot"][:count]}) == count

    def neighbours(v):
        row, column = divmod(places[v], size)
        near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        return {places.index(r * size + c) for r, c in near if r * size + c in places and 0 <= c < size}

    chosen = range(count) if data is None else data.draw(st.sets(st.integers(0, count - 1), max_size=8))
    assert spread_of(chosen) == set().union(*map(neighbours, chosen))


def test_most_boards_with_half_their_cells_free_fit_in_one_word():
    fits = []
    for seed in range(200):
        grid, agents = board(10, 0.5, seed)
        read_board(WORKSPACE, grid, agents, agents)
        fits.append(WORKSPACE["frame"][WIDE] == 0)
    assert np.mean(fits) > 0.9
    grid, agents = board(10, 0.0, 0)
    read_board(WORKSPACE, grid, agents, agents)
    assert WORKSPACE["frame"][WIDE] == 1
