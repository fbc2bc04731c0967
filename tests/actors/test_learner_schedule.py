import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.config import LearnerConfig
from actors.schedule import rate_factor

SCHEDULES = st.sampled_from(["constant", "linear", "cosine"])


def test_golden_factors():
    """Warm-up of 4 updates: 1/4, 2/4, 3/4, 1. Ten updates in all, in update 5 half of them have passed.

    Linear 1 - 5/10; cosine (1 + cos(π/2)) / 2 = 1/2, after a quarter (update 2 of 8) (1 + cos(π/4)) / 2. In update 1
    of 10 with warm-up 4, linear is 2/4 · 9/10.
    """
    assert [rate_factor(i, "constant", warmup=4, total=None) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rate_factor(5, "linear", warmup=0, total=10) == 0.5
    assert rate_factor(5, "cosine", warmup=0, total=10) == pytest.approx(0.5)
    assert rate_factor(2, "cosine", warmup=0, total=8) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert rate_factor(1, "linear", warmup=4, total=10) == pytest.approx(0.5 * 0.9)


@given(SCHEDULES, st.integers(0, 20), st.integers(1, 200))
def test_factors_lie_between_zero_and_one_and_fall_after_warm_up(schedule, warmup, total):
    factors = [rate_factor(i, schedule, warmup=warmup, total=total) for i in range(total + 5)]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    after = factors[warmup:]
    assert after == sorted(after, reverse=True)
    if schedule != "constant":
        assert factors[total:] == [0.0] * 5


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_falling_rate_needs_the_length_of_the_run(schedule):
    with pytest.raises(ValueError, match=f"learner.schedule = {schedule} needs total_updates"):
        rate_factor(0, schedule, warmup=0, total=None)


def test_a_learning_rate_may_be_zero_but_not_below():
    assert LearnerConfig(lr=0).lr == 0
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        LearnerConfig(lr=-1)
