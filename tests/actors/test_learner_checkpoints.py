"""Checkpoints of the learner: exact at the same number of ranks, equal within float tolerance at another."""

import pytest

from tests.actors.learner_reference import ALGORITHM, OPTIMIZER, moved_alike, train, weights_of

SETTINGS = {**OPTIMIZER, "warmup_steps": 4, "micro_batch_tokens": 20}


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype"), [(1, 0, "float32"), (1, 2, "float32"), (2, 1, "bfloat16"), (2, 3, "float32")]
)
def test_after_a_checkpoint_training_goes_on_exactly(learner, model_directory, batch, tmp_path, ranks, stage, dtype):
    import torch

    build = learner(ranks)
    settings = {**SETTINGS, "zero_stage": stage, "dtype": dtype}
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


@pytest.mark.parametrize(
    ("before", "after", "stage", "dtype"),
    [
        (2, 1, 0, "float32"),
        (2, 1, 2, "float32"),
        (1, 2, 2, "float32"),
        (2, 1, 3, "float32"),
        (1, 2, 3, "float32"),
        (2, 1, 1, "bfloat16"),
        (1, 2, 2, "bfloat16"),
        (2, 1, 3, "bfloat16"),
    ],
)
def test_a_checkpoint_goes_on_at_another_number_of_ranks(
    learner, model_directory, batch, tmp_path, before, after, stage, dtype
):
    """The next losses and weights are those of the run that was not stopped, and nothing is left beside the files."""
    directory, settings = model_directory(tied=True), {**SETTINGS, "zero_stage": stage, "dtype": dtype}
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    group = learner(before)(directory, ALGORITHM, **settings)
    train(group, batch, 2)
    start = weights_of(group)
    group.save(str(tmp_path))
    files = sorted(path.name for path in tmp_path.iterdir())
    metrics = train(group, batch, 2)
    weights = weights_of(group)

    other = learner(after)(directory, ALGORITHM, **settings)
    other.load(str(tmp_path))
    assert other.version == 2
    found = train(other, batch, 2)
    for have, want in zip(found, metrics, strict=True):
        assert have == pytest.approx(want, rel=tolerance, abs=tolerance / 100)
    assert moved_alike(start, weights_of(other), weights) < (1e-5 if dtype == "float32" else 0.06)
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_loading_from_an_empty_folder_says_so(learner, model_directory, tmp_path):
    group = learner(1)(model_directory(tied=True), ALGORITHM, **SETTINGS)
    with pytest.raises(FileNotFoundError, match="no learner state"):
        group.load(str(tmp_path))


def test_loading_at_another_zero_stage_says_so(learner, model_directory, batch, tmp_path):
    group = learner(1)(model_directory(tied=True), ALGORITHM, **SETTINGS, zero_stage=1)
    group.save(str(tmp_path))
    group = learner(1)(model_directory(tied=True), ALGORITHM, **SETTINGS, zero_stage=2)
    with pytest.raises(ValueError, match=r"written with learner\.zero_stage = 1, this run has 2"):
        group.load(str(tmp_path))
