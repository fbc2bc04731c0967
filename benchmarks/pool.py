"""What the solver pool costs and how it scales: labels per second through it, beside one ``solve_batch`` in process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any

import numpy as np

STRATA = {"5x5_3": (5, 3, 8), "8x8_4": (8, 4, 26)}
"""Name -> board size, agents, holes (30 % and 40 %)."""
BOARDS, REPEATS = 4096, 5
"""Boards of a batch, as many as a round of the generator."""


def run() -> dict[str, float]:
    """Medians of interleaved repeats by stratum: ``ratio_1`` = pool of one ÷ in process, ``scaling_2`` = two ÷ one."""
    from environments.mapf_frozenlake.labeller import InProcessLabeller

    figures: dict[str, float] = {}
    with _pool(1) as one, _pool(2) as two:
        sides = {"in_process": InProcessLabeller(), "pool_1": one, "pool_2": two}
        for name, stratum in STRATA.items():
            boards = draw(*stratum)
            rates: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(REPEATS + 1):
                for side, labeller in sides.items():
                    rates[side].append(BOARDS / _seconds(labeller.label_boards, boards))
            # The first repeat waits for the processes to start.
            rate = {side: values[1:] for side, values in rates.items()}
            figures[f"ratio_1_{name}"] = _median_ratio(rate["pool_1"], rate["in_process"])
            figures[f"scaling_2_{name}"] = _median_ratio(rate["pool_2"], rate["pool_1"])
            figures |= {f"{side}_labels_per_s_{name}": statistics.median(values) for side, values in rate.items()}
            _same([labeller.label_boards(*boards) for labeller in sides.values()])
    return figures


def draw(n: int, agents: int, holes: int) -> tuple[Any, Any, Any]:
    """BOARDS seeded boards whose agents share a component: holes bool[B, n, n], starts and goals int64[B, k]."""
    from environments.mapf_frozenlake import candidates

    count = 16 * BOARDS
    drawn = candidates.draw(n, holes, agents, np.full(count, n, np.uint64), np.arange(count, dtype=np.uint64))
    reach = candidates.components(~drawn.holes, drawn.starts[:, :1])[:, 0]
    together = np.take_along_axis(reach, drawn.starts, axis=1).all(axis=1)
    chosen = np.flatnonzero(drawn.usable & together)[:BOARDS]
    if len(chosen) < BOARDS:
        raise RuntimeError(f"{len(chosen)} boards of {n}x{n} with {holes} holes, {BOARDS} are needed")
    return drawn.holes[chosen], drawn.starts[chosen], drawn.goals[chosen]


@contextmanager
def _pool(workers: int) -> Iterator[Any]:
    import ray

    from actors.config import GroundTruthConfig
    from actors.ground_truth import SolverPool

    def place(name: str, attempt: int) -> dict[str, Any]:
        return {"num_cpus": 0}

    with ExitStack() as stack:
        if not ray.is_initialized():
            from cluster.config import ClusterConfig
            from cluster.session import connect

            stack.enter_context(connect(ClusterConfig(dashboard=False, object_store_mib=150), "benchmark"))
        yield SolverPool(GroundTruthConfig(workers=workers), ("mapf_frozenlake", {"agents": 2, "sizes": [3]}), place)


def _seconds(label: Callable[..., Any], boards: tuple[Any, ...]) -> float:
    started = time.perf_counter()
    label(*boards)
    return time.perf_counter() - started


def _median_ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _same(found: list[Any]) -> None:
    """The labels of all sides must be equal, else the figures compare nothing."""
    for other in found[1:]:
        for entry in fields(found[0]):
            np.testing.assert_array_equal(getattr(found[0], entry.name), getattr(other, entry.name))
