"""GRPO (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300).

Advantage: reward minus the group's mean, over the group's deviation. Surrogate: PPO's clip, token by token. Every
completion counts the same. The paper's KL term (k3 in the loss, coefficient 0.04) is off unless asked for.
"""

from __future__ import annotations

from actors.algorithms.advantages import group_relative
from actors.algorithms.clipping import token_surrogate
from actors.algorithms.objective import Algorithm, Defaults

ALGORITHM = Algorithm(group_relative, token_surrogate, Defaults(aggregation="sequence"))
