"""A million labelled boards with two agents, 3x3 to 10x10, on two processes: rate, distinctness, second pass, floor.

A cell is a size and a hole ratio, with the default wait ratio. Its items are its stream in order without repeats, as
long as that goes: once 80 % of what a kind (with or without a wait) draws was there before, four fifths of its space
by weight are used up, and repeats stay in. Which items those are depends on the stream alone.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ITEMS = 1_000_000
PROCESSES = 2
BLOCK = 8_192
SPENT = 0.8
"""Share of repeats among a kind's draws in a block from which on its space counts as used up."""
SEED = 0
WAIT_RATIO = 10
SIZES = range(3, 11)
HOLE_RATIOS = range(0, 51, 10)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class CellRun:
    """What a cell gave: items kept and distinct among them, stream items generated, kinds used up, seconds."""

    n: int
    hole_ratio: int
    kept: int
    distinct: int
    generated: int
    spent: tuple[bool, ...]
    seconds: float


def run() -> dict[str, float]:
    """Rates per second, unique ratios, speed-up of the second pass, and the generator beside its floor, by size."""
    import solvers

    solvers.warm_up()
    figures = floors()
    with tempfile.TemporaryDirectory() as folder:
        first, wall = passed(folder, ITEMS)
        second, second_wall = passed(folder, ITEMS)
    assert [cell.distinct for cell in first] == [cell.distinct for cell in second]
    for n in SIZES:
        cells = [cell for cell in first if cell.n == n]
        kept = sum(cell.kept for cell in cells)
        figures[f"items_per_s_{n}x{n}"] = sum(cell.generated for cell in cells) / sum(cell.seconds for cell in cells)
        figures[f"unique_ratio_{n}x{n}"] = sum(cell.distinct for cell in cells) / kept
        figures[f"cells_with_repeats_{n}x{n}"] = sum(any(cell.spent) for cell in cells)
    figures["items"] = sum(cell.kept for cell in first)
    figures["distinct"] = sum(cell.distinct for cell in first)
    figures["wall_s"] = wall
    figures["items_per_s"] = sum(cell.generated for cell in first) / sum(cell.seconds for cell in first) * PROCESSES
    figures["second_pass_items_per_s"] = sum(c.generated for c in second) / sum(c.seconds for c in second) * PROCESSES
    figures["second_pass_speedup"] = figures["second_pass_items_per_s"] / figures["items_per_s"]
    figures["second_pass_wall_s"] = second_wall
    return figures


def passed(folder: str, items: int) -> tuple[list[CellRun], float]:
    """Every cell in fresh processes that keep finished items in ``folder``; and the wall-clock seconds."""
    cells = [(folder, n, ratio, share) for (n, ratio), share in shares(items).items()]
    began = time.perf_counter()
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        # The largest boards first, so that no process is left alone with one at the end.
        found = list(pool.map(work, *zip(*reversed(cells), strict=True)))
    return found, time.perf_counter() - began


def shares(items: int) -> dict[tuple[int, int], int]:
    """(size, hole ratio) -> items, as equal as can be."""
    cells = [(n, ratio) for n in SIZES for ratio in HOLE_RATIOS]
    return {cell: items // len(cells) + (index < items % len(cells)) for index, cell in enumerate(cells)}


def work(folder: str, n: int, hole_ratio: int, wanted: int) -> CellRun:
    """One cell. The seconds are those of ``generate`` alone: telling items apart is the benchmark's own work."""
    from environments.mapf_frozenlake.board import canonical_digest
    from environments.mapf_frozenlake.item_cache import ItemCache

    environment, knobs = cell_stream(n, hole_ratio)
    environment.cache = ItemCache(Path(folder))
    seen: set[int] = set()
    spent = [False, False]
    kept = generated = 0
    seconds = 0.0
    while kept < wanted:
        began = time.perf_counter()
        tasks = environment.generate(knobs, SEED, generated, min(BLOCK, wanted))
        seconds += time.perf_counter() - began
        generated += len(tasks)
        draws, repeats = Counter[int](), Counter[int]()
        for task in tasks:
            data = json.loads(task.payload)
            # Numbers, unlike nested tuples, are nothing that the garbage collector has to walk.
            form, wait = canonical_digest(environment.identity(data)), int(data["wait_makespan"])
            draws[wait] += 1
            repeats[wait] += form in seen
            if form not in seen or spent[wait]:
                seen.add(form)
                kept += 1
                if kept == wanted:
                    break
        spent = [spent[wait] or repeats[wait] > SPENT * draws[wait] for wait in (0, 1)]
    return CellRun(n, hole_ratio, kept, len(seen), generated, tuple(spent), seconds)


def cell_stream(n: int, hole_ratio: int, wait_ratio: int = WAIT_RATIO) -> tuple[Any, Any]:
    """(environment, knobs) of one cell, its yields measured."""
    from environments.mapf_frozenlake import MapfFrozenLake
    from environments.mapf_frozenlake.settings import MapfKnobs, MapfRow, MapfSettings, stratum_name

    environment = MapfFrozenLake(MapfSettings(agents=2, sizes=(n,)))
    environment.cache = None
    row = MapfRow(hole_ratio=hole_ratio, wait_ratio=wait_ratio)
    knobs = MapfKnobs(strata={stratum_name(n): row})
    environment.feasibility(knobs)
    return environment, knobs


def floors() -> dict[str, float]:
    """One process, 20 % holes: the generator's time beside that of drawing and solving the same number of candidates.

    And how long a board that needs a wait takes where they are rarest, without holes.
    """
    figures: dict[str, float] = {}
    for n in SIZES:
        environment, knobs = cell_stream(n, 20)
        times = defaultdict[str, list[float]](list)
        for repeat in range(REPEATS + 1):
            began = time.perf_counter()
            environment.generate(knobs, 1 + repeat, 0, BLOCK)
            times["generate"].append(time.perf_counter() - began)
            report = environment.generation_report(knobs, 1 + repeat, 0, BLOCK)
            for part, seconds in _alone(n, 20, sum(entry.drawn for entry in report.values())).items():
                times[part].append(seconds)
        # The first repeat loads what the others use.
        median = {part: statistics.median(seconds[1:]) for part, seconds in times.items()}
        figures[f"one_process_items_per_s_{n}x{n}"] = BLOCK / median["generate"]
        figures[f"draws_per_s_{n}x{n}"] = BLOCK / median["draw"]
        figures[f"labels_per_s_{n}x{n}"] = BLOCK / median["label"]
        figures[f"floor_ratio_{n}x{n}"] = (median["draw_all"] + median["label_all"]) / median["generate"]
    environment, knobs = cell_stream(10, 0, 100)
    began = time.perf_counter()
    environment.generate(knobs, 1, 0, 1_000)
    figures["rarest_wait_boards_per_s"] = 1_000 / (time.perf_counter() - began)
    return figures


def _alone(n: int, hole_ratio: int, candidates: int) -> dict[str, float]:
    """Seconds to draw and to label BLOCK candidates, and what that makes for ``candidates`` of them."""
    import solvers
    from environments.mapf_frozenlake.candidates import draw
    from environments.mapf_frozenlake.settings import hole_count

    numbers = np.arange(BLOCK, dtype=np.uint64)
    began = time.perf_counter()
    drawn = draw(n, hole_count(n, hole_ratio), 2, numbers, numbers)
    drew = time.perf_counter()
    usable = np.flatnonzero(drawn.usable)
    solvers.solve_batch(drawn.holes[usable], drawn.starts[usable], drawn.goals[usable])
    labelled = time.perf_counter()
    times = {"draw": drew - began, "label": labelled - drew}
    return times | {f"{part}_all": seconds * candidates / BLOCK for part, seconds in times.items()}
