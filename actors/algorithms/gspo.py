"""GSPO (Zheng et al. 2025, arXiv 2507.18071).

GRPO's advantages with one importance ratio per completion: the geometric mean of its tokens' ratios, which is what is
clipped. The clip is much narrower than a token's (0.0003 and 0.0004 in the paper), as means vary little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.algorithms.advantages import group_relative
from actors.algorithms.clipping import clipped_surrogate
from actors.algorithms.objective import Algorithm, Defaults

if TYPE_CHECKING:
    import torch

    from actors.algorithms.objective import Objective
    from actors.algorithms.tokens import Tokens


def sequence_surrogate(tokens: Tokens, objective: Objective) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped surrogate with s = e^(mean log ratio of the sequence), in the token form of the paper (GSPO-token).

    Token t's ratio is sg(s) · π_t / sg(π_t): its value is s, and its gradient s · ∇log π_t. Averaged over the sequence
    that is the sequence's own surrogate and gradient, while advantages and weights may differ from token to token.
    """
    mean = tokens.sequence_means(tokens.log_ratio().detach())[tokens.sequence]
    ratio = (mean + (tokens.logprobs - tokens.logprobs.detach())).exp()
    return clipped_surrogate(ratio, tokens.advantages, objective)


ALGORITHM = Algorithm(
    group_relative, sequence_surrogate, Defaults(clip_low=3e-4, clip_high=4e-4, aggregation="sequence")
)
