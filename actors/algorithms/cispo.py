"""CISPO (MiniMax 2025, MiniMax-M1, arXiv 2506.13585).

REINFORCE with a clipped, detached importance weight: the clip bounds a token's step and never drops the token. Only the
upper bound matters in the paper, which gives no numbers; 1 + 4 is from Khatri et al. 2025 (ScaleRL, arXiv 2510.13786).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.algorithms.advantages import group_relative
from actors.algorithms.objective import Algorithm, Defaults

if TYPE_CHECKING:
    import torch

    from actors.algorithms.objective import Objective
    from actors.algorithms.tokens import Tokens


def weighted_log_likelihood(tokens: Tokens, objective: Objective) -> tuple[torch.Tensor, torch.Tensor]:
    """sg(clip(r, 1 - low, 1 + high)) · A · log π per token, and where the weight is not r itself."""
    ratio = tokens.log_ratio().detach().exp()
    bounded = ratio.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    return bounded * tokens.advantages * tokens.logprobs, bounded != ratio


ALGORITHM = Algorithm(
    group_relative, weighted_log_likelihood, Defaults(clip_low=1.0, clip_high=4.0, aggregation="token")
)
