"""Packed rows against padded ones and against rows by themselves; how rows are dealt out to ranks and passes."""

import inspect
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.config import LearnerConfig
from actors.micro_batch import cut, deal
from actors.packing import Varlen, pack, packable, packs, use_packing
from actors.records import Row
from actors.sequences import EMPTY, pad, policy_module
from actors.training_engine import has_varlen_kernel, pack_rows

PROMPTS = st.sampled_from([(1,), (2, 3), (1, 2, 3, 4, 5, 6, 7), (9, 8, 7, 6), (40, 41, 42)])
TOKENS = st.lists(st.integers(1, 300), min_size=1, max_size=9).map(tuple)
ROWS = st.lists(st.builds(Row, PROMPTS, TOKENS), min_size=1, max_size=14)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def plain(request, new_model):
    return new_model(tied=request.param)[0]


@pytest.fixture(scope="module")
def packed(plain):
    """A copy that reads packs."""
    import copy

    model = copy.deepcopy(plain)
    use_packing(model)
    return model


@pytest.fixture(scope="module")
def grouped():
    """A Qwen3 of four query heads on two key heads, which several architectures have, plain and packed."""
    import copy

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 320}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads)).eval()
    twin = copy.deepcopy(model)
    use_packing(twin)
    return model, twin


def gradients(model, layout):
    """Loss, log-probs, entropies and gradients of a loss that weighs every token differently."""
    import torch

    model.zero_grad(set_to_none=True)
    logprobs, entropy = policy_module(model)(layout, 0.7)
    weights = torch.linspace(-1.0, 2.0, max(1, len(logprobs)))[: len(logprobs)]
    loss = (weights * logprobs).sum()
    loss.backward()
    return loss.item(), logprobs.detach(), entropy, torch.cat([p.grad.flatten() for p in model.parameters()])


def assert_equal(found, expected):
    for have, want in zip(found[1:], expected[1:], strict=True):
        assert (have - want).abs().max().item() < 2e-5 * max(1.0, want.abs().max().item())
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-5)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(ROWS, st.sampled_from([1, 2, 16]))
def test_a_pack_gives_the_log_probs_and_gradients_of_padded_rows(plain, packed, rows, multiple):
    layout = pack(rows, varlen=False, multiple=multiple)
    assert len(layout.tokens) % multiple == 0
    assert multiple == 1 or len(layout.tokens) >= 2 + sum(count for count, _ in layout.runs)
    assert_equal(gradients(packed, layout), gradients(plain, pad(rows)))


@settings(deadline=None, derandomize=True, max_examples=10)
@given(ROWS)
def test_a_pack_gives_the_log_probs_and_gradients_of_padded_rows_with_grouped_query_heads(grouped, rows):
    plain, packed = grouped
    assert_equal(gradients(packed, pack(rows, varlen=False)), gradients(plain, pad(rows)))


def test_gradient_checkpointing_changes_nothing_of_a_pack(grouped):
    rows = [Row((1, 2, 3), (4, 5)), Row((1, 2, 3), (6, 7, 8)), Row((9,), (10, 11))]
    layout = pack(rows, varlen=False)
    model = grouped[1]
    expected = gradients(model, layout)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    try:
        assert_equal(gradients(model, layout), expected)
    finally:
        model.gradient_checkpointing_disable()
        model.eval()


@settings(deadline=None, derandomize=True, max_examples=15)
@given(ROWS)
def test_the_kernel_for_varying_lengths_is_asked_for_the_same_attention(grouped, rows):
    """On CPU there is no such kernel: a stand-in computes what its documentation says, run by run."""
    plain, packed = grouped
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_hand)
        layout = pack(rows, varlen=True)
        assert all(isinstance(run, Varlen) for _, run in layout.runs)
        assert_equal(gradients(packed, layout), gradients(plain, pad(rows)))


def varlen_by_hand(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    """torch's variable-length attention for window (-1, 0): causal, the last query aligned with the last key."""
    import torch

    assert window_size == (-1, 0) and enable_gqa
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert query.is_contiguous() and key.is_contiguous() and value.is_contiguous()
    assert max_q == cu_seq_q.diff().max() and max_k == cu_seq_k.diff().max()
    assert cu_seq_q[-1] == len(query) and cu_seq_k[-1] == len(key) == len(value)
    each = query.shape[1] // key.shape[1]
    out = []
    for i in range(len(cu_seq_q) - 1):
        q = query[cu_seq_q[i] : cu_seq_q[i + 1]]
        k, v = (x[cu_seq_k[i] : cu_seq_k[i + 1]].repeat_interleave(each, dim=1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        seen = torch.arange(len(k)) <= torch.arange(len(q))[:, None] + len(k) - len(q)
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v))
    return torch.cat(out)


def test_the_stand_in_has_the_arguments_of_torchs_kernel():
    from torch.nn.attention.varlen import varlen_attn

    real, ours = inspect.signature(varlen_attn).parameters, inspect.signature(varlen_by_hand).parameters
    assert list(real)[:7] == list(ours)[:7]
    for name in list(ours)[7:]:
        assert (real[name].default, real[name].kind) == (ours[name].default, ours[name].kind)


def test_a_prompt_of_several_rows_is_computed_once_and_no_last_token_is():
    rows = [Row((1, 2, 3), (4, 5)), Row((1, 2, 3), (6,)), Row((1, 2, 3), (7, 8, 9)), Row((10,), (11, 12))]
    layout = pack(rows, varlen=False)
    assert layout.tokens.tolist() == [1, 2, 3, 10, 11, 4, 7, 8]
    assert layout.positions.tolist() == [0, 1, 2, 0, 1, 3, 3, 4]
    assert layout.labels.tolist() == [4, 5, 6, 7, 8, 9, 11, 12]
    assert layout.predicting.tolist() == [2, 5, 2, 2, 6, 7, 3, 4]


def test_an_empty_pass_gives_no_log_probs_and_a_gradient_of_zeros(packed):
    _, logprobs, entropy, gradient = gradients(packed, pack([EMPTY], varlen=False))
    assert logprobs.shape == entropy.shape == (0,)
    assert not gradient.any()


@given(ROWS, st.integers(1, 60))
def test_packs_keep_every_row_once_and_within_the_limit(rows, limit):
    parts = packs(rows, limit)
    assert Counter(row for part in parts for row in part) == Counter(rows)
    for part in parts:
        assert part
        computed = len(pack(part, varlen=False).tokens)
        assert len(part) == 1 or computed <= limit


@given(ROWS, st.integers(1, 5))
def test_ranks_get_every_row_once_and_equal_shares(rows, ranks):
    """A cut lies within half a row of a rank's share; a prompt that is cut is computed on both sides."""
    parts = deal(rows, ranks)
    assert sorted(i for part in parts for i in part) == list(range(len(rows)))
    costs = [
        sum(len(rows[i].token_ids) for i in part) + sum(map(len, {rows[i].prompt_ids for i in part})) for part in parts
    ]
    alone = sum(len(row.token_ids) for row in rows) + sum(map(len, {row.prompt_ids for row in rows}))
    largest = max(map(len, rows))
    assert max(costs) <= alone / ranks + 2 * largest
    split = sum(
        len({i for i, part in enumerate(parts) for k in part if rows[k].prompt_ids == prompt}) - 1
        for prompt in {row.prompt_ids for row in rows}
    )
    assert split <= ranks - 1


@given(ROWS, st.integers(1, 4), st.integers(1, 60), st.booleans())
def test_every_rank_makes_as_many_passes(rows, ranks, limit, packed):
    parts = [cut(rows, ranks, rank, limit, packed=packed) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    rows_of_passes = [row for part in parts for rows in part for row in rows if row is not EMPTY]
    assert Counter(rows_of_passes) == Counter(rows)
    assert cut([], ranks, 0, limit, packed=packed) == []


def test_models_with_other_attention_are_padded_and_refuse_to_be_packed(plain):
    from types import SimpleNamespace

    sliding = SimpleNamespace(
        config=SimpleNamespace(layer_types=["full_attention", "sliding_attention"]), _supports_attention_backend=True
    )
    capped = SimpleNamespace(config=SimpleNamespace(attn_logit_softcapping=50.0), _supports_attention_backend=True)
    assert packable(plain)
    for model in (sliding, capped):
        assert not pack_rows(model, LearnerConfig())
        with pytest.raises(ValueError, match=r"learner\.packing = packed needs full causal attention"):
            pack_rows(model, LearnerConfig(packing="packed"))


def test_there_is_no_kernel_for_varying_lengths_on_cpu_or_in_float32():
    assert not has_varlen_kernel(LearnerConfig(gpus=0, dtype="bfloat16"))
    assert not has_varlen_kernel(LearnerConfig(gpus=1, dtype="float32"))


def test_a_model_with_dropout_is_trained_without(grouped, tmp_path):
    """With it, learner and engine would disagree on every log-prob."""
    import copy

    import torch

    from actors.training_engine import load_model

    model = copy.deepcopy(grouped[0])
    model.config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), LearnerConfig(dtype="float32")).train()
    layout = pad([Row((1, 2, 3), (4, 5, 6))])
    with torch.no_grad():
        expected = policy_module(grouped[0].eval())(layout, 1.0)[0]
        assert torch.equal(policy_module(loaded)(layout, 1.0)[0], expected)
