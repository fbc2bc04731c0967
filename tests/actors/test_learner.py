"""The learner against a plain PyTorch training loop: one rank, and two ranks under every ZeRO stage."""

import math
from dataclasses import replace

import pytest

from actors.config import AlgorithmConfig
from actors.records import Batch, Row
from actors.weight_sync import unpack

ALGORITHM = AlgorithmConfig(clip_low=0.2, clip_high=0.28)
OPTIMIZER = {"lr": 2e-3, "warmup_steps": 2, "weight_decay": 0.1, "beta2": 0.95, "max_grad_norm": 0.05}
REPLAY_WEIGHT = 0.3
TEMPERATURE = 0.7


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tied(request):
    return request.param


def load(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory)


def log_probs(model, row):
    """Log-probs (nats) of a row's generated tokens and the entropies there, without padding."""
    import torch

    ids = torch.tensor([row.prompt_ids + row.token_ids])
    logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1] / TEMPERATURE
    distribution = logits.log_softmax(-1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, torch.tensor(row.token_ids).unsqueeze(-1)).squeeze(-1), entropy


@pytest.fixture(scope="session")
def batch(model_directory, some_rows):
    """Rows whose sampled log-probs lie around the model's, so that clips are active, and two rows of replay."""
    import torch

    model, rows = load(model_directory(tied=True)), []
    generator = torch.Generator().manual_seed(0)
    for row in some_rows:
        with torch.no_grad():
            now, _ = log_probs(model, row)
        behaviour = now + 0.4 * torch.randn(len(now), generator=generator)
        rows.append(replace(row, logprobs=tuple(behaviour.tolist())))
    return Batch(tuple(rows), (Row((5, 6, 7), (8, 9)), Row((11,), (12, 13, 14))))


def bare_loop(directory, batch, updates, *, replay_weight=0.0):
    """AdamW in plain PyTorch: one row at a time, the clipped surrogate written out.

    Returns the model and the metrics of each update.
    """
    import torch

    model = load(directory)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=OPTIMIZER["lr"], betas=(0.9, OPTIMIZER["beta2"]), weight_decay=OPTIMIZER["weight_decay"]
    )
    low, high = 1 - ALGORITHM.clip_low, 1 + ALGORITHM.clip_high
    tokens, curve = sum(len(row.token_ids) for row in batch.rows), []
    imitated = sum(len(row.token_ids) for row in batch.replay)
    for update in range(updates):
        sums = dict.fromkeys(("loss", "entropy", "clipped", "kl", "mismatch", "nll"), 0.0)
        for row in batch.rows:
            now, entropy = log_probs(model, row)
            difference = now - torch.tensor(row.logprobs, dtype=now.dtype)
            ratio = difference.exp()
            surrogate = torch.minimum(ratio * row.advantage, ratio.clamp(low, high) * row.advantage)
            (-surrogate.sum() / tokens).backward()
            sums["loss"] -= surrogate.sum().item()
            sums["entropy"] += entropy.sum().item()
            sums["clipped"] += (ratio > high if row.advantage > 0 else ratio < low).sum().item()
            sums["kl"] += (ratio - 1 - difference).sum().item()
            sums["mismatch"] += difference.abs().sum().item()
        for row in batch.replay:
            nll = -log_probs(model, row)[0].sum()
            (replay_weight * nll / imitated).backward()
            sums["nll"] += nll.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["max_grad_norm"])
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER["lr"] * min(1.0, (update + 1) / OPTIMIZER["warmup_steps"])
        optimizer.step()
        optimizer.zero_grad()
        curve.append(
            {
                "loss/policy": sums["loss"] / tokens,
                "loss/replay": sums["nll"] / max(1, imitated),
                "policy/entropy": sums["entropy"] / tokens,
                "policy/clip_share": sums["clipped"] / tokens,
                "policy/kl_rollout": sums["kl"] / tokens,
                "policy/mismatch": sums["mismatch"] / tokens,
                "policy/grad_norm": norm.item(),
                "policy/learning_rate": optimizer.param_groups[0]["lr"],
            }
        )
    return model, curve


def weights_of(group):
    import ray

    return {name: tensor.clone() for ref in group.publish() for name, tensor in unpack(ray.get(ref))}


def moved_alike(before, found, expected):
    """Distance of two weight sets, relative to how far ``expected`` has moved from ``before``."""
    assert found.keys() == expected.keys()
    apart = sum((found[name].double() - expected[name].double()).square().sum().item() for name in expected)
    moved = sum((expected[name].double() - before[name].double()).square().sum().item() for name in expected)
    assert moved > 0
    return math.sqrt(apart / moved)


def parameters(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_metrics(found, expected):
    """The gradient norm may be missing on either side: DeepSpeed keeps none for float32 without ZeRO."""
    optional = {"policy/grad_norm"}
    assert found.keys() | optional == expected.keys() | optional
    common = found.keys() & expected.keys()
    assert {n: found[n] for n in common} == pytest.approx({n: expected[n] for n in common}, rel=1e-3, abs=1e-5)


def train(group, batch, updates):
    return [group.update(batch).metrics for _ in range(updates)]


@pytest.fixture
def one_rank(learner, model_directory):
    """A learner of one rank."""

    def build(tied=True, **settings):
        return learner(1)(model_directory(tied=tied), ALGORITHM, **{**OPTIMIZER, **settings})

    return build


def test_three_updates_equal_a_plain_pytorch_loop(one_rank, model_directory, batch, tied):
    group = one_rank(tied, replay_weight=REPLAY_WEIGHT)
    before = weights_of(group)
    metrics = train(group, batch, 3)
    model, curve = bare_loop(model_directory(tied=tied), batch, 3, replay_weight=REPLAY_WEIGHT)
    assert moved_alike(before, weights_of(group), parameters(model)) < 1e-4
    for found, expected in zip(metrics, curve, strict=True):
        assert_metrics(found, expected)
    assert 0 < curve[0]["policy/clip_share"] < 1
    assert curve[0]["policy/grad_norm"] > OPTIMIZER["max_grad_norm"]


def test_small_micro_batches_give_the_update_of_one_large_one(one_rank, batch):
    found = {}
    for tokens in (1, 20, 10_000):
        group = one_rank(micro_batch_tokens=tokens, replay_weight=REPLAY_WEIGHT)
        before = weights_of(group)
        found[tokens] = train(group, batch, 2), weights_of(group)
    metrics, weights = found[10_000]
    for tokens in (1, 20):
        assert moved_alike(before, found[tokens][1], weights) < 1e-4
        for few, many in zip(found[tokens][0], metrics, strict=True):
            assert few == pytest.approx(many, rel=1e-3, abs=1e-5)


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


def test_log_probs_are_scored_under_the_current_weights(one_rank, model_directory, batch):
    import torch

    group = one_rank()
    train(group, batch, 2)
    model = load(model_directory(tied=True))
    model.load_state_dict(weights_of(group), strict=False)
    with torch.no_grad():
        expected = [log_probs(model, row)[0].tolist() for row in batch.rows]
    for found, row in zip(group.score(batch.rows), expected, strict=True):
        assert found == pytest.approx(row, abs=2e-5)


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


def test_learning_raises_the_log_probs_of_rewarded_tokens(one_rank, some_rows):
    group = one_rank(lr=1e-2, max_grad_norm=1.0)
    good, bad = (replace(row, advantage=sign) for row, sign in zip(some_rows[:2], (1.0, -1.0), strict=True))
    start = group.score([good, bad])
    batch = Batch(tuple(replace(r, logprobs=tuple(s)) for r, s in zip((good, bad), start, strict=True)))
    train(group, batch, 3)
    end = group.score([good, bad])
    assert sum(end[0]) > sum(start[0])
    assert sum(end[1]) < sum(start[1])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_learn_like_a_plain_loop_under_every_zero_stage(learner, model_directory, batch, tied, stage):
    """Five rows on two ranks: stripes of different length, so that one rank pads with an empty pass."""
    directory = model_directory(tied=tied)
    settings = {**OPTIMIZER, "zero_stage": stage, "micro_batch_tokens": 12, "replay_weight": REPLAY_WEIGHT}
    group = learner(2)(directory, ALGORITHM, **settings)
    before = weights_of(group)
    metrics = train(group, batch, 3)
    model, curve = bare_loop(directory, batch, 3, replay_weight=REPLAY_WEIGHT)
    for found, expected in zip(metrics, curve, strict=True):
        assert_metrics(found, expected)
    assert moved_alike(before, weights_of(group), parameters(model)) < 1e-4
    assert ("policy/grad_norm" in metrics[0]) or stage == 0


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (1, 2), (2, 1), (2, 3)])
def test_after_a_checkpoint_training_goes_on_exactly(learner, model_directory, batch, tmp_path, ranks, stage):
    import torch

    build = learner(ranks)
    settings = {**OPTIMIZER, "warmup_steps": 4, "zero_stage": stage}
    group = build(model_directory(tied=True), ALGORITHM, **settings)
    train(group, batch, 2)
    group.save(str(tmp_path))
    metrics, weights = train(group, batch, 2), weights_of(group)

    again = build(model_directory(tied=True), ALGORITHM, **settings)
    again.load(str(tmp_path))
    assert again.version == 2
    assert train(again, batch, 2) == metrics
    assert again.version == 4
    found = weights_of(again)
    assert not [name for name in weights if not torch.equal(weights[name], found[name])]


def test_loading_from_an_empty_folder_says_so(one_rank, tmp_path):
    group = one_rank()
    with pytest.raises(FileNotFoundError, match="no learner state"):
        group.load(str(tmp_path))


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
