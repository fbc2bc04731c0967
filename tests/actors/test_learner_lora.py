"""Low-rank adapters: trained like the same adapters in plain PyTorch, and all that travels or is stored."""

import pytest

from actors.config import AlgorithmConfig
from actors.lora import base_weights, merge_adapters
from actors.records import Batch
from tests.actors.learner_reference import (
    ALGORITHM,
    OPTIMIZER,
    bare_loop,
    frozen_log_probs,
    load,
    moved_alike,
    train,
    weights_of,
)

pytest.importorskip("peft")

LORA = {"rank": 3, "alpha": 12}
TARGETS = ("q_proj", "down_proj")


def build(learner, directory, ranks=1, algorithm=ALGORITHM, lora=LORA, **settings):
    return learner(ranks)(directory, algorithm, **{**OPTIMIZER, "lora": lora, **settings})


def merged_model(directory, adapters):
    """The plain model with the adapters in its weights."""
    model = load(directory)
    state = dict(merge_adapters(base_weights(str(directory)), adapters.items()))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model


def with_adapters(model, start, scale):
    """The plain model with the same adapters, written out: x W' + scale · x A' B', A as given and B zero."""
    import torch

    class Adapted(torch.nn.Module):
        def __init__(self, layer, down):
            super().__init__()
            self.layer, self.down = layer, torch.nn.Parameter(down.clone())
            self.up = torch.nn.Parameter(torch.zeros(layer.weight.shape[0], len(down)))

        def forward(self, x):
            return self.layer(x) + scale * (x @ self.down.T @ self.up.T)

    model.requires_grad_(False)
    for name, tensor in start.items():
        if name.endswith(".lora_A.weight"):
            path, _, last = name.removesuffix(".lora_A.weight").rpartition(".")
            parent = model.get_submodule(path)
            setattr(parent, last, Adapted(getattr(parent, last), tensor))
    return model


def adapters_of(model, scale):
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "down"):
            found[f"{name}.lora_A.weight"] = module.down.detach()
            found[f"{name}.lora_B.weight"] = module.up.detach() * scale
    return found


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (1, {"zero_stage": 0}),
        (1, {"zero_stage": 0, "gradient_checkpointing": True}),
        (2, {"zero_stage": 0}),
        (2, {"zero_stage": 2}),
        (2, {"zero_stage": 3}),
    ],
)
def test_adapters_learn_like_the_same_adapters_in_plain_pytorch(learner, model_directory, batch, ranks, settings):
    directory, scale = model_directory(tied=True), LORA["alpha"] / LORA["rank"]
    group = build(learner, directory, ranks, lora={**LORA, "targets": TARGETS}, micro_batch_tokens=20, **settings)
    start = weights_of(group)
    metrics = train(group, Batch(batch.rows), 3)
    model = with_adapters(load(directory), start, scale)
    curve = bare_loop(model, batch, 3)
    for found, expected in zip(metrics, curve, strict=True):
        expected.pop("loss/replay")
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert moved_alike(start, weights_of(group), adapters_of(model, scale)) < 1e-3


def test_only_adapters_travel_and_they_make_the_engines_model_the_learners(learner, model_directory, batch):
    directory = model_directory(tied=True)
    group = build(learner, directory)
    start = weights_of(group)
    shapes = {name: tuple(tensor.shape) for name, tensor in start.items()}
    model = load(directory)
    linear = {n for n, m in model.named_modules() if type(m).__name__ == "Linear" and n != "lm_head"}
    assert {name.rpartition(".lora_")[0] for name in shapes} == linear
    assert shapes["model.layers.0.mlp.up_proj.lora_A.weight"] == (3, 32)
    assert shapes["model.layers.0.mlp.up_proj.lora_B.weight"] == (96, 3)
    assert sum(t.numel() for t in start.values()) < 0.4 * sum(p.numel() for p in model.parameters())
    train(group, batch, 3)
    learned = merged_model(directory, weights_of(group))
    expected = frozen_log_probs(learned, batch.rows)
    initial = frozen_log_probs(model, batch.rows)
    for row, values, old in zip(group.score(batch.rows), expected, initial, strict=True):
        assert row == pytest.approx(values.tolist(), abs=5e-5)
        assert row != pytest.approx(old.tolist(), abs=1e-3)


@pytest.mark.parametrize(("ranks", "compiled"), [(1, False), (2, False), (1, True)])
def test_the_reference_is_the_base_model_and_training_goes_on_unharmed(
    learner, model_directory, batch, ranks, compiled
):
    """The reference of a KL term needs no copy: the same ranks with their adapters switched off."""
    directory = model_directory(tied=True)
    algorithm = AlgorithmConfig(**ALGORITHM.model_dump(exclude={"kl"}), kl={"coefficient": 0.2})
    settings = {"lora": {**LORA, "targets": TARGETS}, "zero_stage": 3 * (ranks - 1), "compile": compiled}
    group = build(learner, directory, ranks, algorithm, **settings)
    start = weights_of(group)
    metrics = train(group, Batch(batch.rows), 3)
    model = with_adapters(load(directory), start, LORA["alpha"] / LORA["rank"])
    curve = bare_loop(model, batch, 3, kl=0.2)
    for found, expected in zip(metrics, curve, strict=True):
        expected.pop("loss/replay")
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for row, values in zip(group.reference(batch.rows), frozen_log_probs(load(directory), batch.rows), strict=True):
        assert row == pytest.approx(values.tolist(), abs=2e-5)


def test_an_exported_model_has_the_adapters_in_its_weights(learner, model_directory, batch, tmp_path):
    directory = model_directory(tied=True)
    group = build(learner, directory, 2, zero_stage=3)
    train(group, batch, 2)
    group.export(str(tmp_path))
    model = load(tmp_path)
    assert not [name for name, _ in model.named_parameters() if "lora" in name or "base_layer" in name]
    for row, values in zip(group.score(batch.rows), frozen_log_probs(model, batch.rows), strict=True):
        assert row == pytest.approx(values.tolist(), abs=5e-5)


@pytest.mark.parametrize(("before", "after", "stage"), [(1, 1, 0), (2, 1, 0), (2, 1, 2), (1, 2, 3)])
def test_a_checkpoint_holds_adapters_only_and_goes_on(learner, model_directory, batch, tmp_path, before, after, stage):
    import torch

    directory = model_directory(tied=True)
    group = build(learner, directory, before, zero_stage=stage)
    train(group, batch, 2)
    start = weights_of(group)
    group.save(str(tmp_path))
    stored = torch.load(next((tmp_path / "state").glob("*model_states.pt")), weights_only=False)["module"]
    assert not [name for name in stored if "lora_" not in name]
    metrics = train(group, batch, 2)
    weights = weights_of(group)

    other = build(learner, directory, after, zero_stage=stage)
    other.load(str(tmp_path))
    for have, want in zip(train(other, batch, 2), metrics, strict=True):
        assert have == pytest.approx(want, rel=1e-3, abs=1e-5)
    assert moved_alike(start, weights_of(other), weights) < 1e-3


def test_adapters_of_another_model_are_refused():
    import torch

    pairs = [("a.weight", torch.zeros(2, 3))]
    adapters = {"b.lora_A.weight": torch.zeros(1, 3), "b.lora_B.weight": torch.zeros(2, 1)}
    with pytest.raises(ValueError, match=r"adapters without a layer in the base model: b\.lora_A"):
        list(merge_adapters(pairs, adapters.items()))


def test_merging_is_the_sum_of_base_and_product_in_the_bases_dtype():
    """W = [[1, 2]], A = [[3, 5]], B = [[0.5]]: W + B A = [[2.5, 4.5]]."""
    import torch

    pairs = [("a.weight", torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)), ("a.bias", torch.ones(1))]
    adapters = {"a.lora_A.weight": torch.tensor([[3.0, 5.0]]), "a.lora_B.weight": torch.tensor([[0.5]])}
    found = dict(merge_adapters(pairs, adapters.items()))
    assert found["a.weight"].dtype == torch.bfloat16 and found["a.weight"].tolist() == [[2.5, 4.5]]
    assert found["a.bias"].tolist() == [1.0]
