"""Rates by cell, and what an evaluation cost. Pure.

pass@k is the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code" (2021): with c of n
samples right, 1 - C(n - c, k) / C(n, k). avg@k is the mean over all samples, so avg@1 is the plain rate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import fmean, quantiles
from typing import Any

from environments.base import SCHEMA_VERSION
from environments.mapf_frozenlake.settings import stratum_name
from orchestrator.eval.records import Answer, Cell
from orchestrator.evidence import EnvInfo
from orchestrator.records import Evidence, StratumResult


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of valid and of optimal answers, 0 to 1."""

    valid: float
    optimal: float


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell: ``instances`` that were judged, ``rates`` averaged over all samples (avg@k), ``passed`` by k."""

    agents: int
    size: int
    instances: int
    rates: Rates
    passed: Mapping[int, Rates]


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens; None if not known."""

    prompt: float | None = None
    completion: float | None = None


def pass_at(n: int, right: int, k: int) -> float:
    """Chance that at least one of k samples, drawn from n of which ``right`` are right, is right."""
    if not 1 <= k <= n or not 0 <= right <= n:
        raise ValueError(f"pass@{k} of {right} right samples among {n}")
    return 1.0 - comb(n - right, k) / comb(n, k)


def cell_results(answers: Iterable[Answer], solved: Collection[str], best: str) -> list[CellResult]:
    """Rates of every cell that has a judged answer, in ascending order. Failures are left out, not counted as wrong."""
    cells: defaultdict[Cell, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        if answer.outcome is not None:
            cells[answer.cell][answer.task_id].append(answer.outcome)
    return [_cell_result(cell, list(cells[cell].values()), solved, best) for cell in sorted(cells)]


def _cell_result(cell: Cell, tasks: Sequence[list[str]], solved: Collection[str], best: str) -> CellResult:
    counts = [(len(t), sum(o in solved for o in t), sum(o == best for o in t)) for t in tasks]

    def rates(k: int) -> Rates:
        """pass@k over the tasks with enough samples; k = 1 is the average."""
        enough = [c for c in counts if c[0] >= k]
        return Rates(fmean(pass_at(n, v, k) for n, v, _ in enough), fmean(pass_at(n, o, k) for n, _, o in enough))

    most = max(n for n, _, _ in counts)
    ks = sorted({most, *(2**i for i in range(1, most.bit_length()) if 2**i <= most)}) if most > 1 else []
    return CellResult(*cell, len(tasks), rates(1), {k: rates(k) for k in ks})


def means(cells: Iterable[CellResult], k: int = 1) -> dict[int, Rates]:
    """By agent count, the unweighted mean of its cells ("Sum" in the paper), of the averages or of pass@k."""
    by_agents: defaultdict[int, list[Rates]] = defaultdict(list)
    for cell in cells:
        if found := cell.rates if k == 1 else cell.passed.get(k):
            by_agents[cell.agents].append(found)
    return {a: Rates(fmean(r.valid for r in rows), fmean(r.optimal for r in rows)) for a, rows in by_agents.items()}


def usage(answers: Sequence[Answer], prices: Prices) -> dict[str, Any]:
    """Tokens, latency and cost of what was answered; None where no solver counted it or no price is known."""
    judged = [answer for answer in answers if answer.outcome is not None]
    prompt = [a.prompt_tokens for a in judged if a.prompt_tokens is not None]
    completion = [a.completion_tokens for a in judged if a.completion_tokens is not None]
    latency = [a.latency_s for a in judged if a.latency_s is not None]
    cost = None
    if prices.prompt is not None and prices.completion is not None and prompt and completion:
        cost = (sum(prompt) * prices.prompt + sum(completion) * prices.completion) / 1e6
    return {
        "answers": len(judged),
        "truncated": sum(a.finish_reason == "length" for a in judged),
        "prompt_tokens": sum(prompt) if prompt else None,
        "completion_tokens": sum(completion) if completion else None,
        "completion_tokens_per_answer": _spread(completion),
        "latency_s": _spread(latency),
        "cost": cost,
    }


def failures(answers: Iterable[Answer]) -> dict[str, int]:
    """How many questions failed, by kind."""
    return dict(Counter(answer.failure["kind"] for answer in answers if answer.failure))


def evidence(answers: Sequence[Answer], info: EnvInfo) -> list[dict[str, Any]]:
    """Outcome counts by stratum for each agent count, as evidence that an engineer of a new run could be told.

    Every outcome is counted, 0 included. There is no configuration behind a fixed set, so ``knobs`` is empty.
    """
    counts: defaultdict[Cell, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        if answer.outcome is not None:
            counts[answer.cell][answer.outcome] += 1
    records = []
    for agents in sorted({agents for agents, _ in counts}):
        sizes = [size for a, size in sorted(counts) if a == agents]
        results = tuple(
            StratumResult(stratum_name(size), {word: counts[agents, size][word] for word in info.words})
            for size in sizes
        )
        told = Evidence(stage=0, stages=2, strata=tuple(r.stratum for r in results), results=results, knobs={})
        records.append({"agents": agents, "evidence": told.to_dict()})
    return records


def summary(
    settings: Mapping[str, Any], answers: Sequence[Answer], cells: Sequence[CellResult], prices: Prices
) -> dict[str, Any]:
    """Everything about one evaluation as one JSON record; rates are shares, 0 to 1."""
    ks = sorted({k for cell in cells for k in cell.passed})
    return {
        "schema_version": SCHEMA_VERSION,
        "settings": dict(settings),
        "cells": [_plain(asdict(cell)) for cell in cells],
        "means": {str(agents): asdict(rates) for agents, rates in means(cells).items()},
        "means_passed": {str(k): {str(a): asdict(r) for a, r in means(cells, k).items()} for k in ks},
        "usage": usage(answers, prices),
        "failures": failures(answers),
    }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "passed": {str(k): rates for k, rates in record["passed"].items()}}


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, median and 95th percentile."""
    if not values:
        return None
    cuts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [float(values[0])] * 19
    return {"mean": round(fmean(values), 6), "median": round(cuts[9], 6), "p95": round(cuts[18], 6)}
