"""GRPO in pure torch (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300), without the KL term.

Clipping may be asymmetric (clip-higher, DAPO, Yu et al. 2025); the loss is a sum over tokens that the caller divides by
the global token count, so that micro-batches and ranks add up to one batch mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def group_advantages(rewards: list[float], *, normalise_std: bool) -> list[float]:
    """Rewards of one group → advantages: reward minus the group mean, over the group's deviation if asked.

    The deviation is the population one plus 1e-6; a group of equal rewards has all advantages 0.
    """
    mean = sum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalise_std:
        return centred
    deviation = (sum(c * c for c in centred) / len(centred)) ** 0.5
    return [c / (deviation + 1e-6) for c in centred]


def policy_loss(
    logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Clipped surrogate, summed over tokens.

    All inputs are float tensors of shape (tokens,): log-probs (nats) now and when sampled, and the advantage of each
    token's sequence. Returns the scalar loss sum and sums of token statistics: ``clipped`` (tokens whose clip is
    active), ``kl`` (k3 estimate of KL(behaviour ‖ now), Schulman 2020) and ``mismatch`` (|log-prob difference|).
    """
    difference = logprobs - behaviour_logprobs
    ratio = difference.exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    plain, bounded = ratio * advantages, clipped * advantages
    loss = -plain.minimum(bounded).sum()
    detached = difference.detach()
    statistics = {
        "clipped": (bounded < plain).float().sum().detach(),
        "kl": (detached.exp() - 1.0 - detached).sum(),
        "mismatch": detached.abs().sum(),
    }
    return loss, statistics
