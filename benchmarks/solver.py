"""How fast the ground truth is: labels per second and latency of all labels, on four strata of growing difficulty.

Boards have an exact hole share; all agents stand in the largest component, the harder way to draw them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers import NODE_BUDGET, Status, solve_batch, warm_up


@dataclass(frozen=True, slots=True)
class Stratum:
    name: str
    size: int
    agents: int
    hole_percent: int
    instances: int


STRATA = (
    Stratum("S1", 3, 2, 20, 2000),
    Stratum("S2", 5, 3, 30, 2000),
    Stratum("S3", 8, 4, 40, 400),
    Stratum("S4", 10, 5, 50, 150),
)
SECONDS_PER_STRATUM = 14.0
EVERYTHING = 15
"""Bit set of all labels, as the kernel takes it."""

Instances = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


def run() -> dict[str, float]:
    """Figures per stratum: median and p95 in microseconds per instance, labels per second; instances undecided."""
    warm_up()
    figures: dict[str, float] = {}
    undecided = 0
    for number, stratum in enumerate(STRATA):
        micros, rate, open_count = _measure(draw(stratum, seed=1000 + number))
        undecided += open_count
        figures[f"median_us_{stratum.name}"] = float(np.median(micros))
        figures[f"p95_us_{stratum.name}"] = float(np.percentile(micros, 95))
        figures[f"labels_per_s_{stratum.name}"] = rate
    figures["undecided"] = float(undecided)
    return figures


def _measure(instances: Instances) -> tuple[NDArray[np.float64], float, int]:
    """(Microseconds inside the kernel per instance, labels per second of one batch call, undecided instances).

    Each instance is a kernel call of its own, less what an empty call costs; hard strata stop when their time is up.
    """
    from solvers.kernels.label import COLUMNS, label_batch
    from solvers.kernels.workspace import HORIZON, allocate

    holes, starts, goals = instances
    workspace = allocate()
    answers = np.empty((1, COLUMNS), np.int64)
    plans = np.empty((1, 2, starts.shape[1], HORIZON), np.uint8)

    def seconds(part: slice) -> float:
        begin = time.perf_counter()
        label_batch(workspace, holes[part], starts[part], goals[part], EVERYTHING, NODE_BUDGET, answers, plans)
        return time.perf_counter() - begin

    empty = min(seconds(slice(0, 0)) for _ in range(1000))
    micros: list[float] = []
    while len(micros) < len(starts) and sum(micros) < 1e6 * SECONDS_PER_STRATUM / 2:
        part = slice(len(micros), len(micros) + 1)
        micros.append(1e6 * (seconds(part) - empty))
    done = slice(0, len(micros))
    begin = time.perf_counter()
    labels = solve_batch(holes[done], starts[done], goals[done])
    rate = len(micros) / (time.perf_counter() - begin)
    return np.array(micros), rate, int((labels.status == Status.UNDECIDED).sum())


def draw(stratum: Stratum, seed: int) -> Instances:
    """Seeded boards with starts and goals in the largest component, start != goal for each agent."""
    generator = np.random.default_rng(seed)
    cells = stratum.size**2
    count = (stratum.hole_percent * cells + 50) // 100
    holes = np.zeros((stratum.instances, cells), np.uint8)
    starts = np.empty((stratum.instances, stratum.agents), np.int64)
    goals = np.empty_like(starts)
    filled = 0
    while filled < stratum.instances:
        board = np.zeros(cells, np.uint8)
        board[generator.choice(cells, count, replace=False)] = 1
        room = _largest_component(board, stratum.size)
        if len(room) < stratum.agents + 1:
            continue
        while True:
            start = generator.choice(room, stratum.agents, replace=False)
            goal = generator.choice(room, stratum.agents, replace=False)
            if not (start == goal).any():
                break
        holes[filled], starts[filled], goals[filled] = board, start, goal
        filled += 1
    return holes.reshape(-1, stratum.size, stratum.size), starts, goals


def _largest_component(board: NDArray[np.uint8], size: int) -> list[int]:
    rest = {cell for cell in range(size * size) if not board[cell]}
    best: list[int] = []
    while rest:
        component = [rest.pop()]
        for cell in component:
            row, column = divmod(cell, size)
            for near, inside in (
                (cell - size, row > 0),
                (cell + size, row < size - 1),
                (cell - 1, column > 0),
                (cell + 1, column < size - 1),
            ):
                if inside and near in rest:
                    rest.discard(near)
                    component.append(near)
        best = max(best, component, key=len)
    return sorted(best)
