"""Evidence: what an engineer is told, and the two ways to write it down.

One :class:`~orchestrator.records.Evidence` renders as ``full`` (text for a real language model) or ``compact`` (one
word per key and per count bucket, for a word-level model of half a million parameters). Both hold raw counts of
outcome by stratum and never a narrated summary: in the context ablation of arXiv 2606.17682 (Table 5) narration and
bare failures both ended below not redesigning at all, and the random first configuration in the history cost 2.2
points.

Context modules, each a letter that can be left out:

``F`` outcome counts of the stage that just ended · ``G`` design guideline · ``H`` configurations used so far with
their results, without the random stage 0 · ``S`` the engineer's own earlier rationale · ``T`` the round, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from environments.base import Environment, Knobs, KnobSpec, Message
from orchestrator.records import Evidence, HistoryEntry, StratumResult

Style = Literal["full", "compact"]
Modules = frozenset[str]

MODULES: dict[str, str] = {
    "F": "raw outcome counts by stratum",
    "G": "design guideline",
    "H": "history of configurations and results",
    "S": "the engineer's earlier rationale",
    "T": "round index",
}
DEFAULT_MODULES: Modules = frozenset("FGHT")

CLASSES = ("mastered", "learnable", "hard", "unknown")
"""What a compact reply says about a stratum before it writes numbers."""

LEVELS = 10
"""Count buckets are tenths of a stratum's total: c0 .. c10."""

ROUNDS = 10
"""Rounds beyond this are written as this one, so that the compact vocabulary is closed."""

KEYWORDS = ("engineer", "guide", "round", "of", "none", "past", "said")

GUIDELINE = """\
- Training signal comes from groups of attempts that partly succeed. Tasks that always or never succeed teach nothing.
- Give less data to strata that are already solved, but never none: what is not rehearsed is forgotten.
- Give most data to strata just below the policy's limit; read from the outcomes what goes wrong there.
- Change difficulty in small moves: harder where most attempts succeed, easier where almost all fail.
- Making everything as hard as possible removes the signal. Keep what works."""


@dataclass(frozen=True, slots=True)
class EnvInfo:
    """What engineer and renderings may know of an environment.

    ``outcomes`` holds (word, one-line description), solved outcomes first, best first.
    """

    name: str
    strata: tuple[str, ...]
    knobs: tuple[KnobSpec, ...]
    outcomes: tuple[tuple[str, str], ...]
    solved: frozenset[str]

    @property
    def words(self) -> tuple[str, ...]:
        """The outcomes alone, in order."""
        return tuple(word for word, _ in self.outcomes)


def describe(environment: Environment) -> EnvInfo:
    """Read strata, knobs and outcomes off an environment. Raises ValueError if a name is not one word."""
    members = [(str(m.value), str(getattr(m, "description", ""))) for m in environment.Outcome]
    # The contract lists outcomes worst first; the eye and the small model want successes first, at fixed places.
    best_first = [m for m in members[::-1] if m[0] in environment.solved]
    best_first += [m for m in members[::-1] if m[0] not in environment.solved]
    specs = next(iter(environment.default_knobs().strata.values())).specs()
    info = EnvInfo(
        environment.name, environment.stratum_names(), specs, tuple(best_first), frozenset(map(str, environment.solved))
    )
    for name in (*info.strata, *info.words, *(s.name for s in info.knobs)):
        if len(name.split()) != 1 or name != name.strip():
            raise ValueError(f"{environment.name}: {name!r} is not one word, so it cannot be one token of the evidence")
    return info


def check_modules(letters: Iterable[str]) -> Modules:
    """The set of context modules. Raises ValueError naming an unknown letter."""
    modules = frozenset(letters)
    if unknown := sorted(modules - MODULES.keys()):
        allowed = ", ".join(f"{k} ({v})" for k, v in MODULES.items())
        raise ValueError(f"unknown context module {', '.join(unknown)}: allowed are {allowed}")
    return modules


# ------------------------------------------------------------------------------------------------------------- collect


def collect(
    pairs: Iterable[tuple[str, str]],
    info: EnvInfo,
    *,
    stage: int,
    stages: int,
    knobs: Knobs[Any],
    history: Sequence[HistoryEntry] = (),
    rationale: str = "",
) -> Evidence:
    """Count (stratum, outcome) pairs of the stage that just ended.

    Typed failures are not outcomes and must be left out by the caller. The random stage 0 is dropped from ``history``.
    Raises ValueError for a stratum or an outcome that the environment does not have.
    """
    counts = {stratum: dict.fromkeys(info.words, 0) for stratum in info.strata}
    for stratum, outcome in pairs:
        if stratum not in counts or outcome not in counts[stratum]:
            raise ValueError(f"{info.name} has no outcome {outcome!r} on a stratum {stratum!r}")
        counts[stratum][outcome] += 1
    return Evidence(
        stage=stage,
        stages=stages,
        strata=info.strata,
        results=tuple(StratumResult(stratum, row) for stratum, row in counts.items()),
        knobs=knobs.model_dump(mode="json"),
        history=tuple(sorted((h for h in history if h.stage > 0), key=lambda h: h.stage)),
        rationale=rationale,
    )


def remember(evidence: Evidence) -> tuple[HistoryEntry, ...]:
    """The history for the next stage's evidence: this one's, and the stage that it reports."""
    return (*evidence.history, HistoryEntry(evidence.stage, evidence.knobs, evidence.results))


def configuration(evidence: Evidence, modules: Modules) -> Mapping[str, Mapping[str, int]] | None:
    """Rows of the newest configuration that H may show, or None: H is off, or it was the random stage 0."""
    if "H" not in modules or evidence.stage == 0:
        return None
    rows: Mapping[str, Mapping[str, int]] = evidence.knobs["strata"]
    return rows


def swap(evidence: Evidence, a: str, b: str) -> Evidence:
    """A counterfactual: strata ``a`` and ``b`` exchange their results, now and in the history. Knobs stay.

    An engineer that reads its evidence must let its proposal follow.
    """
    other = {a: b, b: a}

    def exchanged(results: tuple[StratumResult, ...]) -> tuple[StratumResult, ...]:
        by_name = {r.stratum: r.outcomes for r in results}
        return tuple(StratumResult(r.stratum, by_name[other.get(r.stratum, r.stratum)]) for r in results)

    return replace(
        evidence,
        results=exchanged(evidence.results),
        history=tuple(replace(h, results=exchanged(h.results)) for h in evidence.history),
    )


# ------------------------------------------------------------------------------------------------------------- compact


def bucket(count: int, total: int) -> int:
    """``count`` in tenths of ``total``, rounded half up; 0 for an empty stratum."""
    return (2 * LEVELS * count + total) // (2 * total) if total else 0


def solved_level(result: StratumResult, solved: frozenset[str]) -> int:
    """Solved tenths as the compact text shows them: each solved outcome is rounded on its own, then added."""
    return min(LEVELS, sum(bucket(n, result.total) for word, n in result.outcomes.items() if word in solved))


def compact(evidence: Evidence, info: EnvInfo, modules: Modules = DEFAULT_MODULES) -> list[Message]:
    """The evidence in single words: a header, then one line per stratum.

    A line reads (configuration, result): knobs as they were, then outcome words with their buckets. Solved outcomes
    are always written and come first, so they sit at the same distance from the stratum's name in every prompt;
    others only if they happened. ``past`` starts the previous (configuration, solved level) of the same stratum,
    values alone, so that a knob's name stands once on a line and copying by name finds the newest value. Everything
    that one reply line needs stands on one prompt line.
    """
    head = ["engineer"]
    if "G" in modules:
        head.append("guide")
    if "T" in modules:
        head += ["round", str(min(evidence.stage + 1, ROUNDS)), "of", str(min(evidence.stages - 1, ROUNDS))]
    lines = [" ".join(head)]
    rows = configuration(evidence, modules)
    for result in evidence.results:
        words = [result.stratum]
        if rows is not None:
            words += _knob_words(rows[result.stratum], info)
        if "F" in modules:
            words += _outcome_words(result, info)
        if "H" in modules and evidence.history:
            last = evidence.history[-1]
            before = next(r for r in last.results if r.stratum == result.stratum)
            level = solved_level(before, info.solved)
            row = last.knobs["strata"][result.stratum]
            words += ["past", *(str(spec.nearest(row[spec.name])) for spec in info.knobs), f"c{level}"]
        lines.append(" ".join(words))
    if "S" in modules and evidence.rationale:
        known = {*info.strata, *CLASSES}
        said = [w for w in evidence.rationale.split() if w in known]
        lines.append(" ".join(["said", *said[: 2 * len(info.strata)]]))
    return [{"role": "user", "content": "\n".join(lines)}]


def _knob_words(row: Mapping[str, int], info: EnvInfo) -> list[str]:
    return [word for spec in info.knobs for word in (spec.name, str(spec.nearest(row[spec.name])))]


def _outcome_words(result: StratumResult, info: EnvInfo) -> list[str]:
    if not result.total:
        return ["none"]
    words: list[str] = []
    for word in info.words:
        count = result.outcomes[word]
        if count or word in info.solved:
            words += [word, f"c{bucket(count, result.total)}"]
    return words


def vocabulary(info: EnvInfo) -> tuple[str, ...]:
    """Every word of compact evidence and compact replies, without repetition; a newline separates lines."""
    numbers = {value for spec in info.knobs for value in spec.grid} | set(range(ROUNDS + 1))
    words = [
        *KEYWORDS,
        *CLASSES,
        *info.strata,
        *info.words,
        *(spec.name for spec in info.knobs),
        *(f"c{level}" for level in range(LEVELS + 1)),
        *(str(number) for number in sorted(numbers)),
    ]
    return tuple(dict.fromkeys(words))


# ---------------------------------------------------------------------------------------------------------------- full


def full(evidence: Evidence, info: EnvInfo, modules: Modules = DEFAULT_MODULES) -> list[Message]:
    """The same evidence as text: raw counts, no percentages, no narration; ends with the knob table and the reply."""
    parts: list[str] = []
    if "T" in modules:
        parts.append(f"Round {evidence.stage + 1} of {evidence.stages - 1}.")
    if "G" in modules:
        parts.append(f"Guideline\n{GUIDELINE}")
    if "F" in modules:
        legend = "\n".join(_legend(info))
        counts = "\n".join(f"- {r.stratum}: {_counts(r, info)}" for r in evidence.results)
        parts.append(
            f"Outcomes\n{legend}\n\nCounts of the current policy's attempts on validation, by stratum\n{counts}"
        )
    if "H" in modules and (past := _history(evidence, info, modules)):
        parts.append(f"History: configurations so far, and validation counts after each\n{past}")
    if "S" in modules and evidence.rationale:
        parts.append(f"Your rationale in the previous round\n{evidence.rationale}")
    parts += [_knob_table(info), _reply_shape(info)]
    system = (
        f"You design the training environment '{info.name}' for the next round of reinforcement learning. "
        "You set the knobs of its task generator; you cannot change the tasks' rules, the reward or the checker. "
        "Your aim is the highest success on validation after that round."
    )
    return [{"role": "system", "content": system}, {"role": "user", "content": "\n\n".join(parts)}]


def _legend(info: EnvInfo) -> Iterable[str]:
    for word, description in info.outcomes:
        yield f"- {word}{' (solved)' if word in info.solved else ''}: {description}"


def _counts(result: StratumResult, info: EnvInfo) -> str:
    seen = [f"{word} {result.outcomes[word]}" for word in info.words if result.outcomes[word] or word in info.solved]
    return f"{', '.join(seen)} (of {result.total})"


def _history(evidence: Evidence, info: EnvInfo, modules: Modules) -> str:
    """Stages 1 and later, oldest first; the newest one's result is the counts above, so only its knobs are listed."""
    blocks = []
    for entry in evidence.history:
        rows = entry.knobs["strata"]
        lines = [f"- {r.stratum}: {_setting(rows[r.stratum], info)} → {_counts(r, info)}" for r in entry.results]
        blocks.append("\n".join([f"Round {entry.stage}", *lines]))
    if (now := configuration(evidence, modules)) is not None:
        lines = [f"- {stratum}: {_setting(now[stratum], info)}" for stratum in info.strata]
        blocks.append("\n".join([f"Round {evidence.stage} (just ended)", *lines]))
    return "\n".join(blocks)


def _setting(row: Mapping[str, int], info: EnvInfo) -> str:
    return ", ".join(f"{spec.name} {row[spec.name]} {spec.unit}" for spec in info.knobs)


def _knob_table(info: EnvInfo) -> str:
    effect = {1: "a larger value is harder", -1: "a larger value is easier", 0: "does not change difficulty"}
    lines = ["Knobs of each stratum (integers)"]
    for spec in info.knobs:
        grid = f"{spec.minimum} to {spec.maximum} in steps of {spec.step} {spec.unit}"
        lines.append(f"- {spec.name}: {grid}; {spec.description}; {effect[spec.harder]}")
    return "\n".join([*lines, f"Strata, easiest first: {', '.join(info.strata)}"])


def _reply_shape(info: EnvInfo) -> str:
    row = "{" + ", ".join(f"{json.dumps(spec.name)}: integer" for spec in info.knobs) + "}"
    first = json.dumps(info.strata[0])
    return (
        "Reply with one JSON object and nothing else, with every stratum and every knob:\n"
        f'{{"rationale": "what the counts show and why you change what you change", "strata": {{{first}: {row}, ...}}, '
        f'"expected": {{{first}: 1, 0 or -1, ...}}}}\n'
        "expected is your prediction of the solved rate of each stratum on validation: 1 rises, 0 stays, -1 falls."
    )
