"""Intervals mean what they say."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.statistics import POOLED, before_after, paired_bootstrap, stratum_rates, wilson_interval


def test_wilson_interval_matches_published_values() -> None:
    # Brown, Cai and DasGupta (2001) and R's prop.test(correct=FALSE) give these bounds.
    ten = wilson_interval(5, 10)
    assert (ten.mean, ten.low, ten.high) == pytest.approx((0.5, 0.23659309, 0.76340691), abs=1e-7)
    none = wilson_interval(0, 20)
    assert (none.low, none.high) == pytest.approx((0.0, 0.16112516), abs=1e-7)


def test_wilson_interval_without_observations_excludes_nothing() -> None:
    empty = wilson_interval(0, 0)
    assert (empty.low, empty.high, empty.n) == (0.0, 1.0, 0)


def test_paired_bootstrap_is_close_to_the_exact_interval_and_repeats() -> None:
    # 40 of 100 pairs improve, 10 get worse: mean 0.30, standard error sqrt(0.50 - 0.09) / 10 = 0.0640.
    before = np.array([0] * 40 + [1] * 10 + [0] * 50)
    after = np.array([1] * 40 + [0] * 10 + [0] * 50)
    first = paired_bootstrap(before, after, seed=1)
    assert first == paired_bootstrap(before, after, seed=1)
    assert first.mean == pytest.approx(0.3)
    assert (first.low, first.high) == pytest.approx((0.3 - 1.96 * 0.064, 0.3 + 1.96 * 0.064), abs=0.011)


def test_paired_bootstrap_of_continuous_values_agrees_with_drawing_indices() -> None:
    rng = np.random.default_rng(3)
    before, after = rng.normal(size=80), rng.normal(0.4, 1.0, size=80)
    ours = paired_bootstrap(before, after, seed=0)
    drawn = (after - before)[rng.integers(0, 80, size=(10_000, 80))].mean(axis=1)
    assert (ours.low, ours.high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.02)


def test_paired_95_percent_interval_covers_the_truth_95_percent_of_the_time() -> None:
    rng, covered, runs = np.random.default_rng(0), 0, 600
    for run in range(runs):
        pairs = rng.choice(4, size=150, p=[0.5, 0.05, 0.25, 0.2])  # both fail, lost, won, both solved
        interval = paired_bootstrap((pairs % 2).astype(float), (pairs >= 2).astype(float), seed=run, resamples=2_000)
        covered += interval.low <= 0.20 <= interval.high
    assert 0.92 <= covered / runs <= 0.98


def test_strata_that_differ_make_the_stratified_interval_narrower() -> None:
    before, after = np.zeros(100), np.array([1.0] * 50 + [0.0] * 50)
    labels = ["easy"] * 50 + ["hard"] * 50
    free, kept = paired_bootstrap(before, after, seed=0), paired_bootstrap(before, after, seed=0, strata=labels)
    assert (kept.low, kept.high) == (0.5, 0.5)
    assert free.low < 0.45 and free.high > 0.55


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 2.0]), ([[1.0]], [[1.0]])])
def test_values_that_are_not_pairs_are_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="two equal non-empty rows"):
        paired_bootstrap(before, after, seed=0)


def test_before_after_pairs_by_task_and_leaves_failures_out() -> None:
    before = [_task("a", "3x3", "hole"), _task("b", "3x3", "valid"), _task("c", "4x4", None), _task("d", "4x4", "hole")]
    after = [
        _task("d", "4x4", "optimal"),
        _task("b", "3x3", "hole"),
        _task("a", "3x3", "valid"),
        _task("c", "4x4", "hole"),
    ]
    rows = before_after(before, after, solved={"valid", "optimal"}, best="optimal")
    assert [(r["stratum"], r["n"]) for r in rows] == [("3x3", 2), ("4x4", 1), (POOLED, 3)]
    assert (rows[0]["valid_before"], rows[0]["valid_after"], rows[0]["difference"]) == (0.5, 0.5, 0.0)
    assert (rows[1]["optimal_before"], rows[1]["optimal_after"]) == (0.0, 1.0)
    assert rows[-1]["difference"] == pytest.approx(1 / 3)


def test_no_common_task_gives_no_rows() -> None:
    assert before_after([_task("a", "3x3", "hole")], [], solved={"valid"}, best="valid") == []


def test_stratum_rates_count_judged_tasks_only() -> None:
    rates = stratum_rates([_task("a", "3x3", "valid"), _task("b", "3x3", None), _task("c", "4x4", "hole")], {"valid"})
    assert {s: (r.mean, r.n) for s, r in rates.items()} == {"3x3": (1.0, 1), "4x4": (0.0, 1), POOLED: (0.5, 2)}


def _task(task_id: str, stratum: str, outcome: str | None) -> dict[str, str | None]:
    return {"task_id": task_id, "stratum": stratum, "outcome": outcome}
