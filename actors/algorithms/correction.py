"""Importance weights for samples whose policy is not the proximal one: another numerics, or older weights.

The proximal policy is the learner before the batch's first update. The weights are constants, not functions of today's
policy. Truncation: Ionides 2008, for rollouts of language models Yao et al. 2025 (TIS). Masks: tokens outside a band
(IcePop, Ling team 2025), whole sequences (Liu, Li et al. 2025).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.algorithms.objective import Correction, Level, Mode

if TYPE_CHECKING:
    import torch

    from actors.algorithms.tokens import Tokens

BOUNDS: dict[tuple[Level, Mode], tuple[float, float]] = {
    ("token", "truncate"): (0.0, 2.0),
    ("token", "mask"): (0.5, 5.0),
    ("sequence", "truncate"): (0.0, 2.0),
    ("sequence", "mask"): (0.0, 2.0),
    ("geometric", "truncate"): (0.0, 2.0),
    ("geometric", "mask"): (0.99, 1.01),
}
"""Lowest and highest weight where the configuration names none."""


def importance_weights(tokens: Tokens, correction: Correction) -> torch.Tensor | None:
    """Weight of each token, shape (tokens,), without gradient; ``None`` for no correction.

    With Δ = log proximal - log behaviour per token, the raw weight is e^Δ (``token``), e^(sum of Δ over the sequence)
    (``sequence``) or e^(mean of Δ over the sequence) (``geometric``; not an importance weight proper, but one whose
    spread does not grow with length). ``truncate`` bounds it to [low, high]; ``mask`` sets it to 0 outside of them.
    """
    if correction.level == "none":
        return None
    difference = (tokens.old - tokens.behaviour).detach()
    if correction.level == "sequence":
        difference = tokens.sequence_sums(difference)[tokens.sequence]
    elif correction.level == "geometric":
        difference = tokens.sequence_means(difference)[tokens.sequence]
    weight = difference.exp()
    if correction.mode == "truncate":
        return weight.clamp(correction.low, correction.high)
    inside = (weight >= correction.low) & (weight <= correction.high)
    return weight.where(inside, weight.new_zeros(()))
