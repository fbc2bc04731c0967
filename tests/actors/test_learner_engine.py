"""The learner beside a real vLLM engine: how far their log-probs are apart, and whether an export serves."""

from dataclasses import replace

import pytest

from actors.batching import judged_rows
from actors.config import AlgorithmConfig
from actors.records import Batch, Delivery, Request, Sampling
from tests.actors.learner_reference import ALGORITHM, OPTIMIZER, TEMPERATURE, train

FLOAT32_MISMATCH = 1e-5
"""Mean |log-prob difference| (nats) of engine and learner in float32; their KL is about half its square."""


def sampled_rows(pool, tasks):
    requests = [Request(task, tuple(range(10 * i, 10 * i + 4))) for i, task in enumerate(tasks)]
    groups, _ = pool.rollout(requests, Sampling(TEMPERATURE, 24))
    rows = judged_rows(groups)
    assert len(rows) == 4 * len(tasks)
    return [replace(row, advantage=1.0 if i % 2 else -1.0) for i, row in enumerate(rows)]


def test_a_learning_rate_of_zero_shows_a_mismatch_of_float_size_and_learns_nothing(
    learner, engines, model_directory, tasks
):
    """Old log-probs are the learner's own: the mismatch is then between learner and engine, updates apart."""
    algorithm = AlgorithmConfig(aggregation="token", old_logprobs="learner", updates_per_batch=2)
    group = learner(1)(model_directory(tied=True), algorithm, **{**OPTIMIZER, "lr": 0.0})
    pool = engines(tied=True)
    pool.deliver(Delivery(group.version, group.publish()), 60.0)
    pool.settle()
    rows = sampled_rows(pool, tasks)
    for metrics in train(group, Batch(tuple(rows)), 2):
        assert 0.0 < metrics["policy/mismatch"] < FLOAT32_MISMATCH
        assert abs(metrics["policy/kl_rollout"]) < 1e-7  # below what float32 resolves of exp(d) - 1 - d
        assert metrics["policy/clip_share"] == 0.0


@pytest.mark.slow
def test_an_exported_model_serves_in_vllm_with_the_learners_log_probs(
    learner, ray_session, model_directory, rollout_config, environment_name, place, batch, tasks, tmp_path
):
    from actors.rollout_pool import RolloutPool

    group = learner(2)(model_directory(tied=True), ALGORITHM, **OPTIMIZER, zero_stage=3)
    train(group, batch, 3)
    group.export(str(tmp_path))
    pool = RolloutPool(str(tmp_path), rollout_config, environment_name, place)
    pool.wait_ready()
    rows = sampled_rows(pool, tasks[:2])
    for row, found in zip(rows, group.score(rows), strict=True):
        assert found == pytest.approx(row.logprobs, abs=2e-4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_alone_bring_an_engine_to_the_learners_weights(learner, engines, model_directory, batch, tasks, ranks):
    """The engine adds them to its base weights; log-probs of probe tokens show that they arrived, twice in a row."""
    pytest.importorskip("peft")
    settings = {**OPTIMIZER, "lr": 1e-2, "lora": {"rank": 4, "alpha": 8}, "zero_stage": 3 * (ranks - 1)}
    group = learner(ranks)(model_directory(tied=True), ALGORITHM, **settings)
    pool = engines(tied=True)
    probes = tuple(pool.probe(tasks[:4], 8))
    start = group.score(probes, 1.0)
    for _ in range(2):
        train(group, batch, 2)
        expected = tuple(map(tuple, group.score(probes, 1.0)))
        assert max(abs(x - y) for now, then in zip(expected, start, strict=True) for x, y in zip(now, then)) > 1e-2
        pool.deliver(Delivery(group.version, group.publish(), probes, expected, 1e-4), 60.0)
        (arrival,) = pool.settle()
        assert arrival.version == group.version and arrival.mean < 1e-4 and arrival.tokens > 8
