"""Memory per actor against sums done by hand: 10 million parameters, 1 MiB = 2^20 bytes."""

import pytest

from orchestrator.config import load
from orchestrator.estimate import ADAPTER_SHARE, MIB, RANK_BASE_MIB, ModelSize, memory_rows, memory_table, model_size
from tests.run.conftest import RECIPE

SIZE = ModelSize(10_000_000, "a test")


def learner_bytes(*overrides):
    """Bytes per parameter of a rank, without what the process itself takes."""
    config = load(RECIPE, overrides)
    _, (_, mib, detail) = memory_rows(config, SIZE)
    return (mib - (0 if config.learner.gpus else RANK_BASE_MIB)) * MIB / SIZE.parameters, detail


GPU = ["learner.gpus=1", "learner.dtype=bfloat16"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 4 + 4 + 8),
        (GPU, 2 + 2 + 12),
        ([*GPU, "learner.zero_stage=1"], 2 + 4 + 12),
        ([*GPU, "learner.zero_stage=2", "learner.ranks=4"], 2 + 4 / 4 + 12 / 4),
        ([*GPU, "learner.zero_stage=3", "learner.ranks=4"], (2 + 4 + 12) / 4),
        ([*GPU, "learner.zero_stage=1", "learner.offload=optimizer"], 2 + 4),
        (["learner.zero_stage=1", "learner.offload=optimizer"], 4 + 4 + 8),
        ([*GPU, "algorithm.kl.coefficient=0.01"], 2 + 2 + 12 + 2),
        ([*GPU, "learner.lora={}"], 2 + 16 * ADAPTER_SHARE * (2 + 12)),
        ([*GPU, "learner.lora={rank: 64}"], 2 + 64 * ADAPTER_SHARE * (2 + 12)),
        ([*GPU, "learner.lora={}", "algorithm.kl.coefficient=0.01"], 2 + 16 * ADAPTER_SHARE * (2 + 12)),
    ],
)
def test_a_rank_holds_weights_gradients_optimizer_and_what_the_objective_needs(overrides, expected):
    found, _ = learner_bytes(*overrides)
    assert found == pytest.approx(expected)


def test_what_lies_elsewhere_is_said():
    assert "the optimizer's in RAM" in learner_bytes(*GPU, "learner.zero_stage=1", "learner.offload=optimizer")[1]
    assert "RAM" not in learner_bytes(*GPU)[1]


@pytest.mark.parametrize("heads", ["model.new.kv_heads=1", "model.new.kv_heads=4"])
def test_the_size_of_a_new_model_is_that_of_the_model_which_is_made(heads):
    from orchestrator.new_model import build_model

    new = load(RECIPE, [heads]).model.new
    made = sum(p.numel() for p in build_model(new, 1024).parameters())
    assert model_size(load(RECIPE, [heads])).parameters == pytest.approx(made, rel=0.01)


def test_an_unknown_size_is_said_and_not_guessed():
    assert "unknown" in memory_table(load(RECIPE, ["model.path=nowhere/a-model"]))
