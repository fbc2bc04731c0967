from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.records import Row
from actors.sequences import EMPTY, micro_batches, pad, policy_module

ROWS = st.lists(
    st.builds(
        Row,
        st.lists(st.integers(1, 300), min_size=1, max_size=12).map(tuple),
        st.lists(st.integers(1, 300), min_size=1, max_size=12).map(tuple),
    ),
    max_size=30,
)


@given(ROWS, st.integers(1, 120))
def test_micro_batches_keep_every_row_once_and_within_the_limit(rows, limit):
    batches = micro_batches(rows, limit)
    assert Counter(row for batch in batches for row in batch) == Counter(rows)
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(len(row) for row in batch) <= limit


@given(ROWS, st.integers(1, 120))
def test_micro_batches_are_no_smaller_than_they_must_be(rows, limit):
    """The first row of the next batch would not have fit: rows come longest first, so the width is the first row's."""
    batches = micro_batches(rows, limit)
    for batch in batches[:-1]:
        assert (len(batch) + 1) * len(batch[0]) > limit


@settings(deadline=None)
@given(ROWS.filter(bool))
def test_the_mask_marks_exactly_the_positions_before_generated_tokens(rows):
    padded = pad(rows)
    tokens, mask = padded.tokens, padded.mask
    assert tokens.shape == mask.shape == (len(rows), max(len(row) for row in rows))
    predicted = tokens[:, 1:][mask[:, :-1]].tolist()
    assert predicted == padded.targets().tolist() == [token for row in rows for token in row.token_ids]
    for row, line, marked in zip(rows, tokens.tolist(), mask.tolist(), strict=True):
        assert tuple(line[: len(row)]) == row.prompt_ids + row.token_ids
        assert not any(line[len(row) :])
        assert [t for t, on in enumerate(marked) if on] == list(range(len(row.prompt_ids) - 1, len(row) - 1))


def test_the_empty_row_has_no_position_that_counts():
    padded = pad([EMPTY])
    assert padded.tokens.shape == (1, 2) and not padded.mask.any()


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request, new_model):
    return new_model(tied=request.param)[0]


def one_by_one(model, row, temperature):
    """Log-probs of a row's generated tokens and the entropies there: one unpadded forward pass per token."""
    import torch

    logprobs, entropies = [], []
    with torch.no_grad():
        for i, token in enumerate(row.token_ids):
            ids = torch.tensor([row.prompt_ids + row.token_ids[:i]])
            distribution = (model(input_ids=ids).logits[0, -1] / temperature).log_softmax(-1)
            logprobs.append(distribution[token].item())
            entropies.append(-(distribution.exp() * distribution).sum().item())
    return logprobs, entropies


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_plain_model(model, some_rows, temperature):
    import torch

    with torch.no_grad():
        logprobs, entropies = policy_module(model)(pad(some_rows), temperature)
    expected = [one_by_one(model, row, temperature) for row in some_rows]
    assert logprobs.tolist() == pytest.approx([x for found, _ in expected for x in found], abs=2e-5)
    assert entropies.tolist() == pytest.approx([x for _, found in expected for x in found], abs=2e-5)


def test_log_probs_do_not_depend_on_padding(model, some_rows):
    import torch

    policy = policy_module(model)
    short, long = min(some_rows, key=len), Row(tuple(range(1, 60)), (7, 8))
    with torch.no_grad():
        alone, _ = policy(pad([short]), 1.0)
        padded, _ = policy(pad([short, long]), 1.0)
    assert len(short) < len(long)
    assert padded[: len(alone)].tolist() == pytest.approx(alone.tolist(), abs=2e-5)


def test_an_empty_row_gives_no_log_probs_and_a_backward_pass_of_zeros(model):
    logprobs, entropies = policy_module(model)(pad([EMPTY]), 1.0)
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and not any(gradient.any() for gradient in gradients)
    model.zero_grad(set_to_none=True)
