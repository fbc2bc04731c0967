"""Which groups of a batch are trained on, from their rewards alone."""

from __future__ import annotations

from collections.abc import Sequence

NOISE = 1e-9
"""Rewards closer than this are equal: rounding is no signal."""


def variance(rewards: Sequence[float]) -> float:
    """Population variance; 0 for less than two rewards or rewards that differ by rounding only."""
    if len(rewards) < 2 or max(rewards) - min(rewards) <= NOISE:
        return 0.0
    mean = sum(rewards) / len(rewards)
    return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)


def kept_indices(groups: Sequence[Sequence[float]], *, zero_variance: bool, snr: float | None) -> list[int]:
    """Positions, in order, of the groups of rewards that stay. Groups without any reward never do.

    ``zero_variance`` drops groups of equal rewards: their group-relative advantage is 0. ``snr`` in (0, 1] keeps the
    groups of highest reward variance, as few as hold this share of the batch's summed variance (SNR-aware filtering,
    RAGEN-2, Wang et al. 2026, arXiv 2604.06268): where rewards hardly differ, the update is mostly noise. Of equal
    variances the earlier group goes first.
    """
    variances = [variance(rewards) for rewards in groups]
    kept = [i for i, rewards in enumerate(groups) if rewards and (variances[i] > 0.0 or not zero_variance)]
    if snr is None:
        return kept
    ranked = sorted((i for i in kept if variances[i] > 0.0), key=lambda i: (-variances[i], i))
    threshold = snr * sum(variances[i] for i in ranked) * (1.0 - 1e-12)
    chosen, held = [], 0.0
    for i in ranked:
        if held >= threshold:
            break
        chosen.append(i)
        held += variances[i]
    return sorted(chosen)
