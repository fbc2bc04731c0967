"""Intervals for rates and for paired differences, and the before/after table made of them. numpy only.

Sources: the percentile bootstrap is chapter 13 of Efron and Tibshirani, "An Introduction to the Bootstrap" (1993);
the score interval is Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927),
recommended for small n by Brown, Cai and DasGupta, "Interval estimation for a binomial proportion" (2001).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

POOLED = "all"
"""Name of the row that pools every stratum."""
_CHUNK = 1_000_000  # multinomial cells drawn at once: 8 MB


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate with its bounds; ``n`` observations (pairs) went in."""

    mean: float
    low: float
    high: float
    n: int


def paired_bootstrap(
    before: ArrayLike,
    after: ArrayLike,
    *,
    seed: int,
    resamples: int = 10_000,
    confidence: float = 0.95,
    strata: Sequence[Hashable] | None = None,
) -> Interval:
    """Percentile interval of mean(after) - mean(before) over pairs measured on the same tasks.

    With ``strata`` (one label per pair) resampling keeps the size of each stratum, as the frozen sets do. If every
    pair agrees the interval is a point: the data show no spread to resample. Raises ValueError for unequal or empty
    inputs.
    """
    difference = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    if np.shape(before) != np.shape(after) or difference.ndim != 1 or not difference.size:
        raise ValueError(f"paired values must be two equal non-empty rows, not {np.shape(before)}, {np.shape(after)}")
    if strata is not None and len(strata) != difference.size:
        raise ValueError(f"{len(strata)} stratum labels for {difference.size} pairs")
    rng = np.random.default_rng(seed)
    totals = np.zeros(resamples)
    for label in [None] if strata is None else dict.fromkeys(strata):
        chosen = slice(None) if strata is None else np.array([s == label for s in strata])
        totals += _resampled_totals(difference[chosen], resamples, rng)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(totals / difference.size, [tail, 100 - tail])
    return Interval(float(difference.mean()), float(low), float(high), int(difference.size))


def _resampled_totals(values: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sums of bootstrap resamples. Drawing how often each distinct value occurs is the same law, and for outcomes
    (differences of -1, 0, 1) hundreds of times cheaper than drawing indices."""
    distinct, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    rows = max(1, _CHUNK // distinct.size)
    parts = [
        rng.multinomial(values.size, shares, size=min(rows, resamples - done)) @ distinct
        for done in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Score interval of a rate. Without observations it is the whole range [0, 1], with mean 0."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return Interval(0.0, 0.0, 1.0, 0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, shrink = successes / n, 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return Interval(rate, max(0.0, centre - half), min(1.0, centre + half), n)


def stratum_rates(tasks: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, Interval]:
    """Share of the outcomes in ``names`` for each stratum (in order of appearance) and for all, with Wilson bounds.

    ``tasks`` are rows of an evaluation record; rows without an outcome (failures) are left out.
    """
    judged = [t for t in tasks if t.get("outcome")]
    out = {}
    for stratum in [*dict.fromkeys(str(t["stratum"]) for t in judged), POOLED]:
        hits = [t["outcome"] in names for t in judged if stratum in (POOLED, str(t["stratum"]))]
        out[stratum] = wilson_interval(sum(hits), len(hits))
    return out


def before_after(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    *,
    solved: Collection[str],
    best: str,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows ``{stratum, n, valid_before, valid_after, optimal_before, optimal_after, difference, low, high}``.

    ``before`` and ``after`` are tasks of two evaluation records, paired by task id; a task that either side could
    not judge is left out of both. "Valid" counts the outcomes in ``solved``, "optimal" only ``best``. ``difference``
    is of the valid rate with its 95 % paired interval. The last row pools every stratum, resampled within strata.
    """
    later = {t["task_id"]: t for t in after if t.get("outcome")}
    pairs = [(t, later[t["task_id"]]) for t in before if t.get("outcome") and t["task_id"] in later]
    strata = list(dict.fromkeys(str(first["stratum"]) for first, _ in pairs))
    rows = []
    for stratum in [*strata, POOLED] if pairs else []:
        chosen = [pair for pair in pairs if stratum in (POOLED, str(pair[0]["stratum"]))]
        valid = np.array([[side["outcome"] in solved for side in pair] for pair in chosen], dtype=np.float64)
        optimal = np.array([[side["outcome"] == best for side in pair] for pair in chosen], dtype=np.float64)
        labels = [str(first["stratum"]) for first, _ in chosen]
        interval = paired_bootstrap(valid[:, 0], valid[:, 1], seed=seed, strata=labels)
        rows.append(
            {
                "stratum": stratum,
                "n": interval.n,
                "valid_before": float(valid[:, 0].mean()),
                "valid_after": float(valid[:, 1].mean()),
                "optimal_before": float(optimal[:, 0].mean()),
                "optimal_after": float(optimal[:, 1].mean()),
                "difference": interval.mean,
                "low": interval.low,
                "high": interval.high,
            }
        )
    return rows
