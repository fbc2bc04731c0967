"""What every environment must keep, as checks that any of them can run: ``run_checks(environment)``.

    envwright env check package.module:Class

A check is a function of a :class:`~environments.subject.Subject`. It returns a short note, or raises
:class:`ConformanceError` whose text is a sentence about what is wrong.
"""

from __future__ import annotations

import enum
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from environments.base import Environment, Failure, FrozenSet, NoAnswer, StratumKnobs, Task, Verdict
from environments.subject import SEED, Subject, fingerprint, said, wrong_or_odd

HOSTILE = (
    "",
    " \n\t ",
    "I do not know.",
    "\x00\ud800\U0001f600" * 3,
    "<think>never closed",
    "</think></think>",
    "{" * 500,
    "1: " + "UP " * 5_000,
    "9" * 6_000 + ": UP",
    "A" * 200_000,
)
"""Texts that answer nothing: an environment must call each of them wrong."""

SLOW_S = 1.0


class ConformanceError(AssertionError):
    """A clause of the contract is broken; the text says which and how it showed."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: what it is about, what was found, and the sentence that says what is wrong (empty if nothing is)."""

    name: str
    note: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether the environment keeps this part of the contract."""
        return not self.problem

    def __str__(self) -> str:
        return f"{self.name}: " + (f"FAILED: {self.problem}" if self.problem else f"ok {self.note}".rstrip())


def require(holds: object, sentence: str) -> None:
    """Raise ConformanceError with ``sentence`` unless ``holds``."""
    if not holds:
        raise ConformanceError(sentence)


# -------------------------------------------------------------------------------------------------------------- checks


def check_class(subject: Subject) -> str:
    """Name, version, settings and a closed list of described outcomes."""
    cls = type(subject.environment)
    require(cls.name and cls.version, "`name` and `version` must not be empty")
    require(issubclass(cls.Outcome, enum.StrEnum), "`Outcome` must be a StrEnum")
    outcomes = [str(member.value) for member in cls.Outcome]
    for member in cls.Outcome:
        require(getattr(member, "description", ""), f"outcome {member.value} has no description")
        require(_one_word(member.value), f"outcome {member.value!r} is not one word")
    require(cls.solved, "`solved` is empty: name the outcomes that count as success")
    strangers = sorted(set(map(str, cls.solved)) - set(outcomes))
    require(not strangers, f"`solved` names {strangers}, which are not outcomes")
    require(set(outcomes) - cls.solved, "every outcome counts as solved")
    for key, value in (("frozen", True), ("extra", "forbid")):
        require(
            cls.Settings.model_config.get(key) == value,
            f"`Settings` must be frozen and forbid unknown keys: set {key}={value!r} in its model_config",
        )
    json.dumps(cls.Settings.model_json_schema())
    return f"{cls.name} {cls.version}, {len(outcomes)} outcomes"


def check_knobs(subject: Subject) -> str:
    """One row per stratum; each knob an integer on a grid with bounds, step, unit, description and direction."""
    environment, knobs = subject.environment, subject.knobs
    names = environment.stratum_names()
    require(names and len(set(names)) == len(names), f"strata must be some and distinct: {names}")
    for name in names:
        require(_one_word(name), f"stratum {name!r} is not one word")
    require(tuple(knobs.strata) == tuple(names), f"default_knobs() has rows {tuple(knobs.strata)}, strata are {names}")
    columns = set()
    for row in knobs.strata.values():
        require(isinstance(row, StratumKnobs), f"{type(row).__name__} must derive from StratumKnobs")
        specs = row.specs()
        columns.add(tuple(spec.name for spec in specs))
        for spec in specs:
            require(spec.step > 0 and len(spec.grid) > 1, f"knob {spec.name} has no grid: {spec.grid}")
            require(spec.unit and spec.description, f"knob {spec.name} lacks a unit or a description")
            require(spec.harder in (-1, 0, 1), f"knob {spec.name}: harder = {spec.harder} must be -1, 0 or 1")
            value = getattr(row, spec.name)
            require(value in spec.grid, f"default {spec.name} = {value} is not on its grid {spec.grid}")
            require(_one_word(spec.name), f"knob {spec.name!r} is not one word")
    require(len(columns) == 1, f"every stratum must have the same knobs: {sorted(columns)}")
    again = type(knobs).model_validate_json(knobs.model_dump_json())
    require(again == knobs and again.digest() == knobs.digest(), "knobs do not survive a round trip through JSON")
    json.dumps(type(knobs).model_json_schema())
    return f"{len(names)} strata by {', '.join(columns.pop())}"


def check_weights(subject: Subject) -> str:
    """``strata`` sums to one, and ``reweight`` changes the shares and nothing else."""
    environment, knobs, names = subject.environment, subject.knobs, subject.environment.stratum_names()
    weights = environment.strata(knobs)
    require(set(weights) == set(names), f"strata() names {sorted(weights)}, the run has {names}")
    require(abs(sum(weights.values()) - 1) < 1e-9, f"the weights sum to {sum(weights.values())}, not to 1")
    for name in names:
        focused = environment.reweight(knobs, {name: 1.0})
        require(environment.strata(focused)[name] == 1.0, f"reweight to {name} alone leaves weight elsewhere")
        drawn = {task.stratum for task in environment.generate(focused, SEED, 0, 3)}
        require(drawn == {name}, f"with all weight on {name}, generate() gave strata {sorted(drawn)}")
        for other in names:
            before, after = (k.strata[other].model_dump(exclude={"share"}) for k in (knobs, focused))
            require(before == after, f"reweight changed knobs of {other} besides its share: {before} -> {after}")
    return ""


def check_feasibility(subject: Subject) -> str:
    """Default and random knobs are feasible, and random ones depend on their generator alone."""
    environment = subject.environment
    problems = environment.feasibility(subject.knobs)
    require(not problems, f"the default knobs are infeasible: {'; '.join(map(str, problems))}")
    for seed in range(3):
        drawn = environment.random_knobs(random.Random(seed))
        problems = environment.feasibility(drawn)
        require(not problems, f"random_knobs gave infeasible knobs: {'; '.join(map(str, problems))}")
        require(drawn == environment.random_knobs(random.Random(seed)), "random_knobs uses another source of chance")
    return ""


def check_stream(subject: Subject) -> str:
    """Item i is a function of its position alone: again, from anywhere, alone as in company."""
    environment, knobs, tasks, count = subject.environment, subject.knobs, subject.tasks, subject.count
    found = [task.index for task in tasks]
    require(found == list(range(count)), f"asked for items 0..{count - 1}, got indices {found[:5]}...")
    strangers = {task.stratum for task in tasks} - set(environment.stratum_names())
    require(not strangers, f"tasks of strata that the run does not have: {sorted(strangers)}")
    name = type(environment).name
    require({task.environment for task in tasks} == {name}, f"tasks must carry the environment's name, {name!r}")
    require(environment.generate(knobs, SEED, 0, count) == tasks, "the same position gave another task the second time")
    half = environment.generate(knobs, SEED, count // 2, count - count // 2)
    require(half == tasks[count // 2 :], "a stream that begins in the middle gives other tasks there")
    last = environment.generate(knobs, SEED, count - 1, 1)
    require(last == tasks[-1:], "an item generated alone differs from the same item in a batch")
    mine = [task.payload for task in tasks]
    for what, seed, split, stage in (("seed", 8, "train", 0), ("split", 7, "other", 0), ("stage", 7, "train", 1)):
        other = environment.generate(knobs, seed, 0, count, split=split, stage=stage)
        require([task.payload for task in other] != mine, f"another {what} gives the very same tasks")
    return f"{len({task.id for task in tasks})} distinct of {count}"


def check_prompts(subject: Subject) -> str:
    """Payloads are JSON; prompts are chats that end with the user, the same each time."""
    longest = 0
    for task in subject.tasks:
        require(json.loads(task.payload) == task.data(), f"the payload of task {task.id} is not JSON")
        chat = subject.environment.prompt(task)
        require(chat and chat[-1]["role"] == "user", "a prompt must end with a turn of the user")
        for message in chat:
            require(set(message) == {"role", "content"}, f"a message has keys {sorted(message)}, not role and content")
            require(message["content"].strip(), "a message is empty")
        require(subject.environment.prompt(task) == chat, "the same task gave another prompt the second time")
        longest = max(longest, sum(len(message["content"]) for message in chat))
    return f"up to {longest} characters"


def check_answers(subject: Subject) -> str:
    """The environment's own answers earn 1."""
    try:
        _require_best(subject.environment, subject.tasks)
    except NoAnswer:
        return "(it knows no answers, so a new small model cannot be warm-started)"
    return ""


def _require_best(environment: Environment, tasks: Sequence[Task]) -> None:
    for task in tasks:
        best = environment.answer(task)
        found = environment.score(task, best)
        require(
            isinstance(found, Verdict) and found.reward == 1.0 and found.outcome in type(environment).solved,
            f"its own answer {best!r:.80} to task {task.id} gets {said(found)}; a best answer must earn 1",
        )


def check_floor(subject: Subject) -> str:
    """Empty text, garbage and the prompt itself earn 0 and never count as solved."""
    solved = type(subject.environment).solved
    for task in subject.probed:
        chat = subject.environment.prompt(task)
        echoes = ("\n".join(message["content"] for message in chat), chat[-1]["content"])
        for text in (*HOSTILE, *echoes):
            for truncated in (False, True):
                found = subject.environment.score(task, text, truncated=truncated)
                what = "the prompt itself" if text in echoes else f"the text {text!r:.60}"
                floor = isinstance(found, Verdict) and found.reward == 0.0 and found.outcome not in solved
                require(floor, f"{what} gets {said(found)}; it must be judged wrong, with reward 0")
    return ""


def check_total(subject: Subject) -> str:
    """Any string gets a verdict: reward in 0..1, an outcome of the list, facts that are JSON; the same each time."""
    environment, outcomes = subject.environment, {str(member.value) for member in type(subject.environment).Outcome}
    seen, texts = set(), 0
    for task in subject.probed:
        for text in wrong_or_odd(environment, task):
            found = environment.score(task, text)
            if isinstance(found, Failure):
                raise ConformanceError(f"the text {text!r:.60} gets {said(found)}; a wrong answer is no failure")
            require(0.0 <= found.reward <= 1.0, f"the text {text!r:.60} gets reward {found.reward}, outside 0..1")
            require(found.outcome in outcomes, f"the text {text!r:.60} gets {found.outcome!r}, which is no outcome")
            json.dumps(found.facts)
            require(environment.score(task, text) == found, f"the text {text!r:.60} got two different verdicts")
            seen.add(found.outcome)
            texts += 1
    return f"{texts} texts, outcomes {', '.join(sorted(seen))}"


def check_speed(subject: Subject) -> str:
    """Scoring happens inside the rollout worker: it must not hold it up."""
    texts = [(task, text) for task in subject.probed for text in ("", subject.environment.prompt(task)[-1]["content"])]
    started = time.perf_counter()
    for task, text in texts:
        subject.environment.score(task, text)
    each = (time.perf_counter() - started) / len(texts)
    require(each < SLOW_S, f"a score takes {each:.1f} s; it runs inside the rollout worker, where {SLOW_S:g} s is much")
    return f"{1000 * each:.2f} ms a score"


def check_rendering(subject: Subject) -> str:
    """Every task can be shown to a person, with and without an answer, and so can its words to a tokenizer."""
    for task in subject.probed:
        shown = [subject.environment.render(task, completion) for completion in (None, "", "?")]
        require(all(shown), f"render() of task {task.id} is empty")
    words = subject.environment.vocabulary()
    spaced = [word for word in words if not _one_word(word)]
    require(not spaced, f"vocabulary() has an entry that is not one word: {spaced[:1]}")
    return f"{len(words)} words"


def check_fixed_sets(subject: Subject) -> str:
    """Validation and held-out tasks repeat, differ, cover every stratum and are never generated for training."""
    environment, notes = subject.environment, []
    trained = {task.id for task in environment.generate(subject.knobs, SEED + 1, 0, 5 * subject.count)}
    sets: list[FrozenSet] = [environment.validation(), environment.held_out()]
    for frozen, again in zip(sets, (environment.validation(), environment.held_out()), strict=True):
        require(frozen.tasks and frozen.checksum, f"the {frozen.name} set is empty or has no checksum")
        require(frozen == again, f"the {frozen.name} set changes from call to call")
        ids = [task.id for task in frozen.tasks]
        require(len(set(ids)) == len(ids), f"the {frozen.name} set holds a task twice")
        missing = set(environment.stratum_names()) - {task.stratum for task in frozen.tasks}
        require(not missing, f"the {frozen.name} set has no task of {', '.join(sorted(missing))}")
        shared = trained & set(ids)
        require(not shared, f"{len(shared)} tasks of the {frozen.name} set were generated for training too")
        with suppress(NoAnswer):
            _require_best(environment, frozen.tasks[:: max(1, len(ids) // 20)])
        notes.append(f"{len(ids)} {frozen.name} ({frozen.checksum[:12]})")
    both = {task.id for task in sets[0].tasks} & {task.id for task in sets[1].tasks}
    require(not both, f"{len(both)} tasks are in both fixed sets")
    return ", ".join(notes)


def check_elsewhere(subject: Subject) -> str:
    """A fresh process that loads the environment by name, as every Ray worker does, makes the same of it."""
    there = subject.elsewhere
    require("error" not in there, f"loading `{subject.name}` in a fresh process failed: {there.get('error')}")
    here = fingerprint(subject)
    for part, value in here.items():
        require(there.get(part) == value, f"{part} differ in a fresh process with another PYTHONHASHSEED")
    return f"the same {', '.join(here)}"


Check = Callable[[Subject], str]

CHECKS: dict[str, Check] = {
    "class": check_class,
    "knobs": check_knobs,
    "weights": check_weights,
    "feasibility": check_feasibility,
    "stream": check_stream,
    "prompts": check_prompts,
    "own answers": check_answers,
    "floor": check_floor,
    "any text": check_total,
    "speed": check_speed,
    "rendering": check_rendering,
    "fixed sets": check_fixed_sets,
    "fresh process": check_elsewhere,
}


def run_checks(
    environment: Environment, name: str | None = None, settings: Mapping[str, Any] | None = None, *, count: int = 40
) -> list[CheckResult]:
    """Every check, in order; one that breaks down has failed.

    ``name`` and ``settings`` are what a worker would load. Left out, they are the class's path and what the
    environment keeps as ``settings``, if it does.
    """
    if name is None:
        cls = type(environment)
        name = f"{cls.__module__}:{cls.__qualname__}"
        kept = getattr(environment, "settings", None)
        settings = kept.model_dump(mode="json") if isinstance(kept, BaseModel) else {}
    subject = Subject(environment, name, settings or {}, count)
    return [_result(title, check, subject) for title, check in CHECKS.items()]


def assert_conforms(environment: Environment, *, count: int = 40) -> None:
    """Raise ConformanceError with every check that failed: for tests."""
    failed = [str(result) for result in run_checks(environment, count=count) if not result.ok]
    require(not failed, "\n".join(failed))


def _result(title: str, check: Check, subject: Subject) -> CheckResult:
    try:
        return CheckResult(title, note=check(subject))
    except ConformanceError as broken:
        return CheckResult(title, problem=str(broken))
    except Exception as error:
        return CheckResult(title, problem=f"{type(error).__name__}: {error}")


def _one_word(text: str) -> bool:
    return len(text.split()) == 1 and text == text.strip()
