"""A million random boards: are all decided, how slow are the slowest, and which are they?

Size 3..10, two to five agents, 0 to 50 percent holes, all uniform; the agents stand in the largest component. A board
that is among the ten slowest so far is printed at once, so that a run that is stopped has not been in vain; at the end
the ten are printed as rows of ``tests/solvers/slowest.jsonl``, which the tests keep as regression cases.
"""

from __future__ import annotations

import heapq
import json
import os

import numpy as np

from benchmarks.solver import LIMIT_US, timed
from benchmarks.solver_instances import Board, Stratum, batches, board_of, draw, row_of
from solvers import Status, solve_batch, warm_up

BOARDS = int(os.environ.get("SOLVER_TAIL_BOARDS", "1000000"))
CHUNK, SEED, KEPT = 5_000, 20_260, 10


def run() -> dict[str, float]:
    """Figures: boards, undecided, over_60_s, unsolvable, mean and slowest in microseconds."""
    warm_up()
    generator = np.random.default_rng(SEED)
    slowest: list[tuple[float, str]] = []
    known: set[tuple[float, str]] = set()
    total, undecided, over, unsolvable = 0.0, 0, 0, 0
    for first in range(0, BOARDS, CHUNK):
        boards = [_random_board(generator) for _ in range(min(CHUNK, BOARDS - first))]
        for batch in batches(boards):
            micros, status = timed(*batch)
            total += float(micros.sum())
            undecided += int((status == Status.UNDECIDED).sum())
            unsolvable += int((status == Status.UNSOLVABLE).sum())
            over += int((micros > LIMIT_US).sum())
            for place in np.argsort(micros)[-KEPT:]:
                board = tuple(field[place] for field in batch)
                heapq.heappush(slowest, (float(micros[place]), row_of("slowest", board)))
            kept = heapq.nlargest(KEPT, slowest)
            for entry in set(kept) - known:
                print(json.dumps({"ms": round(entry[0] / 1000, 1), **json.loads(entry[1])}), flush=True)
            known |= set(kept)
            slowest = sorted(kept)
        print(
            f"{first + len(boards):,} boards, {undecided} undecided, slowest {max(slowest)[0] / 1e6:.2f} s", flush=True
        )
    for micros_one, row in sorted(slowest, reverse=True):
        print(json.dumps({"ms": round(micros_one / 1000, 1), **json.loads(row), "labels": labels_of(row)}))
    return {
        "boards": float(BOARDS),
        "undecided": float(undecided),
        "over_60_s": float(over),
        "unsolvable": float(unsolvable),
        "mean_us": total / BOARDS,
        "slowest_us": max(slowest)[0],
    }


def labels_of(row: str) -> list[int]:
    """Status, makespan, sum of costs and both wait labels of a row, as the regression file keeps them."""
    holes, starts, goals = board_of(json.loads(row))
    labels = solve_batch(holes[None], starts[None], goals[None])
    fields = (labels.status, labels.makespan, labels.sum_of_costs, labels.wait_makespan, labels.wait_sum_of_costs)
    return [int(field[0]) for field in fields]


def _random_board(generator: np.random.Generator) -> Board:
    while True:
        size, agents = int(generator.integers(3, 11)), int(generator.integers(2, 6))
        percent = int(generator.integers(0, 51))
        if size * size - (percent * size * size + 50) // 100 > agents:
            return draw(Stratum("", size, agents, percent), generator)
