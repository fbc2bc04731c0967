"""From judged groups to a training batch: shaping, filters, advantages, in this order."""

from __future__ import annotations

from collections.abc import Sequence

from actors.algorithms.filters import kept_indices
from actors.algorithms.objective import Objective
from actors.algorithms.registry import ALGORITHMS
from actors.algorithms.shaping import overlong_penalty
from actors.config import AlgorithmConfig
from actors.records import Batch, Group, Row, Sample
from environments.base import Verdict


def make_batch(
    groups: Sequence[Group],
    algorithm: AlgorithmConfig,
    replay: Sequence[Row] = (),
    *,
    max_new_tokens: int | None = None,
    reference_kl: Sequence[float] | None = None,
) -> Batch:
    """Rows with advantages: overlong shaping → KL in the reward → filters → advantages → weights of outcomes.

    Failed samples are left out and enter no baseline. ``max_new_tokens`` is needed for overlong shaping;
    ``reference_kl`` (nats, one per row of ``judged_rows(groups)``) for a KL penalty in the reward. Raises
    :class:`ValueError` if one of them is needed and missing.
    """
    objective = algorithm.resolved(lag=0)  # the lag changes the loss only
    judged = [_judged(group) for group in groups]
    rewards = _shaped_rewards(judged, objective, max_new_tokens, reference_kl)
    kept = kept_indices(rewards, zero_variance=objective.zero_variance, snr=objective.snr)
    advantages = ALGORITHMS[objective.name].advantages([rewards[i] for i in kept], objective.normalise_std)
    rows = [
        Row(
            sample.prompt_ids,
            sample.token_ids,
            value * objective.outcome_weights.get(verdict.outcome, 1.0),
            sample.logprobs,
        )
        for i, values in zip(kept, advantages, strict=True)
        for (sample, verdict), value in zip(judged[i], values, strict=True)
    ]
    return Batch(tuple(rows), tuple(replay), tuple(kept))


def judged_rows(groups: Sequence[Group]) -> list[Row]:
    """One row, advantage 0, per judged sample of all groups, in order: those a reference must score."""
    return [
        Row(sample.prompt_ids, sample.token_ids, 0.0, sample.logprobs)
        for group in groups
        for sample, _ in _judged(group)
    ]


def _judged(group: Group) -> list[tuple[Sample, Verdict]]:
    return [(m.sample, m.result) for m in group.members if isinstance(m.result, Verdict) and m.sample is not None]


def _shaped_rewards(
    judged: Sequence[Sequence[tuple[Sample, Verdict]]],
    objective: Objective,
    max_new_tokens: int | None,
    reference_kl: Sequence[float] | None,
) -> list[list[float]]:
    rewards = [[verdict.reward for _, verdict in members] for members in judged]
    if objective.overlong_buffer > 0.0:
        if max_new_tokens is None:
            raise ValueError(f"algorithm.overlong.buffer = {objective.overlong_buffer:g} needs max_new_tokens")
        for values, members in zip(rewards, judged, strict=True):
            for i, (sample, _) in enumerate(members):
                values[i] += overlong_penalty(
                    len(sample.token_ids), max_new_tokens, objective.overlong_buffer, objective.overlong_penalty
                )
    if objective.kl.in_reward():
        count = sum(map(len, judged))
        if reference_kl is None or len(reference_kl) != count:
            given = "none" if reference_kl is None else len(reference_kl)
            raise ValueError(f"algorithm.kl.place = reward needs the KL of each of {count} samples, got {given}")
        penalties = iter(reference_kl)
        rewards = [[value - objective.kl.coefficient * next(penalties) for value in values] for values in rewards]
    return rewards
