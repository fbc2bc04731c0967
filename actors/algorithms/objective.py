"""What an ``AlgorithmConfig`` means once its algorithm's own defaults and the lag of the rollouts are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

    from actors.algorithms.tokens import Tokens

Aggregation: TypeAlias = Literal["token", "sequence", "constant"]
Level: TypeAlias = Literal["none", "token", "sequence", "geometric"]
Mode: TypeAlias = Literal["truncate", "mask"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]
Place: TypeAlias = Literal["loss", "reward"]
LogProbs: TypeAlias = Literal["rollout", "learner"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a field of the configuration means where it is left out. Sources: the algorithm's module."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    normalise_std: bool = True
    aggregation: Aggregation = "token"
    kl_estimator: Estimator = "k3"
    kl_place: Place = "loss"
    zero_variance: bool = True
    overlong_buffer: float = 0.0
    sampling_rounds: int = 0


@dataclass(frozen=True, slots=True)
class Correction:
    """Importance weights for samples of another policy than the proximal one; see ``correction.py``."""

    level: Level
    mode: Mode
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Kl:
    """The penalty that keeps the policy near the frozen reference; a coefficient of 0 is none."""

    coefficient: float
    estimator: Estimator
    place: Place

    def in_loss(self) -> bool:
        """Whether the loss needs the reference's log-probs."""
        return self.coefficient > 0 and self.place == "loss"

    def in_reward(self) -> bool:
        """Whether ``make_batch`` needs each sample's KL to the reference."""
        return self.coefficient > 0 and self.place == "reward"


@dataclass(frozen=True, slots=True)
class Objective:
    """Every choice made: what losses, weights and batches read. Made by ``AlgorithmConfig.resolved`` only."""

    name: str
    clip_low: float
    clip_high: float
    normalise_std: bool
    aggregation: Aggregation
    updates_per_batch: int
    old_logprobs: LogProbs
    correction: Correction
    kl: Kl
    zero_variance: bool
    snr: float | None
    outcome_weights: Mapping[str, float]
    overlong_buffer: float
    overlong_penalty: float
    sampling_rounds: int


AdvantageRule: TypeAlias = Callable[[Sequence[Sequence[float]], bool], list[list[float]]]
"""Rewards of all groups of a batch, whether to divide by a deviation → advantages in the same shape."""

Surrogate: TypeAlias = "Callable[[Tokens, Objective], tuple[torch.Tensor, torch.Tensor]]"
"""→ what a token adds to the maximised objective (with gradient), and whether its clip is active; both (tokens,)."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One published algorithm: its advantage rule, its surrogate and what it leaves to the defaults."""

    advantages: AdvantageRule
    surrogate: Surrogate
    defaults: Defaults
