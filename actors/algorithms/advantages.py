"""Baselines and scales of rewards that the algorithms' advantage rules are made of."""

from __future__ import annotations

from collections.abc import Sequence

DEVIATION_FLOOR = 1e-6
"""Added to a deviation before it divides."""


def centre(rewards: Sequence[float]) -> list[float]:
    """Rewards minus their mean."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardise(centred: Sequence[float]) -> list[float]:
    """Values of mean 0 over their population deviation plus 1e-6; equal values stay 0."""
    deviation = (sum(c * c for c in centred) / len(centred)) ** 0.5
    return [c / (deviation + DEVIATION_FLOOR) for c in centred]


def group_relative(groups: Sequence[Sequence[float]], normalise_std: bool) -> list[list[float]]:
    """Rewards minus the mean of their group, over the group's deviation if asked (GRPO, Shao et al. 2024)."""
    centred = [centre(rewards) for rewards in groups]
    return [standardise(values) for values in centred] if normalise_std else centred
