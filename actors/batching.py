"""From judged groups to a training batch."""

from __future__ import annotations

from collections.abc import Sequence

from actors.config import AlgorithmConfig
from actors.grpo import group_advantages
from actors.records import Batch, Group, Row
from environments.base import Verdict


def make_batch(groups: Sequence[Group], algorithm: AlgorithmConfig, replay: Sequence[Row] = ()) -> Batch:
    """Rows with group-relative advantages.

    Groups of equal rewards are left out: their advantages are zero, so they would only cost time. Failed samples are
    left out and do not enter their group's mean.
    """
    rows = []
    for group in groups:
        if not group.has_signal:
            continue
        samples = [m.sample for m in group.members if isinstance(m.result, Verdict) and m.sample is not None]
        advantages = group_advantages(group.rewards, normalise_std=algorithm.normalise_std)
        rows += [
            Row(sample.prompt_ids, sample.token_ids, advantage, sample.logprobs)
            for sample, advantage in zip(samples, advantages, strict=True)
        ]
    return Batch(tuple(rows), tuple(replay))
