"""The clipped surrogate of PPO (Schulman et al. 2017), which most of the algorithms share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from actors.algorithms.objective import Objective
    from actors.algorithms.tokens import Tokens


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, objective: Objective
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(r A, clip(r, 1 - low, 1 + high) A) per token, and where the clip is what counts. Shapes (tokens,)."""
    bounded = ratio.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high) * advantages
    plain = ratio * advantages
    return plain.minimum(bounded), (bounded < plain).detach()


def token_surrogate(tokens: Tokens, objective: Objective) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped surrogate with each token's own ratio."""
    return clipped_surrogate(tokens.log_ratio().exp(), tokens.advantages, objective)
