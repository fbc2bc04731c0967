"""Model FLOPs utilisation of the learner: arithmetic that the model needs ÷ what the device could do in that time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.records import Row
from actors.sequences import EMPTY

PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "4090": 165e12,
}
"""Dense bfloat16 tensor-core FLOP/s by a part of the device's name (vendor data sheets, SXM parts)."""


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens that pass through the layers, tokens that reach the head, and query-key pairs in a layer's attention."""

    tokens: int
    predicted: int
    pairs: int


def work(passes: Sequence[Sequence[Row]], *, shared: bool) -> Work:
    """What the rows of each pass need, without padding; ``shared``: a prompt counts once in a pass."""
    tokens = predicted = pairs = 0
    for rows in passes:
        prompts: set[tuple[int, ...]] = set()
        for row in rows:
            if row is EMPTY:
                continue
            new = len(row) - 1 if not shared or row.prompt_ids not in prompts else len(row.token_ids) - 1
            prompts.add(row.prompt_ids)
            before = len(row) - 1 - new
            tokens += new
            predicted += len(row.token_ids)
            pairs += new * before + new * (new + 1) // 2
    return Work(tokens, predicted, pairs)


def training_flops(config: Any, parameters: int, work: Work, *, frozen: bool = False) -> float:
    """Forward and backward FLOPs: 6 per parameter and token, 12 per head width and query-key pair (PaLM, Chowdhery et
    al. 2022, with causal attention counted as such).

    ``config`` is transformers', ``parameters`` all of the model's; the head counts for predicted tokens only. Weights
    that are ``frozen`` have no gradient of their own, 4 in place of 6. Gradient checkpointing's second forward is not
    useful work.
    """
    head = config.vocab_size * config.hidden_size
    layers = parameters - head * (1 if config.tie_word_embeddings else 2)
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    attention = 12.0 * config.num_hidden_layers * width * work.pairs
    return (4.0 if frozen else 6.0) * (layers * work.tokens + head * work.predicted) + attention


def peak_flops(device: str) -> float | None:
    """The device's dense bfloat16 FLOP/s by its name, None if it is not in the table."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device), None)
