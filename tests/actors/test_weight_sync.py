import math
from dataclasses import replace

import numpy as np
import pytest

from actors.config import AlgorithmConfig, SyncConfig
from actors.records import Batch, Sample
from actors.weight_sync import Packed, SyncError, compare, pack, synchronise, unpack

TOLERANCE = 1e-4
"""Both sides compute in float32: log-probs agree to about 1e-6 nats."""


# ----------------------------------------------------------------------------------------------------------------- pack


def some_tensors():
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 4), "b": (5,), "c": (2, 3, 2), "d": (), "e": (40, 2)}
    out = [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]
    out += [(f"{name}.bf16", tensor.to(torch.bfloat16)) for name, tensor in out]
    special = torch.tensor([math.inf, -math.inf, -0.0, 1e-40, 3e38])
    return [*out, ("special", special), ("special.bf16", special.to(torch.bfloat16)), ("turned", out[0][1].T)]


@pytest.mark.parametrize("bucket_bytes", [1, 64, 200, 1 << 20])
def test_what_is_packed_comes_out_again_bit_for_bit(bucket_bytes):
    import torch

    pairs = some_tensors()
    found = [pair for bucket in pack(pairs, bucket_bytes) for pair in unpack(bucket)]
    assert [name for name, _ in found] == [name for name, _ in pairs]
    for (name, out), (_, tensor) in zip(found, pairs, strict=True):
        assert out.dtype == tensor.dtype and out.shape == tensor.shape, name
        assert torch.equal(out, tensor) and torch.equal(out.signbit(), tensor.signbit()), name


def test_a_bfloat16_nan_survives():
    import torch

    bucket = next(pack([("x", torch.tensor([math.nan, 1.0], dtype=torch.bfloat16))]))
    assert next(unpack(bucket))[1].isnan().tolist() == [True, False]


def test_buckets_stay_below_the_limit_or_hold_one_tensor():
    buckets = list(pack(some_tensors(), 200))
    assert len(buckets) > 2
    assert all(len(bucket) == 1 or sum(packed.words.nbytes for packed in bucket) <= 200 for bucket in buckets)
    assert any(len(bucket) > 1 for bucket in buckets)
    assert list(pack([])) == []


def test_buckets_travel_through_the_object_store_without_a_copy(ray_session):
    """What comes back is read-only shared memory, also as torch tensors."""
    import ray
    import torch

    (bucket,) = pack(some_tensors())
    received = ray.get(ray.put(bucket))
    assert not [packed.name for packed in received if packed.words.flags.writeable]
    for packed, (name, tensor) in zip(received, unpack(received), strict=True):
        assert packed.name == name
        assert tensor.data_ptr() == packed.words.ctypes.data
    assert all(torch.equal(out, tensor) for (_, out), (_, tensor) in zip(unpack(received), some_tensors(), strict=True))


# -------------------------------------------------------------------------------------------------------------- compare


def sample(logprobs, version=3):
    count = len(logprobs)
    return Sample(
        "t", (1, 2), tuple(range(count)), tuple(logprobs), (version,) * count, "", "length", 0, 0, "rollout-0"
    )


def check(samples, recomputed):
    return compare("rollout-1", samples, recomputed, version=3, tolerance=0.01)


def test_equal_log_probs_pass_and_the_differences_are_reported():
    """Differences 0.001, 0.003 and 0: worst 0.003, mean 0.004 / 3."""
    found = check([sample([-1.0, -2.0]), sample([-0.5])], [[-1.001, -1.997], [-0.5]])
    assert found.worst == pytest.approx(0.003)
    assert found.mean == pytest.approx(0.004 / 3)
    assert found.tokens == 3


def test_tokens_of_another_version_are_refused():
    with pytest.raises(SyncError, match=r"rollout-1 .*\[2\].* version 3"):
        check([sample([-1.0]), sample([-1.0], version=2)], [[-1.0], [-1.0]])


@pytest.mark.parametrize("side", ["engine", "learner"])
def test_a_log_prob_that_is_no_number_is_refused(side):
    values = [[-1.0, math.nan], [-1.0, -1.0]]
    sampled, recomputed = values if side == "engine" else reversed(values)
    with pytest.raises(SyncError, match="nan nats"):
        check([sample(sampled)], [recomputed])


def test_a_mean_difference_above_the_tolerance_is_refused_with_its_numbers():
    with pytest.raises(SyncError, match=r"rollout-1 .*0\.02 nats .*2 sampled tokens \(sync\.tolerance = 0\.01\)"):
        check([sample([-1.0, -2.0])], [[-1.04, -2.0]])


def test_one_far_token_passes_where_the_mean_is_within_the_tolerance():
    """Reduced precision moves single tokens further than the mean."""
    assert check([sample([-1.0] * 10)], [[-1.05] + [-1.0] * 9]).worst == pytest.approx(0.05)


def test_every_engine_is_checked_and_the_wrong_one_is_named():
    """Two engines as plain objects; the second samples log-probs that the learner does not have."""

    class Rollouts:
        def load(self, version, buckets, deadline_s):
            self.loaded = (version, buckets, deadline_s)

        def probe(self, tasks, new_tokens):
            assert new_tokens == 2  # five tokens over two tasks
            return {f"rollout-{i}": [sample([-1.0 - i * wrong] * 2) for _ in tasks] for i in range(2)}

    class Learner:
        version = 3

        def publish(self):
            return ["bucket"]

        def score(self, rows):
            return [[-1.0] * len(row.token_ids) for row in rows]

    rollouts, config = Rollouts(), SyncConfig(check_tokens=5, tolerance=0.01, deadline_s=7.0)
    wrong = 0.005
    found = synchronise(Learner(), rollouts, ["t", "u"], config)
    assert rollouts.loaded == (3, ["bucket"], 7.0)
    assert (found.worst, found.mean, found.tokens) == (pytest.approx(0.005), pytest.approx(0.0025), 8)
    wrong = 0.5
    with pytest.raises(SyncError, match="rollout-1"):
        synchronise(Learner(), rollouts, ["t", "u"], config)


# ---------------------------------------------------------------------------------------------- real engine and learner


class Sabotaged:
    """A learner that publishes something else than its weights."""

    def __init__(self, learner, published):
        self._learner, self._published = learner, published

    def __getattr__(self, name):
        return getattr(self._learner, name)

    def publish(self):
        return self._published


def altered(refs, name, change):
    """The published buckets with one tensor changed."""
    import ray

    buckets = [ray.get(ref) for ref in refs]
    assert name in [packed.name for bucket in buckets for packed in bucket]
    return [
        ray.put([Packed(p.name, change(p.words) if p.name == name else p.words, p.dtype) for p in bucket])
        for bucket in buckets
    ]


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def pair(request, learner, engines, model_directory, tasks, some_rows):
    """A learner one update ahead of its engine, and what brings the engine to it."""
    group = learner(1)(model_directory(tied=request.param), AlgorithmConfig(), lr=0.02)
    pool = engines(tied=request.param)

    def update():
        scores = group.score(some_rows)
        rows = (replace(row, logprobs=tuple(found)) for row, found in zip(some_rows, scores, strict=True))
        group.update(Batch(tuple(rows)))

    def sync(source=group):
        return synchronise(source, pool, tasks[:4], SyncConfig(check_tokens=32, tolerance=TOLERANCE))

    sync()
    update()
    return group, pool, update, sync


tied_only = pytest.mark.parametrize("pair", [True], indirect=True, ids=["tied"])
untied_only = pytest.mark.parametrize("pair", [False], indirect=True, ids=["untied"])


def inside(pool, change):
    """Run ``change(worker)`` in the process of the engine."""
    import ray

    return ray.get(pool._actors[0].__ray_call__.remote(change), timeout=60)


def assert_refused(sync, match="not using the weights it was sent"):
    with pytest.raises(SyncError, match=match):
        sync()


def test_after_every_update_the_engine_samples_with_the_learners_weights(pair):
    group, _, update, sync = pair
    for version in (1, 2):
        found = sync()
        assert group.version == version
        assert 4 <= found.tokens <= 32
        assert found.mean <= found.worst < TOLERANCE
        update()


@pytest.mark.parametrize("name", ["embed_tokens", "layers.1.mlp.down_proj", "layers.0.self_attn.q_norm", "norm"])
def test_one_corrupted_tensor_is_noticed(pair, name):
    group, _, _, sync = pair
    wrong = altered(group.publish(), f"model.{name}.weight", lambda words: words * 0.9)
    assert_refused(lambda: sync(Sabotaged(group, wrong)))
    sync()


@untied_only
def test_a_corrupted_head_is_noticed(pair):
    group, _, _, sync = pair
    wrong = altered(group.publish(), "lm_head.weight", lambda words: words * 0.9)
    assert_refused(lambda: sync(Sabotaged(group, wrong)))
    sync()


def test_weights_that_are_no_numbers_are_noticed(pair):
    group, _, _, sync = pair
    wrong = altered(group.publish(), "model.norm.weight", lambda words: words * math.nan)
    assert_refused(lambda: sync(Sabotaged(group, wrong)), match="nan nats")
    sync()


def test_the_weights_of_the_update_before_are_noticed(pair):
    group, _, update, sync = pair
    old = group.publish()
    update()
    assert_refused(lambda: sync(Sabotaged(group, old)))
    sync()


def test_an_engine_that_keeps_its_old_weights_is_noticed(pair):
    """It takes the version and drops the load, as a backend that ignores the call would do."""
    _, pool, _, sync = pair

    def ignore_loads(worker):
        llm = worker._engine._llm
        worker.kept, llm.collective_rpc = llm.collective_rpc, lambda *_, **__: None

    inside(pool, ignore_loads)
    try:
        assert_refused(sync)
    finally:
        inside(pool, lambda worker: setattr(worker._engine._llm, "collective_rpc", worker.kept))
    sync()


@tied_only
def test_a_tied_head_that_is_not_sent_beside_its_embedding_is_noticed(pair):
    """On CPU the engine would go on with the packed copy of the head that it made when it loaded the model."""
    _, pool, _, sync = pair
    inside(pool, lambda worker: setattr(worker._engine, "_tied", False))
    try:
        assert_refused(sync)
    finally:
        inside(pool, lambda worker: setattr(worker._engine, "_tied", True))
    sync()


def test_an_engine_that_does_not_take_the_version_is_noticed(pair):
    _, pool, _, sync = pair

    def lag(worker):
        load = worker._engine.load
        worker._engine.load = lambda version, weights: load(version - 1, weights)

    inside(pool, lag)
    try:
        assert_refused(sync, match=r"version \[0\] after version 1")
    finally:
        inside(pool, lambda worker: delattr(worker._engine, "load"))
    sync()


@pytest.mark.slow
def test_in_bfloat16_the_default_tolerance_holds_and_sees_other_weights(
    ray_session, learner, model_directory, rollout_config, place, environment_name, tasks
):
    """The default precision and tolerance; one engine of its own."""
    import ray

    from actors.rollout import RolloutPool

    directory, config = model_directory(tied=True), rollout_config.model_copy(update={"dtype": "bfloat16"})
    group = learner(1)(directory, AlgorithmConfig(), dtype="bfloat16")
    pool = RolloutPool(str(directory), config, environment_name, place)
    try:
        pool.wait_ready()
        found = synchronise(group, pool, tasks[:4], SyncConfig())
        assert 0 < found.mean < SyncConfig().tolerance
        published = group.publish()
        assert {packed.dtype for ref in published for packed in ray.get(ref)} == {"bfloat16"}
        wrong = altered(published, "model.norm.weight", np.zeros_like)
        with pytest.raises(SyncError, match="not using the weights it was sent"):
            synchronise(Sabotaged(group, wrong), pool, tasks[:4], SyncConfig())
    finally:
        for actor in pool._actors:
            ray.kill(actor)
