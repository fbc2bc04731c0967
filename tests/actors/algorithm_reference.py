"""The losses again, in plain Python floats and loops over sequences: what the tensors are compared with."""

import math
from dataclasses import dataclass

from actors.algorithms import Tokens, token_weights
from actors.config import AlgorithmConfig
from actors.records import Row

MAX_NEW_TOKENS = 10
NAMES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus")


@dataclass(frozen=True)
class Sequence:
    """One completion: log-probs (nats) per token under four policies, and its advantage."""

    now: list[float]
    old: list[float]
    behaviour: list[float]
    reference: list[float]
    advantage: float


def objective(name="grpo", *, lag=0, **settings):
    return AlgorithmConfig(name=name, **settings).resolved(lag)


def weights_of(sequences, choices):
    """The weight of a token of each sequence."""
    rows = [Row((0,), (0,) * len(s.now), s.advantage) for s in sequences]
    return token_weights(rows, choices, MAX_NEW_TOKENS)


def tensors(sequences, weights, dtype=None):
    """A micro-batch of whole sequences, float64 unless asked otherwise; log-probs are a leaf with gradient."""
    import torch

    def flat(name):
        return torch.tensor([x for s in sequences for x in getattr(s, name)], dtype=dtype or torch.float64)

    def repeat(values, dtype):
        return torch.tensor([v for s, v in zip(sequences, values, strict=True) for _ in s.now], dtype=dtype)

    return Tokens(
        logprobs=flat("now").requires_grad_(),
        old=flat("old"),
        behaviour=flat("behaviour"),
        reference=flat("reference"),
        advantages=repeat([s.advantage for s in sequences], dtype or torch.float64),
        weights=repeat(weights, dtype or torch.float64),
        sequence=repeat(range(len(sequences)), torch.int64),
    )


def slow_loss(sequences, weights, choices):
    """Loss, its gradient in ``now`` (flat) and the sums of statistics, from the definitions."""
    loss, gradient = 0.0, []
    sums = dict.fromkeys(("clipped", "kl", "mismatch", "masked", "weight", "weight_squared"), 0.0)
    if choices.kl.in_loss():
        sums |= {"kl_loss": 0.0, "kl_reference": 0.0}
    for s, share in zip(sequences, weights, strict=True):
        importance = slow_importance(s, choices.correction)
        for t in range(len(s.now)):
            value, slope, clipped = slow_surrogate(s, t, choices)
            loss -= share * importance[t] * value
            gradient.append(-share * importance[t] * slope)
            if choices.kl.in_loss():
                penalty, steepness = slow_kl(s.now[t] - s.reference[t], choices.kl.estimator)
                loss += choices.kl.coefficient * share * penalty
                gradient[-1] += choices.kl.coefficient * share * steepness
                sums["kl_loss"] += choices.kl.coefficient * share * penalty
                sums["kl_reference"] += penalty
            moved = s.now[t] - s.behaviour[t]
            learner = s.old[t] if choices.old_logprobs == "learner" else s.now[t]
            sums["clipped"] += clipped
            sums["kl"] += math.exp(moved) - 1 - moved
            sums["mismatch"] += abs(learner - s.behaviour[t])
            sums["masked"] += importance[t] == 0
            sums["weight"] += importance[t]
            sums["weight_squared"] += importance[t] ** 2
    return loss, gradient, sums


def slow_surrogate(s, t, choices):
    """What token t adds to the objective, the slope of that in its log-prob, and whether the clip is active."""
    ratios = [math.exp(now - old) for now, old in zip(s.now, s.old, strict=True)]
    low, high = 1 - choices.clip_low, 1 + choices.clip_high
    ratio = math.prod(ratios) ** (1 / len(ratios)) if choices.name == "gspo" else ratios[t]
    bounded = min(max(ratio, low), high)
    if choices.name == "cispo":
        return bounded * s.advantage * s.now[t], bounded * s.advantage, bounded != ratio
    clipped = bounded * s.advantage < ratio * s.advantage
    return min(ratio * s.advantage, bounded * s.advantage), 0.0 if clipped else ratio * s.advantage, clipped


def slow_importance(s, correction):
    """The importance weight of each token."""
    ratios = [math.exp(old - then) for old, then in zip(s.old, s.behaviour, strict=True)]
    if correction.level == "none":
        return [1.0] * len(ratios)
    if correction.level == "sequence":
        ratios = [math.prod(ratios)] * len(ratios)
    if correction.level == "geometric":
        ratios = [math.prod(ratios) ** (1 / len(ratios))] * len(ratios)
    if correction.mode == "truncate":
        return [min(max(ratio, correction.low), correction.high) for ratio in ratios]
    return [ratio if correction.low <= ratio <= correction.high else 0.0 for ratio in ratios]


def slow_kl(difference, estimator):
    """The estimate and its slope in the policy's log-prob."""
    if estimator == "k1":
        return difference, 1.0
    if estimator == "k2":
        return difference**2 / 2, difference
    return math.exp(-difference) - 1 + difference, 1 - math.exp(-difference)
