"""Synthetic dialogues that teach a small model to be the engineer.

Random evidence in, the controller's reply out, both compact. The target is a pure function of the prompt's words: the
controller here reads solved rates off the buckets and sees only the modules that are on.
"""

from __future__ import annotations

import random

from environments.base import Message
from orchestrator.engineer.controller import plan, read_rate
from orchestrator.engineer.replies import spoken, write_reply
from orchestrator.evidence import CLASSES, DEFAULT_MODULES, MODULES, EnvInfo, Modules, compact
from orchestrator.records import Evidence, HistoryEntry, StratumResult

DEFAULT_SHARE = 0.75
"""Part of the dialogues with exactly the default modules, so that prompts in a run look like most of training."""

MODULE_ODDS = {"F": 0.85, "G": 0.5, "H": 0.5, "S": 0.4, "T": 0.5}
"""Elsewhere, how often a module is on; failures mostly, since without them there is nothing to learn from."""

TOTALS = (150, 150, 150, 150, 100, 64, 40, 24, 16, 8)
"""Attempts per stratum. 150 is the full validation; smaller ones occur in short runs."""

FIRST_ODDS = 0.3
"""Part of first redesigns, without a configuration to start from: one in three in a run of four stages."""

EMPTY_ODDS = 0.01
EXTREME_ODDS = 0.15
MAX_STAGES = 6


def dialogues(
    info: EnvInfo, rng: random.Random, count: int, modules_default: Modules = DEFAULT_MODULES
) -> list[tuple[list[Message], str]]:
    """``count`` pairs of (compact prompt, compact reply), a pure function of the state of ``rng``."""
    return [_dialogue(info, rng, modules_default) for _ in range(count)]


def _dialogue(info: EnvInfo, rng: random.Random, modules_default: Modules) -> tuple[list[Message], str]:
    evidence = random_evidence(info, rng)
    modules = modules_default
    if rng.random() >= DEFAULT_SHARE:
        modules = frozenset(letter for letter in MODULES if rng.random() < MODULE_ODDS[letter])
    made = plan(evidence, info, modules, read_rate)
    return compact(evidence, info, modules), write_reply(made.knobs, made.classes, info, "compact")


def random_evidence(info: EnvInfo, rng: random.Random) -> Evidence:
    """Evidence as a run could make it, but with strata independent and every solved rate about equally likely."""
    stage = 0 if rng.random() < FIRST_ODDS else rng.randint(1, MAX_STAGES - 2)
    stages = rng.randint(stage + 2, MAX_STAGES)
    total = rng.choice(TOTALS)
    return Evidence(
        stage=stage,
        stages=stages,
        strata=info.strata,
        results=_random_results(info, rng, total),
        knobs=_random_table(info, rng),
        history=tuple(
            HistoryEntry(earlier, _random_table(info, rng), _random_results(info, rng, total))
            for earlier in range(1, stage)
        ),
        rationale=spoken({name: rng.choice(CLASSES) for name in info.strata}, info) if stage else "",
    )


def _random_table(info: EnvInfo, rng: random.Random) -> dict[str, dict[str, dict[str, int]]]:
    return {"strata": {name: {spec.name: rng.choice(spec.grid) for spec in info.knobs} for name in info.strata}}


def _random_results(info: EnvInfo, rng: random.Random, total: int) -> tuple[StratumResult, ...]:
    return tuple(
        StratumResult(name, _random_counts(info, rng, 0 if rng.random() < EMPTY_ODDS else total))
        for name in info.strata
    )


def _random_counts(info: EnvInfo, rng: random.Random, total: int) -> dict[str, int]:
    """Counts that sum to ``total``: a uniform solved rate (often 0 or 1), split at random among few outcomes."""
    rate = float(rng.randint(0, 1)) if rng.random() < EXTREME_ODDS else rng.random()
    solved = round(rate * total)
    counts = dict.fromkeys(info.words, 0)
    for part, words in (
        (solved, [w for w in info.words if w in info.solved]),
        (total - solved, [w for w in info.words if w not in info.solved]),
    ):
        if not words:
            # All outcomes are successes, or none is: what has no word of its own goes to the others.
            words = list(info.words)
        chosen = rng.sample(words, rng.randint(1, min(len(words), 4)))
        cuts = sorted(rng.randint(0, part) for _ in chosen[1:])
        for word, low, high in zip(chosen, [0, *cuts], [*cuts, part], strict=True):
            counts[word] += high - low
    return counts
