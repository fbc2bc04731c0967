"""Every algorithm, on a real engine and a real learner: it runs, and it moves the policy to what is rewarded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.algorithms.kl import sequence_kl
from actors.algorithms.registry import ALGORITHMS
from actors.batching import judged_rows, make_batch
from actors.config import AlgorithmConfig
from actors.records import Delivery, Group, Request, Sampling, Scored
from environments.base import Verdict
from tests.actors.conftest import TEMPERATURE

STEPS, TOKENS = 6, 12
CASES = {
    **{name: {"name": name} for name in ALGORITHMS},
    "several updates with masked weights": {
        "updates_per_batch": 2,
        "correction": {"level": "geometric", "mode": "mask", "low": 0.5, "high": 2.0},
    },
    "KL in the loss": {"kl": {"coefficient": 0.01, "place": "loss"}},
    "KL in the reward": {"kl": {"coefficient": 0.01, "place": "reward", "estimator": "k1"}},
    "the SNR filter": {"filters": {"snr": 0.9}},
}


def liked(scored: Scored) -> Scored:
    """The share of even token ids is the reward: any policy can learn to write more of them."""
    assert scored.sample is not None
    ids = scored.sample.token_ids
    return Scored(scored.sample, Verdict(sum(i % 2 == 0 for i in ids) / max(1, len(ids)), "valid"))


def mean_reward(groups: list[Group]) -> float:
    rewards = [reward for group in groups for reward in group.rewards]
    return sum(rewards) / len(rewards)


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_moves_a_real_policy_to_what_is_rewarded(case, learner, engines, model_directory, tasks):
    algorithm = AlgorithmConfig(**CASES[case])
    objective = algorithm.resolved(lag=1)
    group = learner(1)(model_directory(tied=True), algorithm, lr=1e-2, run={"lag": 1, "max_new_tokens": TOKENS})
    pool = engines(tied=True)
    means, metrics = [], {}
    for step in range(STEPS):
        pool.deliver(Delivery(group.version, group.publish()), 120.0)
        requests = [Request(t, tuple(1000 * step + 100 * i + j for j in range(8))) for i, t in enumerate(tasks)]
        sampled, _ = pool.rollout(requests, Sampling(TEMPERATURE, TOKENS))
        groups = [replace(g, members=tuple(liked(m) for m in g.members)) for g in sampled]
        means.append(mean_reward(groups))
        rows = judged_rows(groups)
        penalties = (
            sequence_kl(rows, group.reference(rows), objective.kl.estimator) if objective.kl.in_reward() else None
        )
        batch = make_batch(groups, algorithm, max_new_tokens=TOKENS, reference_kl=penalties)
        metrics = group.update(batch).metrics
    assert group.version == STEPS
    assert metrics["policy/entropy"] > 0
    assert metrics["policy/grad_norm"] > 0
    assert sum(means[-2:]) / 2 > means[0] + 0.03, means
