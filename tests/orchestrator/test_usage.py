"""Busy and idle shares of both sides come from a clock that the test moves."""

from __future__ import annotations

import pytest

from actors.rollout import WorkerReport
from orchestrator.usage import Usage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stepped(*, waited: float, learned: float, busy: tuple[float, ...], wall: float) -> tuple[Usage, dict[str, float]]:
    """A usage after one step in which each engine was ``busy`` seconds and generated 100 tokens in 2 s."""
    clock = Clock()
    usage = Usage(rollout_units=2.0, learner_units=1.0, clock=clock)
    for name, seconds in (("rollout_wait", waited), ("learn", learned), ("sync", 1.0)):
        with usage.phase(name):
            clock.now += seconds
    usage.generated([[WorkerReport(1.5, 0.5, 100, seconds) for seconds in busy], []])
    usage.trained(300)
    return usage, usage.step(wall)


def test_a_step_reports_its_phases_rates_and_idle_ratios():
    """Two engines busy 4 s and 2 s of a step of 10 s idle 70 %; learner at work 3 + 1 s idles 60 %."""
    _, values = stepped(waited=5.0, learned=3.0, busy=(4.0, 2.0), wall=10.0)
    assert values == pytest.approx(
        {
            "time/rollout_wait": 5.0,
            "time/learn": 3.0,
            "time/sync": 1.0,
            "time/step": 10.0,
            "rollout/tokens_per_second": 100.0,
            "learner/tokens_per_second": 100.0,
            "rollout/idle_ratio": 0.7,
            "learner/idle_ratio": 0.6,
        }
    )


def test_a_step_starts_from_nothing():
    usage, _ = stepped(waited=5.0, learned=3.0, busy=(4.0, 2.0), wall=10.0)
    values = usage.step(1.0)
    assert values["rollout/idle_ratio"] == values["learner/idle_ratio"] == 1.0
    assert values["rollout/tokens_per_second"] == values["learner/tokens_per_second"] == 0.0


def test_work_that_ran_ahead_never_makes_idle_negative():
    _, values = stepped(waited=0.0, learned=9.5, busy=(25.0,), wall=10.0)
    assert values["rollout/idle_ratio"] == 0.0


def test_the_suggested_split_gives_each_side_its_share_of_the_work():
    """3 s of engines on 2 cores in all are 6 core-seconds, 4 s of learner on one core 4: rollouts get 60 %."""
    usage, _ = stepped(waited=5.0, learned=3.0, busy=(4.0, 2.0), wall=10.0)
    split = usage.split()
    assert split is not None
    assert (split.rollout, split.learner, split.suggested) == pytest.approx((0.3, 0.4, 0.6))
    assert "at 60 % of the compute for rollouts" in str(split)


def test_there_is_no_split_before_the_first_step():
    assert Usage(rollout_units=1.0, learner_units=1.0).split() is None
