"""What is added to a reward or multiplied onto an advantage before the learner sees it."""

from __future__ import annotations


def overlong_penalty(length: int, max_new_tokens: int, buffer: float, penalty: float) -> float:
    """Added to the reward of a completion of ``length`` tokens (DAPO's soft overlong punishment, Yu et al. 2025).

    0 until the last ``buffer`` · ``max_new_tokens`` tokens of the limit, then falling in a line to -``penalty`` at the
    limit itself.
    """
    width = buffer * max_new_tokens
    if width <= 0.0:
        return 0.0
    return -penalty * min(1.0, max(0.0, (length - (max_new_tokens - width)) / width))
