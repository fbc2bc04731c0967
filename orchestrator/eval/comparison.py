"""Two evaluations on the same boards: paired bootstrap intervals of the difference of their rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from orchestrator.eval.records import Answer, Cell, Key
from orchestrator.statistics import Interval, paired_bootstrap

POOLED = 0
"""Stands for an agent count in the row over all boards."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Rates of the second evaluation minus those of the first, over boards that both judged; shares, not percent."""

    agents: int
    valid: Interval
    optimal: Interval


def differences(
    first: Mapping[Key, Answer],
    second: Mapping[Key, Answer],
    solved: Collection[str],
    best: str,
    seed: int = 0,
) -> list[Difference]:
    """One difference per agent count, and one over all boards, last, if there are several.

    A board counts with the mean over its samples, and only if both sides have one that was judged. Resampling keeps
    the size of each cell. Raises ValueError if no board is on both sides.
    """
    ours, theirs = (_by_task(side.values(), solved, best) for side in (first, second))
    shared = [task for task in ours if task in theirs]
    if not shared:
        raise ValueError("no board was judged in both evaluations")
    cells = {task: ours[task].cell for task in shared}
    agents = sorted({cell[0] for cell in cells.values()})
    groups = [*agents, POOLED] if len(agents) > 1 else agents
    return [
        _difference(group, {t: c for t, c in cells.items() if group in (POOLED, c[0])}, ours, theirs, seed)
        for group in groups
    ]


@dataclass(frozen=True, slots=True)
class _Task:
    cell: Cell
    valid: float
    optimal: float


def _difference(
    agents: int, cells: Mapping[str, Cell], ours: Mapping[str, _Task], theirs: Mapping[str, _Task], seed: int
) -> Difference:
    def interval(name: str) -> Interval:
        before, after = ([getattr(side[task], name) for task in cells] for side in (ours, theirs))
        return paired_bootstrap(before, after, seed=seed, strata=list(cells.values()))

    return Difference(agents, interval("valid"), interval("optimal"))


def _by_task(answers: Iterable[Answer], solved: Collection[str], best: str) -> dict[str, _Task]:
    judged: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.outcome is not None:
            judged[answer.task_id].append(answer)
    return {
        task: _Task(some[0].cell, fmean(a.outcome in solved for a in some), fmean(a.outcome == best for a in some))
        for task, some in judged.items()
    }
