"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262).

Advantages are rewards (less a KL penalty, k1, where a coefficient asks for it), normalised over the whole batch instead
of the group: a task that is always solved keeps its positive advantage, so no group is dropped for equal rewards. The
paper discounts KL from each token on; here the whole completion's KL belongs to its reward, as all else does.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.algorithms.advantages import centre, standardise
from actors.algorithms.clipping import token_surrogate
from actors.algorithms.objective import Algorithm, Defaults


def batch_relative(groups: Sequence[Sequence[float]], normalise_std: bool) -> list[list[float]]:
    """Rewards minus the mean of the batch, over the batch's population deviation if asked."""
    rewards = [reward for group in groups for reward in group]
    if not rewards:
        return [[] for _ in groups]
    flat = centre(rewards)
    values = iter(standardise(flat) if normalise_std else flat)
    return [[next(values) for _ in group] for group in groups]


ALGORITHM = Algorithm(
    batch_relative,
    token_surrogate,
    Defaults(aggregation="token", kl_estimator="k1", kl_place="reward", zero_variance=False),
)
