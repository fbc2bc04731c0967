"""The loss of a micro-batch: importance weight × the algorithm's surrogate, plus KL to the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.algorithms.correction import importance_weights
from actors.algorithms.kl import estimate
from actors.algorithms.objective import Objective
from actors.algorithms.registry import ALGORITHMS
from actors.algorithms.tokens import LOG_RATIO_LIMIT, Tokens

if TYPE_CHECKING:
    import torch

SHARES = {
    "clipped": "policy/clip_share",
    "kl": "policy/kl_rollout",
    "mismatch": "policy/mismatch",
    "masked": "policy/masked_share",
    "kl_reference": "policy/kl_reference",
}
"""Statistics whose sum over the batch is divided by the batch's generated tokens, and the metrics they become."""


def policy_loss(tokens: Tokens, objective: Objective) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Scalar loss and statistics of a micro-batch; both are sums, so micro-batches and ranks add up to the batch.

    The loss is already a mean over the batch, by ``tokens.weights``. The statistics carry no gradient and have the same
    keys in every call with the same objective:

    - ``clipped``: tokens whose clip is active;
    - ``kl``: k3 estimate of KL(behaviour ‖ now), nats, summed over tokens (Schulman 2020);
    - ``mismatch``: |log-prob of the learner - of the rollout|, nats, summed over tokens; the learner's is the proximal
      policy's where there is one, else today's;
    - ``masked``: tokens whose importance weight was set to 0;
    - ``weight``, ``weight_squared``: sums of the importance weights, for the effective sample size;
    - ``kl_loss``: the KL term's part of the loss, and ``kl_reference``: the estimate summed over tokens; both only with
      a KL term in the loss.

    Raises :class:`ValueError` if that term has no reference log-probs.
    """
    surrogate, clipped = ALGORITHMS[objective.name].surrogate(tokens, objective)
    correction = importance_weights(tokens, objective.correction)
    if correction is not None:
        surrogate = surrogate * correction
    loss = -(surrogate * tokens.weights).sum()
    statistics = _statistics(tokens, objective, clipped, correction)
    if objective.kl.in_loss():
        if tokens.reference is None:
            raise ValueError("algorithm.kl.coefficient > 0 in the loss, but the tokens have no reference log-probs")
        penalty = estimate(tokens.logprobs - tokens.reference, objective.kl.estimator)
        term = objective.kl.coefficient * (penalty * tokens.weights).sum()
        loss = loss + term
        statistics |= {"kl_loss": term.detach(), "kl_reference": penalty.detach().sum()}
    return loss, statistics


def _statistics(
    tokens: Tokens, objective: Objective, clipped: torch.Tensor, correction: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    difference = (tokens.logprobs - tokens.behaviour).detach()
    learner = tokens.old if objective.old_logprobs == "learner" else tokens.logprobs.detach()
    weight = difference.new_ones(len(difference)) if correction is None else correction
    return {
        "clipped": clipped.to(difference.dtype).sum(),
        "kl": (difference.clamp(max=LOG_RATIO_LIMIT).exp() - 1.0 - difference).sum(),
        "mismatch": (learner - tokens.behaviour).abs().sum(),
        "masked": (weight == 0).to(difference.dtype).sum(),
        "weight": weight.sum(),
        "weight_squared": weight.square().sum(),
    }


def training_metrics(sums: Mapping[str, float], tokens: int) -> dict[str, float]:
    """Metrics of an update from the statistics summed over all micro-batches and ranks; ``tokens``: in the batch.

    ``policy/effective_sample_size`` is (Σ w)² / Σ w² as a share of the tokens (Kish 1965): 1 without a correction.
    """
    metrics = {name: sums[key] / tokens for key, name in SHARES.items() if key in sums}
    squared = sums["weight_squared"] * tokens
    metrics["policy/effective_sample_size"] = sums["weight"] ** 2 / squared if squared else 0.0
    if "kl_loss" in sums:
        metrics["loss/kl"] = sums["kl_loss"]
    return metrics
