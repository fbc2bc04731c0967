"""The front door: checks a batch, lends it a workspace and turns the kernels' answers into labels."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.instances import check_batch
from solvers.labels import WAIT, BatchLabels, Labels

NODE_BUDGET = 8_000_000
"""Expansions allowed to each single search of an instance, half a minute at most; its memory holds about as many.
Clocks play no part, so labels repeat everywhere."""

WANTS = ("makespan", "sum_of_costs", "wait_makespan", "wait_sum_of_costs")
ALL_LABELS = frozenset(WANTS)
CHUNK = 2048
"""Instances per kernel call: bounds the memory of the plans, which the kernel writes at full length."""

_local = threading.local()


def solve_batch(
    holes: ArrayLike,
    starts: ArrayLike,
    goals: ArrayLike,
    *,
    node_budget: int = NODE_BUDGET,
    want: Iterable[str] = ALL_LABELS,
) -> BatchLabels:
    """Labels of B instances of one board size n (3..10) and one agent count k (1..5).

    holes: bool or integer [B, n, n]; starts, goals: integer [B, k], row-major cells. `want` names the labels to
    compute (solvability always is). Exact or unknown, never approximate. ValueError on a malformed instance.
    May be called from several threads: the kernel releases the GIL and each thread has a workspace of its own.
    """
    grid, start_cells, goal_cells = check_batch(holes, starts, goals)
    mask = _want_mask(want)
    if node_budget < 1:
        raise ValueError(f"node_budget: {node_budget} is not allowed; it must be at least 1")
    from solvers.kernels.label import COLUMNS, label_batch
    from solvers.kernels.workspace import HORIZON

    batch, agents = start_cells.shape
    answers = np.empty((batch, COLUMNS), np.int64)
    parts: list[NDArray[np.uint8]] = []
    for first in range(0, batch, CHUNK):
        part = slice(first, first + CHUNK)
        plans = np.full((len(start_cells[part]), 2, agents, HORIZON), WAIT, np.uint8)
        _run(label_batch, (grid[part], start_cells[part], goal_cells[part], mask, node_budget, answers[part], plans))
        parts.append(np.ascontiguousarray(plans[..., : max(0, _longest(answers[part]))]))
    return _assemble(answers, parts, agents)


def solve(holes: ArrayLike, starts: ArrayLike, goals: ArrayLike, **options: Any) -> Labels:
    """Labels of one instance: holes [n, n], starts and goals [k]; options as for `solve_batch`."""
    one = (np.asarray(field)[None] for field in (holes, starts, goals))
    return solve_batch(*one, **options)[0]


def warm_up() -> float:
    """Load the kernels from the cache, or compile them (about a minute, once per machine); seconds taken."""
    begin = time.perf_counter()
    solve_batch(np.zeros((1, 3, 3), np.uint8), np.array([[0, 1]]), np.array([[1, 0]]))
    return time.perf_counter() - begin


def _want_mask(want: Iterable[str]) -> int:
    names = frozenset(want)
    if not names <= ALL_LABELS:
        raise ValueError(f"want: {sorted(names - ALL_LABELS)} is not allowed; labels are {', '.join(WANTS)}")
    return sum(1 << bit for bit, name in enumerate(WANTS) if name in names)


def _workspace() -> Any:
    from solvers.kernels.workspace import allocate

    if not hasattr(_local, "workspace"):
        _local.workspace = allocate()
    return _local.workspace


def _run(kernel: Any, arguments: tuple[Any, ...]) -> None:
    """Call a kernel with this thread's workspace; on the main thread, where Ctrl-C arrives, so that it interrupts.

    A kernel would hold the main thread until its end, so it runs beside it; the flag that it polls calls it off.
    """
    from solvers.kernels.workspace import CANCEL

    workspace = _workspace()
    if threading.current_thread() is not threading.main_thread():
        kernel(workspace, *arguments)
        return
    if not hasattr(_local, "beside"):
        _local.beside = ThreadPoolExecutor(1, "solver")
    running = _local.beside.submit(kernel, workspace, *arguments)
    try:
        running.result()
    except BaseException:
        workspace["counter"][CANCEL] = 1
        wait([running])
        workspace["counter"][CANCEL] = 0
        raise


def _longest(answers: NDArray[np.int64]) -> int:
    from solvers.kernels.label import LENGTH_COST, LENGTH_MAKESPAN

    return int(answers[:, [LENGTH_MAKESPAN, LENGTH_COST]].max(initial=0))


def _assemble(answers: NDArray[np.int64], parts: list[NDArray[np.uint8]], agents: int) -> BatchLabels:
    from solvers.kernels import label

    plans = np.full((len(answers), 2, agents, max(0, _longest(answers))), WAIT, np.uint8)
    first = 0
    for part in parts:
        plans[first : first + len(part), ..., : part.shape[-1]] = part
        first += len(part)

    def column(index: int, dtype: Any) -> NDArray[Any]:
        return np.ascontiguousarray(answers[:, index], dtype=dtype)

    def kind(index: int) -> NDArray[np.uint8]:
        length = max(0, int(answers[:, label.LENGTH_MAKESPAN + index].max(initial=0)))
        return np.ascontiguousarray(plans[:, index, :, :length])

    return BatchLabels(
        status=column(label.STATUS, np.uint8),
        makespan=column(label.MAKESPAN, np.int16),
        sum_of_costs=column(label.SUM_OF_COSTS, np.int16),
        wait_makespan=column(label.WAIT_MAKESPAN, np.int8),
        wait_sum_of_costs=column(label.WAIT_COST, np.int8),
        plan_makespan=kind(0),
        plan_makespan_length=column(label.LENGTH_MAKESPAN, np.int16),
        plan_sum_of_costs=kind(1),
        plan_sum_of_costs_length=column(label.LENGTH_COST, np.int16),
        expansions=column(label.EXPANSIONS, np.int64),
    )
