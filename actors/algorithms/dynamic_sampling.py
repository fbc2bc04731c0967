"""Dynamic sampling (DAPO, Yu et al. 2025): prompts without a signal are replaced by further ones, in bounded rounds.

Pure decisions; whoever samples asks after each round whether another is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from actors.records import Group


@dataclass(frozen=True, slots=True)
class SamplingDecision:
    """``kept``: the first groups with a signal, at most as many as wanted. ``missing``: how many more it takes."""

    kept: tuple[Group, ...]
    missing: int


def decide_sampling(groups: Sequence[Group], wanted: int) -> SamplingDecision:
    """From all groups of a step so far, in order, those to train on and the number of prompts still to find."""
    kept = tuple(group for group in groups if group.has_signal)[:wanted]
    return SamplingDecision(kept, wanted - len(kept))


def shortage_message(groups: Sequence[Group], wanted: int, rounds: int) -> str:
    """Why the rounds ended with too few groups: which strata are too easy, which too hard, and what to do.

    A group of equal rewards is too easy if these are the highest of the step, too hard if they are the lowest. Where
    the step has one reward only, a positive one is too easy. A group with less than two verdicts is neither.
    """
    decision = decide_sampling(groups, wanted)
    rewards = [reward for group in groups for reward in group.rewards]
    total, kinds = Counter(group.task.stratum for group in groups), {"easy": Counter[str](), "hard": Counter[str]()}
    for group in groups:
        if len(group.rewards) > 1 and not group.has_signal and (kind := _kind(group.rewards[0], rewards)):
            kinds[kind][group.task.stratum] += 1
    parts = [
        f"dynamic sampling found {len(decision.kept)} of {wanted} groups with a signal in {len(groups)} prompts "
        f"(algorithm.dynamic_sampling.rounds = {rounds})"
    ]
    for kind, counts in kinds.items():
        if counts:
            strata = ", ".join(f"{name} ({n} of {total[name]} groups)" for name, n in counts.most_common())
            parts.append(f"too {kind} (all rewards the {'highest' if kind == 'easy' else 'lowest'}): {strata}")
    parts.append("shift the environment's shares or difficulty, raise curriculum.group_size, or allow more rounds")
    return "; ".join(parts)


def _kind(reward: float, rewards: Sequence[float]) -> str | None:
    low, high = min(rewards), max(rewards)
    if high - low <= 1e-9:
        return "easy" if reward > 0 else "hard"
    return "easy" if reward >= high - 1e-9 else "hard" if reward <= low + 1e-9 else None
