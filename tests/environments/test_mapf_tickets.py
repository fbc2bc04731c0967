"""Shares and wait ratios are quotas, not averages: any stretch of a stream has what the knobs ask for."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.settings import STRATUM_SIZES, MapfKnobs, MapfRow, MapfSettings
from environments.mapf_frozenlake.tickets import LONGEST, Position, Ticket, deal, tickets_per_block, waits_in_block

ITEMS, TOLERANCE = 5_000, 0.02
WAIT_RATIOS, HOLE_RATIOS, SHARES = range(0, 101, 10), range(0, 51, 10), range(0, 101, 10)
LEAST_WHOLE_BLOCKS = -(-(ITEMS - 2 * (LONGEST - 1)) // LONGEST)


def position(knobs: MapfKnobs, seed: int = 0) -> Position:
    return seed, "train", 0, knobs.digest()


def counted(knobs: MapfKnobs, seed: int, start: int) -> Counter[Ticket]:
    return Counter(deal(knobs, position(knobs, seed), start, ITEMS))


def tables() -> st.SearchStrategy[MapfKnobs]:
    rows = st.builds(
        MapfRow, share=st.sampled_from(SHARES), hole_ratio=st.just(0), wait_ratio=st.sampled_from(WAIT_RATIOS)
    )
    chosen = st.dictionaries(st.sampled_from(list(STRATUM_SIZES)), rows, min_size=1)
    return chosen.filter(lambda rows: any(row.share for row in rows.values())).map(lambda rows: MapfKnobs(strata=rows))


@pytest.mark.parametrize("stratum", STRATUM_SIZES)
def test_5000_items_of_every_single_setting_hold_the_wait_ratio(stratum: str) -> None:
    """Each size with each hole and wait ratio: blocks of 80 tickets are exact, the two that are cut at most 20 off."""
    for hole_ratio, wait_ratio in product(HOLE_RATIOS, WAIT_RATIOS):
        knobs = MapfKnobs(strata={stratum: MapfRow(hole_ratio=hole_ratio, wait_ratio=wait_ratio)})
        waits = counted(knobs, seed=0, start=wait_ratio)[Ticket(stratum, True)]
        assert abs(waits / ITEMS - wait_ratio / 100) <= 40 / ITEMS, (hole_ratio, wait_ratio)


@given(tables(), st.integers(0, 2**40), st.integers(0, 10**9))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_5000_items_of_any_mixture_hold_the_wait_ratio_of_every_size(knobs: MapfKnobs, seed: int, start: int) -> None:
    found = counted(knobs, seed, start)
    for stratum, row in knobs.strata.items():
        waits, items = found[Ticket(stratum, True)], found[Ticket(stratum, True)] + found[Ticket(stratum, False)]
        assert abs(items / ITEMS - knobs.weights()[stratum]) <= 2 * LONGEST / 4 / ITEMS
        assert items > 0 if row.share else items == 0
        assert abs(waits - items * row.wait_ratio / 100) <= TOLERANCE * items


def test_no_order_of_the_tickets_breaks_the_bound_of_the_docstring() -> None:
    """The excess e of waits over w times the items, along a stream, is highest and lowest in some block where the waits
    all come first or last. The most that the ratio of consecutive items can be off is max e - min e over the fewest
    items of the size that 5 000 can hold, 61 times its tickets in a block. It is most for a single ticket a block,
    where e takes ten values a tenth apart: 0.9 / 61 = 0.015.
    """
    blocks = np.arange(100)
    worst = 0.0
    # Quotas are multiples of a tenth, so that phases of one ten are alike.
    for tickets, wait_ratio, phase in product(range(1, LONGEST + 1), WAIT_RATIOS, range(0, 100, 10)):
        waits = np.array([waits_in_block(tickets, wait_ratio, phase, int(block)) for block in blocks])
        assert set(waits) <= {tickets * wait_ratio // 100, -(-tickets * wait_ratio // 100)}
        ratio = wait_ratio / 100
        after = np.cumsum(waits) - ratio * tickets * (blocks + 1)
        before = after - waits + ratio * tickets
        highest = (before + (1 - ratio) * waits).max() if tickets > 1 else after.max()
        lowest = (before - ratio * (tickets - waits)).min() if tickets > 1 else after.min()
        allowed = 2 * min(
            ratio * -(-tickets * (100 - wait_ratio) // 100), (1 - ratio) * -(-tickets * wait_ratio // 100)
        )
        assert highest - lowest <= 1 + allowed * (tickets > 1) + 1e-9
        worst = max(worst, (highest - lowest) / (LEAST_WHOLE_BLOCKS * tickets))
    assert LEAST_WHOLE_BLOCKS == 61 and worst == pytest.approx(0.9 / 61)


@given(tables(), st.integers(0, 2**40), st.integers(0, 1_000))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_whole_block_has_each_share_to_the_ticket(knobs: MapfKnobs, seed: int, block: int) -> None:
    places = tickets_per_block(knobs)
    length = sum(places.values())
    assert length <= LONGEST < 2 * length or length == LONGEST
    found = Counter(ticket.stratum for ticket in deal(knobs, position(knobs, seed), block * length, length))
    assert found == Counter(places)
    assert {name: places.get(name, 0) / length for name in knobs.strata} == pytest.approx(knobs.weights())


@given(tables(), st.integers(0, 500), st.integers(1, 300))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_ticket_is_the_same_alone_and_in_any_company(knobs: MapfKnobs, start: int, count: int) -> None:
    key = position(knobs)
    together = list(deal(knobs, key, start, count))
    assert together == [ticket for index in range(start, start + count) for ticket in deal(knobs, key, index, 1)]
    assert together == list(deal(knobs, key, 0, start + count))[start:]


def test_over_all_streams_each_item_needs_a_wait_as_often_as_the_knob_says() -> None:
    """7 of 10 for any item, the first of a block as well as the last, within 4 standard deviations of 2 000 streams."""
    knobs = MapfKnobs(strata={"3x3": MapfRow(share=10, wait_ratio=70), "4x4": MapfRow(share=100, wait_ratio=0)})
    seen: Counter[tuple[int, Ticket]] = Counter()
    for seed in range(2_000):
        seen.update(enumerate(deal(knobs, position(knobs, seed), 0, 77)))
    for index in (0, 40, 76):
        waits, items = (sum(seen[index, Ticket("3x3", wait)] for wait in kinds) for kinds in ((True,), (True, False)))
        assert abs(items - 2_000 / 11) < 4 * (2_000 / 11 * 10 / 11) ** 0.5
        assert abs(waits - 0.7 * items) < 4 * (0.21 * items) ** 0.5


def test_items_have_no_period_though_blocks_have_one() -> None:
    """Half of the boards need a wait: every other one would, were the tickets not shuffled."""
    knobs = MapfKnobs(strata={"4x4": MapfRow(wait_ratio=50)})
    kinds = np.array([ticket.wait for ticket in deal(knobs, position(knobs), 0, ITEMS)])
    for step in range(2, 11):
        assert abs(kinds[::step].mean() - 0.5) < 0.05


def test_boards_of_a_mixture_are_those_that_their_tickets_name() -> None:
    environment = MapfFrozenLake(MapfSettings(sizes=(3, 5, 7)))
    knobs = MapfKnobs(
        strata={
            "3x3": MapfRow(share=10, hole_ratio=30, wait_ratio=40),
            "5x5": MapfRow(share=70, hole_ratio=50, wait_ratio=90),
            "7x7": MapfRow(share=100, hole_ratio=0, wait_ratio=20),
        }
    )
    tasks = environment.generate(knobs, 3, 111, 1_000, split="warm", stage=2)
    tickets = list(deal(knobs, (3, "warm", 2, knobs.digest()), 111, 1_000))
    assert [(task.stratum, task.data()["wait_makespan"]) for task in tasks] == tickets
