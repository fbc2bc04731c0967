"""Exact labels on a committed list of boards, beside the conflict-based search of ``pymapf`` on the same boards.

The peer finds the sum of costs only; here every label is computed. One core, one process. Our times are read inside the
kernel loop; where the peer gives up (it returns nothing, after 10 000 expansions), the time until then is its time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.solver_instances import STRATA, Board, batches, draw, read
from solvers import NODE_BUDGET, Status, solve_batch, validate_plan, warm_up

REPEATS = 3
PEER_BOARDS = 60
"""So many boards of each stratum go to the peer as well: it takes seconds for each that it gives up."""
DRAWS = 10
"""Further draws as large as a stratum's list: how far apart their 95th percentiles lie."""
RAW_BOARDS = {"S1": 20_000, "S2": 10_000, "S3": 3_000, "S4": 3_000}
EVERYTHING, OPTIMA, SHORTEST = 15, 3, 1
"""Bit sets of labels, as the kernel takes them: all, both optima, the makespan; each with whether there is a plan."""
LIMIT_US = 60e6


def run() -> dict[str, float]:
    """Figures: times in microseconds, ratios peer ÷ ours over the same boards, labels per second, undecided boards."""
    warm_up()
    sets = read()
    figures: dict[str, float] = {"undecided": 0.0, "over_60_s": 0.0}
    for stratum in STRATA:
        boards = sets[stratum.name]
        ours, status = measure(boards)
        _note(figures, stratum.name, ours, status)
        optima, _ = measure(boards, OPTIMA)
        figures[f"optima_median_us_{stratum.name}"] = float(np.median(optima))
        figures[f"optima_p95_us_{stratum.name}"] = float(np.percentile(optima, 95))
        figures[f"optima_mean_us_{stratum.name}"] = float(optima.mean())
        # Where there is no plan the peer only runs into its cap, so it is asked for boards that have one.
        shared = np.flatnonzero(status == Status.SOLVABLE)[:PEER_BOARDS]
        theirs, gave_up = _peer([boards[place] for place in shared])
        same = ours[shared]
        figures[f"median_ratio_{stratum.name}"] = float(np.median(theirs) / np.median(same))
        figures[f"p95_ratio_{stratum.name}"] = float(np.percentile(theirs, 95) / np.percentile(same, 95))
        figures[f"peer_median_us_{stratum.name}"] = float(np.median(theirs))
        figures[f"peer_gave_up_{stratum.name}"] = float(gave_up.sum())
        cap = theirs[gave_up].min() if gave_up.any() else np.inf
        figures[f"mean_us_{stratum.name}"] = float(np.minimum(ours, cap).mean())
        figures[f"peer_mean_us_{stratum.name}"] = float(np.minimum(theirs, cap).mean())
        again = np.random.default_rng(8)
        further = ([draw(stratum, again) for _ in boards] for _ in range(DRAWS))
        p95s = [float(np.percentile(measure(one, repeats=1)[0], 95)) for one in further]
        figures[f"p95_us_lowest_draw_{stratum.name}"] = min(p95s)
        figures[f"p95_us_highest_draw_{stratum.name}"] = max(p95s)
        raw = np.random.default_rng(7)
        sampled, _ = measure([draw(stratum, raw, everywhere=True) for _ in range(RAW_BOARDS[stratum.name])])
        figures[f"labels_per_s_{stratum.name}"] = 1e6 / float(sampled.mean())
    ours, status = measure(sets["unsolvable"])
    _note(figures, "unsolvable", ours, status)
    figures["proof_median_us"] = figures["median_us_unsolvable"]
    figures["not_proven"] = float((status != Status.UNSOLVABLE).sum())
    ours, status = measure(sets["mazes"], SHORTEST, repeats=1)
    _note(figures, "mazes", ours, status)
    return figures


def _note(figures: dict[str, float], name: str, micros: NDArray[np.float64], status: NDArray[np.int64]) -> None:
    for label, share in (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100)):
        figures[f"{label}_us_{name}"] = float(np.percentile(micros, share))
    figures["undecided"] += float((status == Status.UNDECIDED).sum())
    figures["over_60_s"] += float((micros > LIMIT_US).sum())


def measure(
    boards: list[Board], want: int = EVERYTHING, repeats: int = REPEATS
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Microseconds inside the kernel per board, the best of some repeats, and the status of each."""
    micros, status = [], []
    for batch in batches(boards):
        runs = [timed(*batch, want) for _ in range(repeats)]
        micros.append(np.min([times for times, _ in runs], axis=0))
        status.append(runs[0][1])
    return np.concatenate(micros), np.concatenate(status)


def timed(
    holes: NDArray[np.uint8], starts: NDArray[np.int64], goals: NDArray[np.int64], want: int = EVERYTHING
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Time stamps of the kernel loop, scaled to the clock by the whole batch."""
    from solvers.kernels.label import COLUMNS, CYCLES, STATUS, label_batch
    from solvers.kernels.workspace import HORIZON

    answers = np.zeros((len(starts), COLUMNS), np.int64)
    plans = np.full((len(starts), 2, starts.shape[1], HORIZON), 4, np.uint8)
    workspace = _workspace()
    first = slice(0, 20)
    label_batch(workspace, holes[first], starts[first], goals[first], want, NODE_BUDGET, answers, plans)
    begin = time.perf_counter()
    label_batch(workspace, holes, starts, goals, want, NODE_BUDGET, answers, plans)
    seconds = time.perf_counter() - begin
    return answers[:, CYCLES] / answers[:, CYCLES].sum() * seconds * 1e6, answers[:, STATUS]


@cache
def _workspace() -> Any:
    """One for all batches, as a thread has: its pages are backed only once."""
    from solvers.kernels.workspace import allocate

    return allocate()


def _peer(boards: list[Board]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Microseconds of the peer per board and whether it gave up; its answers are checked against ours."""
    times = np.array(list(_peer_rows(boards)))
    return times[:, 0], times[:, 1] == 1


def _peer_rows(boards: list[Board]) -> Iterator[tuple[float, bool]]:
    from pymapf.algorithms.cbs import ConflictBasedSearch
    from pymapf.core.grid import GridMap
    from pymapf.core.solver import Agent, MAPFProblem

    for holes, starts, goals in boards:
        size = len(holes)
        agents = [
            Agent(str(i), divmod(int(s), size), divmod(int(g), size))
            for i, (s, g) in enumerate(zip(starts, goals, strict=True))
        ]
        best, plan = np.inf, None
        for _ in range(REPEATS):
            begin = time.perf_counter()
            plan = ConflictBasedSearch().solve(MAPFProblem(GridMap(holes.tolist()), agents))
            best = min(best, time.perf_counter() - begin)
            if best > 0.05:
                break
        if plan is not None:
            cost = sum(len(path) - 1 for path in plan.paths.values())
            labels = solve_batch(holes[None], starts[None], goals[None])[0]
            assert labels.plan_sum_of_costs is not None
            checked = validate_plan(holes, starts.tolist(), goals.tolist(), labels.plan_sum_of_costs)
            if cost != labels.sum_of_costs or checked.sum_of_costs != cost:
                raise AssertionError(f"two optima for {holes.tolist()}, {starts}, {goals}: {cost}, {labels}")
        yield best * 1e6, plan is None
