import math

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
    assert all(
        torch.equal(out, tensor) for (_, out), (_, tensor) in zip(unpack(received), some_tensors(), strict=True)
    )


# -------------------------------------------------------------------------------------------------------------- compare


def sample(logprobs, version=3):
    count = len(logprobs)
    return Sample("t", (1, 2), tuple(range(count)), tuple(logprobs), (version,) * count, "", "length", 0, 0, "rollout-0")


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


# ----------------------------------------------------------------------------------------------- real engine and learner


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
    """An engine and a learner one update ahead of it, and what synchronises the two."""
    group = learner(1)(model_directory(tied=request.param), AlgorithmConfig(), lr=0.02)
    pool = engines(tied=request.param)

    def update():
        start = group.score(some_rows)
        rows = (row.__class__(row.prompt_ids, row.token_ids, row.advantage, tuple(s)) for row, s in zip(some_rows, start))
        group.update(Batch(tuple(rows)))

    def sync(source=group):
        return synchronise(source, pool, tasks[:4], SyncConfig(check_tokens=32, tolerance=TOLERANCE))

    sync()
    update()
    return group, pool, update, sync


def test_after_every_update_the_engine_samples_with_the_learners_weights(pair):
    group, pool, update, sync = pair
    for _ in range(2):
        found = sync()
        assert 4 <= found.tokens <= 32
        assert found.mean <= found.worst < TOLERANCE
        (samples,) = pool.probe([], 1).values() if False else ([],)
        update()
    assert group.version == 3


@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"],
)
def test_one_corrupted_tensor_is_noticed(pair, name):
    group, pool, _, sync = pair
    published = group.publish()
    names = tensor_names(published)
    if name not in names:
        assert name == "lm_head.weight"  # tied: the head has no tensor of its own
        pytest.skip("tied embeddings have no head of their own")
    with pytest.raises(SyncError, match="not using the weights it was sent"):
        sync(Sabotaged(group, altered(published, name, lambda words: words * 0.9)))
    sync()


def tensor_names(refs):
    import ray

    return {packed.name for ref in refs for packed in ray.get(ref)}


def test_an_engine_that_keeps_its_old_weights_is_noticed(pair):
    """The version is bumped and the load is dropped, as a backend that ignores the call would do."""
    import ray

    group, pool, _, sync = pair
    engine = pool._actors[0].__ray_call__

    def forget_weights(self):
        llm = self._engine._llm
        llm.collective_rpc, self.kept = (lambda *_, **__: None), llm.collective_rpc

    def restore(self):
        self._engine._llm.collective_rpc = self.kept

    ray.get(engine.remote(forget_weights))
    try:
        with pytest.raises(SyncError, match="not using the weights it was sent"):
            sync()
    finally:
        ray.get(engine.remote(restore))
    sync()


def test_a_head_that_is_not_sent_beside_its_tied_embedding_is_noticed(pair):
    """On CPU the engine would go on with the packed copy that it made of the head when it loaded the model."""
    import ray

    group, pool, _, sync = pair
    engine = pool._actors[0].__ray_call__
    tied = ray.get(engine.remote(lambda self: self._engine._tied))
    if not tied:
        pytest.skip("an untied head is sent as it is")
    ray.get(engine.remote(lambda self: setattr(self._engine, "_tied", False)))
    try:
        with pytest.raises(SyncError, match="not using the weights it was sent"):
            sync()
    finally:
        ray.get(engine.remote(lambda self: setattr(self._engine, "_tied", True)))
    sync()


def test_an_engine_that_does_not_take_the_version_is_noticed(pair):
    import ray

    group, pool, _, sync = pair
    engine = pool._actors[0].__ray_call__

    def keep_version(self):
        load = self._engine.load
        self._engine.load = lambda version, weights: load(version - 1, weights)

    ray.get(engine.remote(keep_version))
    try:
        with pytest.raises(SyncError, match=r"version \[0\] after version 1"):
            sync()
    finally:
        ray.get(engine.remote(lambda self: self._engine.__dict__.pop("load") and None))
    sync()
