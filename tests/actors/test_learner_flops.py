from types import SimpleNamespace

import pytest

from actors.flops import Work, peak_flops, training_flops, work
from actors.records import Row
from actors.sequences import EMPTY

ROWS = [Row((1, 2, 3), (4, 5)), Row((1, 2, 3), (6, 7, 8)), Row((9,), (10,))]


def test_rows_by_themselves():
    """A row's last token is not computed: 4, 5 and 1 tokens; each sees itself and those before: 10 + 15 + 1 pairs."""
    assert work([ROWS[:1], [EMPTY], ROWS[1:]], shared=False) == Work(tokens=10, predicted=6, pairs=26)


def test_a_shared_prompt_counts_once_in_a_pass():
    """The second row computes its own 2 tokens, which see the 3 of the prompt and 1 + 2 of their own: 9 pairs."""
    assert work([ROWS], shared=True) == Work(tokens=4 + 2 + 1, predicted=6, pairs=10 + 9 + 1)
    assert work([[row] for row in ROWS], shared=True) == work([ROWS], shared=False)


def test_golden_flops():
    """100 parameters, of which 10 · 4 are the tied head: 6 (60 · 4 + 40 · 2) + 12 · 3 layers · 4 wide · 10 pairs.

    Without a gradient of the weights 4 in place of 6.
    """
    config = SimpleNamespace(
        vocab_size=10, hidden_size=4, num_attention_heads=2, head_dim=2, num_hidden_layers=3, tie_word_embeddings=True
    )
    done = Work(tokens=4, predicted=2, pairs=10)
    assert training_flops(config, 100, done) == 6 * (60 * 4 + 40 * 2) + 12 * 3 * 4 * 10
    assert training_flops(config, 100, done, frozen=True) == 4 * (60 * 4 + 40 * 2) + 12 * 3 * 4 * 10
    config.tie_word_embeddings = False
    assert training_flops(config, 140, done) == 6 * (60 * 4 + 40 * 2) + 12 * 3 * 4 * 10


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("a toaster", None),
    ],
)
def test_peaks_by_name(name, peak):
    assert peak_flops(name) == peak
