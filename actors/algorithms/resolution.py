"""From the configuration to an objective: the one place where defaults and ``auto`` get their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from actors.algorithms.correction import BOUNDS
from actors.algorithms.objective import Correction, Kl, Level, LogProbs, Objective
from actors.algorithms.registry import ALGORITHMS

if TYPE_CHECKING:
    from actors.config import AlgorithmConfig, CorrectionConfig

Value = TypeVar("Value")


def resolve(config: AlgorithmConfig, lag: int) -> Objective:
    """``lag``: how many updates rollouts may be behind the learner. Raises :class:`ValueError` on a contradiction."""
    own = ALGORITHMS[config.name].defaults
    correction = _correction(config.correction, lag, config.old_logprobs)
    objective = Objective(
        name=config.name,
        clip_low=_or(config.clip_low, own.clip_low),
        clip_high=_or(config.clip_high, own.clip_high),
        normalise_std=_or(config.normalise_std, own.normalise_std),
        aggregation=config.aggregation or own.aggregation,
        updates_per_batch=config.updates_per_batch,
        old_logprobs=config.old_logprobs or ("rollout" if correction.level == "none" else "learner"),
        correction=correction,
        kl=Kl(config.kl.coefficient, config.kl.estimator or own.kl_estimator, config.kl.place or own.kl_place),
        zero_variance=_or(config.filters.zero_variance, own.zero_variance),
        snr=config.filters.snr,
        outcome_weights=config.outcome_weights,
        overlong_buffer=_or(config.overlong.buffer, own.overlong_buffer),
        overlong_penalty=config.overlong.penalty,
        sampling_rounds=_or(config.dynamic_sampling.rounds, own.sampling_rounds),
    )
    if objective.sampling_rounds and config.filters.zero_variance is False:
        raise ValueError(
            f"algorithm.filters.zero_variance = false keeps groups that dynamic sampling replaces; set it to true or "
            f"algorithm.dynamic_sampling.rounds = 0 (now {objective.sampling_rounds})"
        )
    return objective


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def _correction(config: CorrectionConfig, lag: int, old: LogProbs | None) -> Correction:
    """``auto`` is ``token`` where rollouts lag, unless the ratio is asked to be taken to the rollouts themselves."""
    level: Level = config.level if config.level != "auto" else "token" if lag and old != "rollout" else "none"
    if level == "none":
        return Correction("none", config.mode, 0.0, 0.0)
    if old == "rollout":
        raise ValueError(
            f"algorithm.correction.level = {level} needs algorithm.old_logprobs = learner (the weights compare the "
            "learner before the update with the rollout), not rollout; leave old_logprobs out"
        )
    low, high = BOUNDS[level, config.mode]
    return Correction(level, config.mode, _or(config.low, low), _or(config.high, high))
