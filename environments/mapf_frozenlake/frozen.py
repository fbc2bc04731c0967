"""The fixed sets: ``validation`` steers training, ``held_out`` is for claims. Two agents, every size.

Which boards a set may hold is decided by the digest of their canonical form (``board.RESERVED``), and training never
emits a reserved board, so the sets and training are disjoint up to symmetry and agent names by construction.

    python -m environments.mapf_frozenlake.frozen --check    # rebuild and compare with what is stored
    python -m environments.mapf_frozenlake.frozen --write    # rebuild and store
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from environments.base import FrozenSet, Labeller, Task, canonical_json, digest, stream
from environments.mapf_frozenlake.board import Board, CanonicalForm, canonical_form, reserved_for
from environments.mapf_frozenlake.candidates import draw
from environments.mapf_frozenlake.labeller import InProcessLabeller
from environments.mapf_frozenlake.settings import STRATUM_SIZES, MapfRow, hole_count, stratum_name
from environments.mapf_frozenlake.yields import judged, label_candidates

AGENTS = 2
QUOTA: Mapping[str, Mapping[int, int]] = {
    "validation": dict.fromkeys(STRATUM_SIZES.values(), 150),
    "held_out": {n: 334 if n <= 5 else 150 for n in STRATUM_SIZES.values()},
}
"""Boards per set and size."""

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
def load(name: str) -> tuple[str, ...]:
    """The task payloads of a whole set, checked against its committed checksum."""
    payloads = tuple(_payload(json.loads(line)) for line in _data(f"{name}.jsonl").read_text("utf-8").splitlines())
    found, expected = (digest(list(payloads)), _checksums()[name])
    if found != expected:
        raise FrozenSetCorrupt(
            f"data/{name}.jsonl has checksum {found}, committed is {expected}: restore the file, or rebuild it with "
            "`python -m environments.mapf_frozenlake.frozen --check`"
        )
    return payloads


def frozen_set(name: str, environment: str, sizes: tuple[int, ...], agents: int) -> FrozenSet:
    """The part of a set that belongs to a run; its checksum covers boards and labels."""
    if agents != AGENTS:
        raise FrozenSetUnavailable(
            f"the {name} set exists for {AGENTS} agents, not yet for {agents}: set `agents: {AGENTS}`, or turn "
            "validation off for this run"
        )
    chosen = [(n, payload) for payload in load(name) if (n := json.loads(payload)["n"]) in sizes]
    tasks = tuple(
        Task(environment, payload, stratum_name(n), split=name, index=index)
        for index, (n, payload) in enumerate(chosen)
    )
    return FrozenSet(name, tasks, digest([payload for _, payload in chosen]))


# ------------------------------------------------------------------------------------------------------------- building


def _row(board: Board, labels: list[int]) -> list[Any]:
    """The stored form: [n, holes as hex of a bit mask, starts, goals, [makespan, sum of costs, wait_T, wait_SOC]]."""
    return [board.n, f"{sum(1 << c for c in board.holes):x}", list(board.starts), list(board.goals), labels]


def _payload(row: list[Any]) -> str:
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


def rebuild(labeller: Labeller) -> dict[str, str]:
    """The text of every data file."""
    files, checksums = {}, {}
    for name, quota in QUOTA.items():
        rows = [row for n in quota for row in build(name, n, labeller)]
        files[f"{name}.jsonl"] = "".join(canonical_json(row) + "\n" for row in rows)
        checksums[name] = digest([_payload(row) for row in rows])
    files["checksums.jsonl"] = "".join(canonical_json([name, checksum]) + "\n" for name, checksum in checksums.items())
    return files


def main(arguments: list[str] | None = None) -> int:
    """Rebuild the sets; ``--check`` compares, ``--write`` stores. Exit status 1 if they differ."""
    parser = argparse.ArgumentParser(prog="python -m environments.mapf_frozenlake.frozen", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare with the stored files")
    action.add_argument("--write", action="store_true", help="overwrite the stored files")
    chosen = parser.parse_args(arguments)
    folder = Path(__file__).parent / "data"
    stale = []
    for file, text in rebuild(InProcessLabeller()).items():
        if chosen.write:
            folder.mkdir(exist_ok=True)
            (folder / file).write_text(text, "utf-8")
        elif not (folder / file).exists() or (folder / file).read_text("utf-8") != text:
            stale.append(file)
    print(
        f"differ from a rebuild: {', '.join(stale)}" if stale else f"{'written' if chosen.write else 'equal'}: {folder}"
    )
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
