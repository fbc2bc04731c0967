"""DAPO (Yu et al. 2025, arXiv 2503.14476).

GRPO with a higher upper clip (0.28), a mean over tokens instead of completions, a penalty that rises over the last
fifth of the token limit (4096 of 20480 in the paper; ``shaping.py``), and further prompts sampled in place of groups
without a signal (``dynamic_sampling.py``). The paper samples until the batch is full; here the rounds are bounded.
"""

from __future__ import annotations

from actors.algorithms.advantages import group_relative
from actors.algorithms.clipping import token_surrogate
from actors.algorithms.objective import Algorithm, Defaults

ALGORITHM = Algorithm(
    group_relative,
    token_surrogate,
    Defaults(clip_high=0.28, aggregation="token", overlong_buffer=0.2, sampling_rounds=3),
)
