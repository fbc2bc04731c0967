"""The learner against a plain PyTorch training loop: one rank, and two ranks under every ZeRO stage."""

from dataclasses import replace

import pytest

from actors.config import AlgorithmConfig, LearnerConfig
from actors.learner import LearnerRank
from actors.records import Batch, Row
from tests.actors.learner_reference import (
    ALGORITHM,
    OPTIMIZER,
    REPLAY_WEIGHT,
    TEMPERATURE,
    bare_loop,
    frozen_log_probs,
    load,
    log_probs,
    moved_alike,
    parameters,
    train,
    weights_of,
)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tied(request):
    return request.param


def assert_metrics(found, expected):
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.fixture
def one_rank(learner, model_directory):
    """A learner of one rank."""

    def build(tied=True, algorithm=ALGORITHM, **settings):
        return learner(1)(model_directory(tied=tied), algorithm, **{**OPTIMIZER, **settings})

    return build


@pytest.mark.parametrize(
    "settings",
    # Small micro-batches differ in size and go through one compiled layer, padded to 64 or 128 tokens if packed.
    [
        {"packing": "auto"},
        {"packing": "none"},
        {"compile": True, "micro_batch_tokens": 128},
        {"compile": True, "packing": "none", "micro_batch_tokens": 20},
    ],
    ids=["auto", "none", "compiled", "compiled_none"],
)
def test_three_updates_equal_a_plain_pytorch_loop(one_rank, model_directory, batch, tied, settings):
    group = one_rank(tied, replay_weight=REPLAY_WEIGHT, **settings)
    before = weights_of(group)
    metrics = train(group, batch, 3)
    model = load(model_directory(tied=tied))
    curve = bare_loop(model, batch, 3, replay_weight=REPLAY_WEIGHT)
    assert moved_alike(before, weights_of(group), parameters(model)) < 1e-4
    for found, expected in zip(metrics, curve, strict=True):
        assert_metrics(found, expected)
    assert 0 < curve[0]["policy/clip_share"] < 1
    assert curve[0]["policy/grad_norm"] > OPTIMIZER["max_grad_norm"]


def test_the_driver_works_meanwhile_and_its_failure_leaves_no_rank_at_work(one_rank, batch):
    group = one_rank()
    called = []
    assert group.update(batch, lambda: called.append(group.version)).version == 1
    assert called == [0]

    def fail():
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        group.update(batch, fail)
    assert group.update(batch).version == 3


def test_layers_whose_weights_are_spread_cannot_be_compiled():
    with pytest.raises(ValueError, match=r"learner\.compile.*zero_stage"):
        LearnerConfig(compile=True, zero_stage=3)


@pytest.mark.parametrize("packing", ["auto", "none"])
def test_small_micro_batches_give_the_update_of_one_large_one(one_rank, batch, packing):
    found = {}
    for tokens in (1, 20, 10_000):
        group = one_rank(micro_batch_tokens=tokens, replay_weight=REPLAY_WEIGHT, packing=packing)
        before = weights_of(group)
        found[tokens] = train(group, batch, 2), weights_of(group)
    metrics, weights = found[10_000]
    for tokens in (1, 20):
        assert moved_alike(before, found[tokens][1], weights) < 1e-4
        for few, many in zip(found[tokens][0], metrics, strict=True):
            assert_metrics(few, many)


@pytest.mark.parametrize("stage", [0, 3])
def test_several_updates_on_a_batch_with_a_penalty_equal_a_plain_loop(learner, model_directory, batch, stage):
    """Two batches of two updates: ratios are to the learner before each batch, the k3 penalty to its first weights."""
    settings = ALGORITHM.model_dump(exclude={"updates_per_batch", "old_logprobs", "kl"})
    algorithm = AlgorithmConfig(**settings, updates_per_batch=2, old_logprobs="learner", kl={"coefficient": 0.3})
    directory = model_directory(tied=True)
    group = learner(1 + stage // 3)(directory, algorithm, **OPTIMIZER, zero_stage=stage, micro_batch_tokens=30)
    before = weights_of(group)
    found = train(group, Batch(batch.rows), 2)
    model = load(directory)
    curve = bare_loop(model, replace(batch, replay=(Row((1,), (2,)),)), 4, per_batch=2, kl=0.3)
    assert moved_alike(before, weights_of(group), parameters(model)) < 1e-3
    for i, metrics in enumerate(found):
        pair = curve[2 * i : 2 * i + 2]
        expected = {name: (pair[0][name] + pair[1][name]) / 2 for name in pair[0] if name != "loss/replay"}
        # Mismatch is that of the learner before the batch.
        expected["policy/mismatch"] = pair[0]["policy/mismatch"]
        assert_metrics(metrics, expected)
    assert found[1]["policy/kl_reference"] > 0
    assert group.version == 2


def test_the_reference_stays_at_the_initial_weights_and_its_log_probs_come_in_the_order_of_the_rows(
    learner, model_directory, batch
):
    directory = model_directory(tied=True)
    algorithm = AlgorithmConfig(kl={"coefficient": 0.1, "place": "reward"})
    group = learner(2)(directory, algorithm, **OPTIMIZER, micro_batch_tokens=20)
    train(group, batch, 2)
    rows = batch.rows * 2
    expected = frozen_log_probs(load(directory), rows)
    found = group.reference(rows)
    assert [len(row) for row in found] == [len(row.token_ids) for row in rows]
    for row, values in zip(found, expected, strict=True):
        assert row == pytest.approx(values.tolist(), abs=2e-5)
    assert group.reference([]) == []


@pytest.mark.parametrize("stage", [0, 3])
def test_gradient_checkpointing_recomputes_and_changes_nothing(one_rank, batch, stage):
    import ray

    def forward_passes(self):
        """How often the first layer was entered, counted from the first call on."""
        layer = self.model.model.layers[0]
        if not hasattr(layer, "runs"):
            layer.runs = 0
            layer.register_forward_pre_hook(lambda *_: setattr(layer, "runs", layer.runs + 1))
        return layer.runs

    found = {}
    for checkpointing in (False, True):
        group = one_rank(gradient_checkpointing=checkpointing, zero_stage=stage)
        before = weights_of(group)
        count = group._ranks[0].__ray_call__
        ray.get(count.remote(forward_passes))
        train(group, batch, 1)
        found[checkpointing] = ray.get(count.remote(forward_passes)), weights_of(group)
    assert found[True][0] == 2 * found[False][0]
    assert moved_alike(before, found[True][1], found[False][1]) < 1e-4


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_log_probs_are_scored_under_the_current_weights(one_rank, model_directory, batch, temperature):
    import torch

    group = one_rank(micro_batch_tokens=20)
    train(group, batch, 2)
    model = load(model_directory(tied=True))
    model.load_state_dict(weights_of(group), strict=False)
    with torch.no_grad():
        expected = [log_probs(model, row, temperature or TEMPERATURE)[0].tolist() for row in batch.rows]
    for found, row in zip(group.score(batch.rows, temperature), expected, strict=True):
        assert found == pytest.approx(row, abs=2e-5)


def test_a_learning_rate_of_zero_moves_nothing_and_shows_no_mismatch_with_the_learners_own_log_probs(one_rank, batch):
    """What the metrics of such a run show beside engines is then the engines' share alone."""
    import torch

    group = one_rank(lr=0.0, weight_decay=0.1, micro_batch_tokens=20)
    before = weights_of(group)
    own = Batch(tuple(replace(r, logprobs=tuple(s)) for r, s in zip(batch.rows, group.score(batch.rows), strict=True)))
    for metrics in train(group, own, 2):
        assert metrics["policy/mismatch"] < 1e-5
        assert abs(metrics["policy/kl_rollout"]) < 1e-8
        assert metrics["policy/clip_share"] == 0.0
        assert metrics["policy/grad_norm"] > 0.0
    after = weights_of(group)
    assert not [name for name in before if not torch.equal(before[name], after[name])]


def test_bfloat16_updates_accumulate_below_its_resolution(one_rank, batch):
    """A step of 2e-5 is lost in bfloat16 weights of size 0.1 (resolution 5e-4); a float32 copy must collect it."""
    import torch

    settings = {"lr": 2e-5, "warmup_steps": 0, "weight_decay": 0.0}
    moves = {}
    for dtype in ("float32", "bfloat16"):
        group = one_rank(dtype=dtype, **settings)
        before = weights_of(group)
        train(group, batch, 30)
        after = weights_of(group)
        assert {str(tensor.dtype) for tensor in after.values()} == {f"torch.{dtype}"}
        moves[dtype] = torch.cat([(after[name].double() - before[name].double()).flatten() for name in after])
    exact, coarse = moves["float32"], moves["bfloat16"]
    assert (coarse @ exact / (exact @ exact)).item() == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_first_update_in_bfloat16_is_of_full_size(one_rank, batch, stage):
    """AdamW's first step moves every weight with a gradient by the learning rate, whatever the gradient's size.

    DeepSpeed makes an empty step when it starts; counted as one, it would shrink this one to about 0.7 of that.
    """
    rate = 0.0625  # steps of this size survive the rounding of bfloat16 weights
    group = one_rank(dtype="bfloat16", lr=rate, warmup_steps=0, weight_decay=0.0, zero_stage=stage)
    before = weights_of(group)
    metrics = train(group, batch, 1)[0]
    after = weights_of(group)
    name = "model.layers.0.mlp.down_proj.weight"
    moved = (after[name].double() - before[name].double()).abs()
    assert moved.median().item() == pytest.approx(rate, rel=0.05)
    assert metrics["policy/grad_norm"] > 0


def test_learning_raises_the_log_probs_of_rewarded_tokens(one_rank, some_rows):
    group = one_rank(lr=1e-2, max_grad_norm=1.0)
    good, bad = (replace(row, advantage=sign) for row, sign in zip(some_rows[:2], (1.0, -1.0), strict=True))
    start = group.score([good, bad])
    batch = Batch(tuple(replace(r, logprobs=tuple(s)) for r, s in zip((good, bad), start, strict=True)))
    train(group, batch, 3)
    end = group.score([good, bad])
    assert sum(end[0]) > sum(start[0])
    assert sum(end[1]) < sum(start[1])


@pytest.mark.parametrize(("stage", "compiled"), [(0, False), (1, False), (2, False), (3, False), (2, True)])
def test_two_ranks_learn_like_a_plain_loop_under_every_zero_stage(
    learner, model_directory, batch, tied, stage, compiled
):
    """Parts of different length, so that a rank pads with an empty pass."""
    directory = model_directory(tied=tied)
    settings = {**OPTIMIZER, "zero_stage": stage, "micro_batch_tokens": 12, "replay_weight": REPLAY_WEIGHT}
    group = learner(2)(directory, ALGORITHM, **settings, compile=compiled)
    before = weights_of(group)
    metrics = train(group, batch, 3)
    model = load(directory)
    curve = bare_loop(model, batch, 3, replay_weight=REPLAY_WEIGHT)
    for found, expected in zip(metrics, curve, strict=True):
        assert_metrics(found, expected)
    assert moved_alike(before, weights_of(group), parameters(model)) < 1e-4


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_have_the_loss_curve_of_one(learner, model_directory, batch, stage):
    curves = []
    for ranks in (1, 2):
        settings = {**OPTIMIZER, "zero_stage": stage, "micro_batch_tokens": 12, "replay_weight": REPLAY_WEIGHT}
        curves.append(train(learner(ranks)(model_directory(tied=True), ALGORITHM, **settings), batch, 6))
    for one, two in zip(*curves, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-6)
    assert curves[0][-1]["loss/policy"] < curves[0][0]["loss/policy"]


@pytest.mark.parametrize(("ranks", "stage"), [(1, 2), (2, 1), (2, 3)])
def test_an_optimizer_in_host_memory_makes_the_same_updates(learner, model_directory, batch, ranks, stage):
    directory = model_directory(tied=True)
    group = learner(ranks)(directory, ALGORITHM, **OPTIMIZER, zero_stage=stage, offload="optimizer")
    before = weights_of(group)
    metrics = train(group, batch, 2)
    model = load(directory)
    curve = bare_loop(model, batch, 2)
    assert moved_alike(before, weights_of(group), parameters(model)) < 1e-4
    for found, expected in zip(metrics, curve, strict=True):
        assert_metrics(found, expected)


def test_an_optimizer_in_host_memory_needs_a_zero_stage():
    with pytest.raises(ValueError, match=r"learner.offload = optimizer needs learner.zero_stage = 1, 2 or 3 \(now 0\)"):
        LearnerConfig(offload="optimizer")


def test_a_token_weight_by_the_longest_completion_needs_its_length():
    with pytest.raises(ValueError, match="needs max_new_tokens"):
        LearnerRank("model", LearnerConfig(), AlgorithmConfig(name="dr_grpo"), 1.0)


def test_dr_grpo_weighs_tokens_by_the_longest_completion(learner, model_directory, batch):
    """All advantages alike and ratios 1: the loss is - A · tokens / (rows · limit)."""
    algorithm = AlgorithmConfig(name="dr_grpo")
    group = learner(2)(model_directory(tied=True), algorithm, run={"max_new_tokens": 50}, lr=0.0)
    rows = [
        replace(r, advantage=0.7, logprobs=tuple(s)) for r, s in zip(batch.rows, group.score(batch.rows), strict=True)
    ]
    tokens = sum(len(row.token_ids) for row in rows)
    metrics = group.update(Batch(tuple(rows))).metrics
    assert metrics["loss/policy"] == pytest.approx(-0.7 * tokens / (len(rows) * 50), rel=1e-4)


@pytest.mark.parametrize("stage", [0, 3])
def test_an_exported_model_has_the_current_weights_and_loads_in_transformers(
    learner, model_directory, batch, tmp_path, tied, stage
):
    import torch
    from transformers import AutoTokenizer

    group = learner(2 if stage else 1)(model_directory(tied=tied), ALGORITHM, **OPTIMIZER, zero_stage=stage)
    train(group, batch, 1)
    group.export(str(tmp_path))
    weights, model = weights_of(group), load(tmp_path)
    assert model.config.tie_word_embeddings is tied
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert not [name for name, tensor in model.named_parameters() if not torch.equal(tensor, weights[name])]
    text = "1: UP DOWN"
    original, exported = (AutoTokenizer.from_pretrained(d) for d in (model_directory(tied=tied), tmp_path))
    assert exported.encode(text) == original.encode(text)
    assert exported.chat_template == original.chat_template
