"""Engines of their own, which take a minute each: reduced precision, and prompts that fill blocks of the cache."""

from dataclasses import replace

import pytest

from actors.config import AlgorithmConfig, SyncConfig
from actors.records import Batch, Delivery, Row
from actors.rollout_pool import RolloutPool
from actors.weight_sync import SyncError

pytestmark = pytest.mark.slow


@pytest.fixture
def start(ray_session, rollout_config, place, environment_name):
    """Gives an engine with other settings, and ends it."""
    import ray

    pools = []

    def of(directory, **settings):
        pools.append(RolloutPool(str(directory), rollout_config.model_copy(update=settings), environment_name, place))
        pools[-1].wait_ready()
        return pools[-1]

    yield of
    for pool in pools:
        for actor in pool._actors:
            ray.kill(actor)


def update(group, rows):
    scores = group.score(rows)
    group.update(Batch(tuple(replace(row, logprobs=tuple(x)) for row, x in zip(rows, scores, strict=True))))


def sync(group, pool, probes, tolerance, shipment=None):
    expected = tuple(map(tuple, group.score(probes, 1.0)))
    pool.deliver(Delivery(group.version, shipment or group.publish(), tuple(probes), expected, tolerance), 120.0)
    (arrival,) = pool.settle()
    return arrival


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_in_bfloat16_the_default_tolerance_holds_three_times_and_sees_other_weights(
    start, learner, model_directory, tasks, some_rows, tied
):
    directory = model_directory(tied=tied)
    pool = start(directory, dtype="bfloat16")
    group = learner(1)(directory, AlgorithmConfig(), dtype="bfloat16", lr=0.02)
    probes = pool.probe(tasks[:4], 16)
    tolerance = SyncConfig().tolerance
    old = group.publish()
    for _ in range(3):
        update(group, some_rows)
        shipment = group.publish()
        assert {entry.dtype for parcel in shipment.parcels for entry in parcel.entries} == {"bfloat16"}
        arrival = sync(group, pool, probes, tolerance, shipment)
        assert 0 < arrival.mean < tolerance / 2
    with pytest.raises(SyncError):
        sync(group, pool, probes, tolerance, old)


@pytest.mark.parametrize("kind", ["Qwen2", "Llama"])
def test_the_quick_way_is_right_for_the_other_models_that_it_claims_to_know(
    start, learner, new_model, tmp_path, tasks, some_rows, kind
):
    """Qwen2 has biases in its stacked projection; both have fewer key heads than query heads here, and no tied head."""
    import ray
    import torch
    import transformers

    from orchestrator.new_model import save

    plain, tokenizer = new_model(tied=False)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=plain.config.vocab_size, num_key_value_heads=1, max_position_embeddings=512, **sizes
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    save(model, tokenizer, tmp_path)
    pool, group = start(tmp_path), learner(1)(tmp_path, AlgorithmConfig(), lr=0.02)
    probes = pool.probe(tasks[:4], 16)
    known = ray.get(pool._actors[0].__ray_call__.remote(lambda w: len(w._engine.weights.installer.names)), timeout=60)
    assert known == len(list(model.named_parameters()))
    for _ in range(2):
        update(group, some_rows)
        assert sync(group, pool, probes, 1e-4).worst < 1e-4


def test_what_old_weights_left_in_the_prefix_cache_is_not_read_with_new_ones(
    start, learner, model_directory, some_rows
):
    """A block of the CPU backend's cache has 32 tokens: prompts of 200 fill six, which a reset must hide."""
    import ray

    directory = model_directory(tied=True)
    pool = start(directory, max_prompt_tokens=256)
    group = learner(1)(directory, AlgorithmConfig(), lr=0.02)
    prompt = tuple(5 + i % 290 for i in range(200))
    row = Row(prompt, (9,))

    def generate(worker):
        (output,) = worker._engine.generate([prompt], [0], temperature=1.0, max_new_tokens=1)
        (token,) = output.token_ids
        return token, output.logprobs[0][token].logprob

    def generated():
        return ray.get(pool._actors[0].__ray_call__.remote(generate), timeout=60)

    for _ in range(2):
        assert generated() == pytest.approx(generated()), "the second answer reads the cache"
        update(group, some_rows)
        assert sync(group, pool, [row], 1e-4).worst < 1e-4
        token, logprob = generated()
        assert group.score([Row(prompt, (token,))], 1.0)[0][0] == pytest.approx(logprob, abs=1e-4)
