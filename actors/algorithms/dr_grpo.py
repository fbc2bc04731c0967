"""Dr. GRPO (Liu et al. 2025, "Understanding R1-Zero-like training", arXiv 2503.20783).

GRPO without its two biases: no division by the group's deviation (which favours tasks that are nearly solved or nearly
hopeless), and a constant instead of the completion's length (whose division favours long wrong answers).
"""

from __future__ import annotations

from actors.algorithms.advantages import group_relative
from actors.algorithms.clipping import token_surrogate
from actors.algorithms.objective import Algorithm, Defaults

ALGORITHM = Algorithm(group_relative, token_surrogate, Defaults(normalise_std=False, aggregation="constant"))
