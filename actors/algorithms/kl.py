"""Estimators of KL(policy ‖ reference) from sampled tokens (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.algorithms.objective import Estimator
from actors.algorithms.tokens import LOG_RATIO_LIMIT
from actors.records import Row

if TYPE_CHECKING:
    import torch


def estimate(difference: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """Per-token estimate from d = log policy - log reference (nats), in d's shape and with its gradient.

    k1 = d has no bias and a high variance; k2 = d²/2 has a small bias and a low variance; k3 = e^-d - 1 + d has no bias
    and is never negative. As terms of a loss, on samples of the policy itself, their gradients have other means (Tang
    and Munos 2025): k1's is zero, k2's that of KL(policy ‖ reference), k3's that of KL(reference ‖ policy).
    """
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2.0
    return (-difference).clamp(max=LOG_RATIO_LIMIT).exp() - 1.0 + difference


def sequence_kl(rows: Sequence[Row], reference: Sequence[Sequence[float]], estimator: Estimator) -> list[float]:
    """Per row, the estimates (nats) between the log-probs it was sampled with and the reference's, summed over tokens.

    ``reference`` has one list per row, one log-prob (nats) per generated token.
    """
    import torch

    sums = []
    for row, other in zip(rows, reference, strict=True):
        sampled, frozen = (torch.tensor(x, dtype=torch.float64) for x in (row.logprobs, other))
        if len(sampled) != len(frozen):
            raise ValueError(f"a completion of {len(sampled)} tokens has {len(frozen)} reference log-probs")
        sums.append(float(estimate(sampled - frozen, estimator).sum()))
    return sums
