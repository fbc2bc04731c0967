"""The generated tokens of one micro-batch, as the losses see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LOG_RATIO_LIMIT = 20.0
"""Nats. A ratio of e^20 is far beyond every clip; without a bound e^89 overflows float32 and its slope is NaN."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Flat float tensors of shape (tokens,): whole sequences, one after the other. Log-probs are in nats.

    ``logprobs`` are the policy's now and carry the gradient. ``old`` are those of the proximal policy: the learner
    before the batch's first update, or ``behaviour`` again where the objective's ``old_logprobs`` is ``rollout``.
    ``behaviour`` are those the tokens were sampled with, ``reference`` those of the frozen reference (needed for a KL
    term in the loss only). ``advantages`` and ``weights`` (share of the batch mean, from ``token_weights``) repeat
    their sequence's value. ``sequence`` is int64: the position of each token's sequence among those with tokens.
    """

    logprobs: torch.Tensor
    old: torch.Tensor
    behaviour: torch.Tensor
    reference: torch.Tensor | None
    advantages: torch.Tensor
    weights: torch.Tensor
    sequence: torch.Tensor

    def log_ratio(self) -> torch.Tensor:
        """log (now / proximal) per token, with the gradient of ``logprobs``."""
        return (self.logprobs - self.old).clamp(max=LOG_RATIO_LIMIT)

    def sequence_sums(self, values: torch.Tensor) -> torch.Tensor:
        """(tokens,) → (tokens,): entry i is the sum over sequence i. There are at most as many sequences as tokens."""
        return values.new_zeros(len(values)).index_add(0, self.sequence, values)

    def sequence_means(self, values: torch.Tensor) -> torch.Tensor:
        """(tokens,) → (tokens,): entry i is the mean over sequence i, 0 where there is no such sequence."""
        counts = self.sequence_sums(values.new_ones(len(values))).clamp(min=1.0)
        return self.sequence_sums(values) / counts
