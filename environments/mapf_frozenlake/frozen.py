"""The fixed sets: ``validation`` steers training, ``held_out`` and ``benchmark`` are for claims.

Which boards a set may hold is decided by the digest of their canonical form (``board.RESERVED``), and training never
emits a reserved board, so the sets and training are disjoint up to symmetry and agent names by construction.

    python -m environments.mapf_frozenlake.frozen --check    # rebuild and compare with what is stored
    python -m environments.mapf_frozenlake.frozen --write    # rebuild and store
    python -m environments.mapf_frozenlake.frozen --check benchmark    # some files only
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from environments.base import FrozenSet, Labeller, Task, canonical_json, digest, stream
from environments.mapf_frozenlake import cells
from environments.mapf_frozenlake.board import Board, CanonicalForm, canonical_form, reserved_for
from environments.mapf_frozenlake.candidates import draw
from environments.mapf_frozenlake.labeller import InProcessLabeller
from environments.mapf_frozenlake.settings import STRATUM_SIZES, MapfRow, hole_count, stratum_name
from environments.mapf_frozenlake.yields import judged, label_candidates

AGENTS = 2
"""Agents of the sets that this file builds; ``cells`` builds those for more."""
QUOTA: Mapping[str, Mapping[int, int]] = {
    "validation": dict.fromkeys(STRATUM_SIZES.values(), 150),
    "held_out": {n: 334 if n <= 5 else 150 for n in STRATUM_SIZES.values()},
}
"""Boards per set and size with two agents."""
MANY: Mapping[str, str] = {"validation": "validation_3to5", "held_out": "held_out_3to5", "benchmark": "benchmark"}
"""Set -> file with its boards for three to five agents."""

HOLE_RATIOS = next(spec.grid for spec in MapfRow.specs() if spec.name == "hole_ratio")

SMALL_CELLS: Mapping[tuple[int, int], tuple[int, int]] = {
    (3, 0): (268, 4),
    (3, 1): (1334, 48),
    (3, 2): (2207, 223),
    (3, 3): (1732, 281),
    (3, 4): (639, 116),
    (3, 5): (106, 22),
    (4, 0): (3202, 35),
    (5, 0): (20770, 162),
}
"""(size, holes) -> solvable canonical boards without and with a necessary wait, where there are few (two agents)."""

EDITIONS = ("benchmark", "held_out")
FILES = (*QUOTA, *MANY.values())

SHARE = {"validation": (3, 100), "held_out": (7, 100)}
"""The most a set takes of a small cell: together at most 10 %."""

CHUNK, CHUNKS_WITHOUT_A_FIND = 2_000, 20


class FrozenSetUnavailable(ValueError):
    """There is no frozen set for these settings."""


class FrozenSetCorrupt(RuntimeError):
    """A stored set isn't the one that was committed."""


def _data(name: str) -> Traversable:
    return resources.files("environments.mapf_frozenlake") / "data" / name


def _checksums() -> dict[str, str]:
    return dict(json.loads(line) for line in _data("checksums.jsonl").read_text("utf-8").splitlines())


@cache
def load(file: str) -> tuple[str, ...]:
    """The task payloads of a file, checked against its committed checksum. Raises FrozenSetCorrupt."""
    rows = [json.loads(line) for line in _data(f"{file}.jsonl").read_text("utf-8").splitlines()]
    payloads = tuple(map(_payload, rows))
    found, expected = (digest(list(payloads)), _checksums()[file])
    if found != expected:
        raise FrozenSetCorrupt(
            f"data/{file}.jsonl has checksum {found}, committed is {expected}: restore the file, or rebuild it with "
            "`python -m environments.mapf_frozenlake.frozen --check`"
        )
    return payloads


def frozen_set(name: str, environment: str, sizes: tuple[int, ...], agents: int) -> FrozenSet:
    """The part of ``validation`` or ``held_out`` that belongs to a run; its checksum covers boards and labels."""
    chosen = []
    for payload in load(name if agents == AGENTS else MANY[name]):
        data = json.loads(payload)
        if data["n"] in sizes and len(data["starts"]) == agents:
            chosen.append((data["n"], payload))
    tasks = tuple(
        Task(environment, payload, stratum_name(n), split=name, index=index)
        for index, (n, payload) in enumerate(chosen)
    )
    return FrozenSet(name, tasks, digest([payload for _, payload in chosen]))


@dataclass(frozen=True, slots=True)
class BenchmarkCell:
    """150 tasks for one agent count on one map size, 50 at each wait ratio."""

    agents: int
    n: int
    tasks: tuple[Task, ...]

    def at(self, wait_ratio: int) -> tuple[Task, ...]:
        """The 50 tasks at wait ratio 25, 50 or 75 (%). ValueError for another."""
        return self.tasks[cells.WAIT_RATIOS.index(wait_ratio) :: len(cells.WAIT_RATIOS)]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An edition: its 21 cells, agents first, and one checksum over all boards and labels in order."""

    name: str
    cells: tuple[BenchmarkCell, ...]
    checksum: str


def benchmark(environment: str, edition: str = "benchmark") -> Benchmark:
    """The 21 cells of the edition ``benchmark`` or ``held_out`` (other boards, from another seed)."""
    if edition not in EDITIONS:
        raise FrozenSetUnavailable(f"there is no edition {edition!r}: known are {', '.join(EDITIONS)}")
    whole = {cell: position for position, cell in enumerate(cells.SET_CELLS[edition])}
    payloads, out = load(MANY[edition]), []
    used: list[str] = []
    for agents, n in cells.CELLS:
        first = whole[agents, n] * cells.BOARDS
        chosen = payloads[first : first + cells.BOARDS]
        tasks = tuple(
            Task(environment, payload, stratum_name(n), split=edition, index=len(used) + index)
            for index, payload in enumerate(chosen)
        )
        used += chosen
        out.append(BenchmarkCell(agents, n, tasks))
    return Benchmark(edition, tuple(out), digest(used))


# ------------------------------------------------------------------------------------------------------------- building


def _row(board: Board, labels: list[int]) -> list[Any]:
    """The stored form: [n, holes as hex of a bit mask, starts, goals, [makespan, sum of costs, wait_T, wait_SOC]]."""
    return [board.n, f"{sum(1 << c for c in board.holes):x}", list(board.starts), list(board.goals), labels]


def _payload(row: list[Any] | str) -> str:
    if isinstance(row, str):
        return canonical_json(cells.payload(row))
    (n, holes, starts, goals, (makespan, sum_of_costs, wait_makespan, wait_sum_of_costs)) = row
    mask = int(holes, 16)
    return canonical_json(
        {
            "n": n,
            "holes": [c for c in range(n * n) if mask >> c & 1],
            "starts": starts,
            "goals": goals,
            "makespan": makespan,
            "sum_of_costs": sum_of_costs,
            "wait_makespan": bool(wait_makespan),
            "wait_sum_of_costs": bool(wait_sum_of_costs),
        }
    )


def _finds(name: str, n: int, holes: int, labeller: Labeller) -> Iterator[tuple[Board, bool, list[int]]]:
    """Solvable boards of a cell that belong to a set, in stream order, until nothing new comes for long."""
    key = stream("mapf_frozenlake frozen", name, n, holes).getrandbits(64)
    seen: set[CanonicalForm] = set()
    number, idle = 0, 0
    while idle < CHUNKS_WITHOUT_A_FIND:
        numbers = np.arange(number, number + CHUNK, dtype=np.uint64)
        candidates = draw(n, holes, AGENTS, np.full(CHUNK, key, dtype=np.uint64), numbers)
        labels = label_candidates(labeller, candidates)
        idle += 1
        for index in np.flatnonzero(judged(labels, "makespan") >= 0).tolist():
            board = candidates.board(index)
            form = canonical_form(board)
            if form in seen or reserved_for(board) != name:
                continue
            seen.add(form)
            idle = 0
            columns = (labels.makespan, labels.sum_of_costs, labels.wait_makespan, labels.wait_sum_of_costs)
            yield (board, bool(labels.wait_makespan[index]), [int(column[index]) for column in columns])
        number += CHUNK


def build(name: str, n: int, labeller: Labeller) -> list[list[Any]]:
    """The stored rows of one size: hole ratios take turns, one whose cell is exhausted is passed over."""
    sources = {h: _finds(name, n, h, labeller) for h in (hole_count(n, ratio) for ratio in HOLE_RATIOS)}
    taken: Counter[tuple[int, bool]] = Counter()
    rows: list[tuple[int, list[Any]]] = []
    part, whole = SHARE[name]
    while len(rows) < QUOTA[name][n]:
        if not sources:
            raise FrozenSetUnavailable(f"{name}, {n}x{n}: only {len(rows)} of {QUOTA[name][n]} boards exist")
        for holes in list(sources):
            counts = SMALL_CELLS.get((n, holes))
            for board, wait, labels in sources[holes]:
                if counts is None or (taken[holes, wait] + 1) * whole <= part * counts[wait]:
                    taken[holes, wait] += 1
                    rows.append((holes, _row(board, labels)))
                    break
            else:
                del sources[holes]
            if len(rows) == QUOTA[name][n]:
                break
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def rebuild(file: str) -> list[Any]:
    """The rows of a data file, built again."""
    if file in QUOTA:
        return [row for n in QUOTA[file] for row in build(file, n, InProcessLabeller())]
    name = next(name for name, many in MANY.items() if many == file)
    return list(cells.build(name, InProcessLabeller(cells.NODE_BUDGET)))


def _text(rows: Iterable[Any]) -> str:
    return "".join(canonical_json(row) + "\n" for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """Rebuild the sets; ``--check`` compares, ``--write`` stores. Exit status 1 if they differ."""
    parser = argparse.ArgumentParser(prog="python -m environments.mapf_frozenlake.frozen", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare with the stored files")
    action.add_argument("--write", action="store_true", help="overwrite the stored files")
    parser.add_argument("files", nargs="*", help=f"which of {', '.join(FILES)}; all if none is named")
    chosen = parser.parse_args(arguments)
    if unknown := [file for file in chosen.files if file not in FILES]:
        parser.error(f"unknown files {', '.join(unknown)}: known are {', '.join(FILES)}")
    folder = Path(__file__).parent / "data"
    checksums = _checksums()
    texts = {}
    for file in chosen.files or FILES:
        rows = rebuild(file)
        texts[f"{file}.jsonl"] = _text(rows)
        checksums[file] = digest([_payload(row) for row in rows])
    texts["checksums.jsonl"] = _text([file, checksums[file]] for file in FILES if file in checksums)
    stale = []
    for name, text in texts.items():
        path = folder / name
        if chosen.write:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
    print(
        f"differ from a rebuild: {', '.join(stale)}" if stale else f"{'written' if chosen.write else 'equal'}: {folder}"
    )
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
