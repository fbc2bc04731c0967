"""The tables that bound the searches: no plan within their limit can reach what they leave out; the rest is exact."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.solver_instances import Stratum, draw
from solvers.kernels.bounds import PAIRS, TRIPLES, ZERO, cover, triple_row
from solvers.kernels.label import COLUMNS, label_batch
from solvers.kernels.pairs import fill_pair_steps, pair_row
from solvers.kernels.tables import fill_excess, fill_triple_tables, fill_triples
from solvers.kernels.triples import fill_triple_excess, fill_triple_steps
from solvers.kernels.workspace import HORIZON, INF, SIZE, allocate

WORKSPACE = allocate()


def ready(seed, size, holes):
    """A workspace with a board of three agents and everything that its tables of three need; its number of cells."""
    boards = [field[None] for field in draw(Stratum("", size, 3, holes), np.random.default_rng(seed))]
    answers, plans = np.zeros((1, COLUMNS), np.int64), np.full((1, 2, 3, HORIZON), 4, np.uint8)
    label_batch(WORKSPACE, *boards, 15, 10**6, answers, plans)
    fill_excess(WORKSPACE, 0)
    fill_triples(WORKSPACE, 0, 0)
    return int(WORKSPACE["frame"][SIZE])


def farthest(count, agents):
    """For every state of these agents, the steps from the start of the one that comes from farthest."""
    grids = np.meshgrid(*(WORKSPACE["from_start"][i, :count].astype(int) for i in range(agents)), indexing="ij")
    return np.max(grids, axis=0)


def assert_pruned(whole, cut, within):
    """Where a plan within the limit can come by, both are the same; elsewhere the cut one says INF or the same."""
    np.testing.assert_array_equal(cut[within], whole[within])
    assert ((cut == INF) | (cut == whole)).all()


@pytest.mark.parametrize("seed", range(12))
def test_tables_of_steps_leave_out_only_what_comes_too_late(seed):
    count = ready(seed, 6, 35)
    for slack in (0, 1, 4):
        for agents, fill, name, row in (
            (2, fill_pair_steps, "pair_steps", pair_row(0, 1)),
            (3, fill_triple_steps, "triple_steps", triple_row(0, 1, 2)),
        ):
            team = range(agents)
            cells = [count] * agents
            fill(WORKSPACE, *team, 254)
            whole = WORKSPACE[name][row][: count**agents].astype(int).reshape(cells)
            limit = int(whole[tuple(WORKSPACE["start"][i] for i in team)]) + slack
            if limit >= INF:
                continue
            fill(WORKSPACE, *team, limit)
            cut = WORKSPACE[name][row][: count**agents].astype(int).reshape(cells)
            assert_pruned(whole, cut, whole + farthest(count, agents) <= limit)
            assert (cut == INF).any()


@pytest.mark.parametrize("seed", range(12))
def test_tables_of_excess_leave_out_only_what_costs_too_much(seed):
    count = ready(seed, 6, 35)
    row, cells = triple_row(0, 1, 2), [count] * 3
    fill_triple_excess(WORKSPACE, 0, 1, 2, 250)
    whole = WORKSPACE["triple_excess"][row][: count**3].astype(int).reshape(cells)
    start = tuple(int(WORKSPACE["start"][i]) for i in range(3))
    distances = [WORKSPACE["dist"][i, :count].astype(int) for i in range(3)]
    shortest = sum(int(distances[i][start[i]]) for i in range(3))
    to_go = whole + np.sum(np.meshgrid(*distances, indexing="ij"), axis=0)
    for slack in (0, 2, 6):
        limit = int(whole[start]) + slack
        if limit >= INF:
            continue
        fill_triple_excess(WORKSPACE, 0, 1, 2, limit)
        cut = WORKSPACE["triple_excess"][row][: count**3].astype(int).reshape(cells)
        # Each of the three has paid for every step that the farthest took.
        assert_pruned(whole, cut, (whole < INF) & (to_go + 3 * farthest(count, 3) <= limit + shortest))
        assert cut[start] == whole[start]


def test_tables_of_three_refute_a_makespan_below_the_least():
    count = ready(3, 6, 35)
    fill_triple_steps(WORKSPACE, 0, 1, 2, 254)
    start = tuple(int(WORKSPACE["start"][i]) for i in range(3))
    least = int(WORKSPACE["triple_steps"][triple_row(0, 1, 2)][: count**3].reshape([count] * 3)[start])
    assert not fill_triple_tables(WORKSPACE, 0, least)
    assert fill_triple_tables(WORKSPACE, 0, least - 1)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.integers(0, 12), min_size=PAIRS + TRIPLES, max_size=PAIRS + TRIPLES))
def test_the_bound_of_five_is_the_best_of_its_packings(values):
    """Written down once more: halves of pairs and triples in which no agent has more than one whole."""
    vector = np.array([*values, 0], np.int64)
    assert len(vector) == ZERO + 1

    def pair(*agents):
        return values[pair_row(min(agents), max(agents))]

    def triple(*agents):
        return values[PAIRS + triple_row(*sorted(agents))]

    best = (sum(triple(*three) for three in combinations(range(5), 3)) + 5) // 6
    for a, b, c, d, e in permutations(range(5)):
        best = max(
            best,
            triple(a, b, c) + pair(d, e),
            (triple(a, b, c) + triple(a, b, d) + pair(c, e) + pair(d, e) + 1) // 2,
            (triple(a, b, c) + triple(a, d, e) + pair(b, d) + pair(c, e) + 1) // 2,
        )
    assert cover(vector, 5, True, 1000) == best
    assert min(cover(vector, 5, True, 3), 4) == min(best, 4)
