"""The parts of the Environment contract that most families share, so that a new one says only what is its own.

A subclass names its strata, outcomes and knobs, draws a task, asks for its answer, answers it and judges an answer. The
stream, the strata algebra, the split into training and fixed sets, feasibility and the fixed sets come from here.
"""

from __future__ import annotations

import abc
import enum
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from environments import base
from environments.base import Failure, FrozenSet, Labeller, Message, NoAnswer, Problem, StratumKnobs, Task, Verdict

SAMPLE, ENOUGH = 200, 4
"""Knobs are feasible if this many of so many draws give a task that training may use."""
PATIENCE = 4_000
"""Draws after which an item is given up. At the rarest feasible knobs this happens once in e**80 items."""
WORDS_SAMPLE, MOST_WORDS = 500, 2_000


class NoTask(ValueError):
    """No task of the wanted split could be drawn with these knobs."""


class NoSettings(BaseModel):
    """Nothing to set."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ShareKnobs(base.Knobs[StratumKnobs]):
    """One row per stratum, with its share alone."""


class NoLabels:
    """The ground truth of tasks that hold their own: an empty label for each."""

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        """One empty label per payload."""
        return [{} for _ in payloads]


class SimpleEnvironment(abc.ABC):
    """Base of single-turn environments. Which set may hold a task is decided by a hash of what it is."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    Settings: ClassVar[type[BaseModel]] = NoSettings
    Knobs: ClassVar[type[base.AnyKnobs]] = ShareKnobs
    Outcome: ClassVar[type[enum.StrEnum]]
    solved: ClassVar[frozenset[str]]
    reserved: Mapping[str, float] = {"validation": 0.05, "held_out": 0.1}
    """Fixed set -> part of all tasks that it alone may hold. Training gets the rest."""
    fixed_tasks: Mapping[str, int] = {"validation": 150, "held_out": 300}
    """Fixed set -> tasks per stratum, fewer where there are not so many."""

    def __init__(self, settings: BaseModel | None = None, labeller: Labeller | None = None) -> None:
        self.settings = settings if settings is not None else self.Settings()
        self.labeller: Labeller = labeller or NoLabels()
        self._fixed: dict[str, FrozenSet] = {}

    # ------------------------------------------------------------------------------------------ what a family must say

    @abc.abstractmethod
    def stratum_names(self) -> tuple[str, ...]:
        """The strata of this run, easiest first, one word each."""

    @abc.abstractmethod
    def draw(self, stratum: str, row: Any, rng: random.Random) -> Mapping[str, Any] | None:
        """The payload of one task, a JSON object, from ``rng`` alone; None if this draw gave none."""

    @abc.abstractmethod
    def prompt(self, task: Task) -> list[Message]:
        """The chat that asks for an answer."""

    @abc.abstractmethod
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict | Failure:
        """Judge any string, deterministically."""

    def answer(self, task: Task) -> str:
        """A best possible completion, if the family knows one."""
        raise NoAnswer(f"{self.name} knows no best answers")

    def identity(self, data: Mapping[str, Any]) -> Any:
        """What decides which set may hold a task. Tasks that differ in looks only should have one identity."""
        return data

    # ---------------------------------------------------------------------------------------------------------- knobs

    def default_knobs(self) -> base.AnyKnobs:
        """Every knob of every stratum at its default."""
        return self.Knobs.model_validate({"strata": {name: {} for name in self.stratum_names()}})

    def random_knobs(self, rng: random.Random) -> base.AnyKnobs:
        """Every knob uniform on its grid; a knob that no task can meet goes to the nearest value that works."""
        names = self.stratum_names()
        drawn = base.random_knobs(self.Knobs, type(self.default_knobs().strata[names[0]]), names, rng)
        table = drawn.model_dump()
        while problems := self.feasibility(drawn):
            for problem in problems:
                key, value = (problem.knob, problem.nearest) if problem.nearest is not None else ("share", 0)
                table["strata"][problem.stratum][key] = value
            drawn = self.Knobs.model_validate(table)
        return drawn

    def strata(self, knobs: base.AnyKnobs) -> dict[str, float]:
        """Weight of each stratum."""
        return self._own(knobs).weights()

    def reweight(self, knobs: base.AnyKnobs, weights: Mapping[str, float]) -> base.AnyKnobs:
        """The same tasks in other proportions."""
        return self._own(knobs).reweighted(weights)

    def feasibility(self, knobs: base.AnyKnobs) -> list[Problem]:
        """Rows with a share under which hardly any draw is a task for training; one knob is moved to mend it."""
        found = []
        for stratum, row in self._own(knobs).strata.items():
            if row.share and not self._can_draw(stratum, row):
                found.append(self._problem(stratum, row))
        return found

    def _can_draw(self, stratum: str, row: StratumKnobs) -> bool:
        settings = {spec.name: getattr(row, spec.name) for spec in row.specs() if spec.name != "share"}
        rng = base.stream(self.name, "feasibility", stratum, base.canonical_json(settings))
        hits = 0
        for _ in range(SAMPLE):
            data = self.draw(stratum, row, rng)
            hits += data is not None and self.split_of(data) == "train"
            if hits == ENOUGH:
                return True
        return False

    def _problem(self, stratum: str, row: StratumKnobs) -> Problem:
        reason = f"under {ENOUGH} of {SAMPLE} draws give a task that training may use"
        specs = [spec for spec in row.specs() if spec.name != "share"]
        for spec in specs:
            value = getattr(row, spec.name)
            for other in sorted(spec.grid, key=lambda v: abs(v - value)):
                if other != value and self._can_draw(stratum, row.model_copy(update={spec.name: other})):
                    return Problem(stratum, spec.name, value, reason, other)
        return Problem(stratum, "share", row.share, reason)

    def _own(self, knobs: base.AnyKnobs) -> base.AnyKnobs:
        if set(knobs.strata) != set(names := self.stratum_names()):
            raise ValueError(f"knobs have rows {list(knobs.strata)}, this run has {list(names)}")
        # Rows in table order: the stream depends on the order, the digest of the knobs doesn't.
        return knobs.model_copy(update={"strata": {name: knobs.strata[name] for name in names}})

    # ---------------------------------------------------------------------------------------------------------- tasks

    def split_of(self, data: Mapping[str, Any]) -> str:
        """The only set that may hold a task: a name of ``reserved``, or ``train``."""
        place = int(base.digest([self.name, self.identity(data)]), 16) / 2**128
        for name, part in self.reserved.items():
            if place < part:
                return name
            place -= part
        return "train"

    def generate(
        self, knobs: base.AnyKnobs, seed: int, start: int, count: int, *, split: str = "train", stage: int = 0
    ) -> list[Task]:
        """Items ``start`` .. ``start + count - 1``. Splits other than those of ``reserved`` draw training tasks."""
        knobs = self._own(knobs)
        return [self._item(knobs, knobs.digest(), seed, split, stage, i) for i in range(start, start + count)]

    def _item(self, knobs: base.AnyKnobs, knobs_digest: str, seed: int, split: str, stage: int, index: int) -> Task:
        rng = base.stream(self.name, seed, split, stage, knobs_digest, index)
        stratum = rng.choices(list(knobs.strata), [row.share for row in knobs.strata.values()])[0]
        wanted = split if split in self.reserved else "train"
        for _ in range(PATIENCE):
            data = self.draw(stratum, knobs.strata[stratum], rng)
            if data is not None and self.split_of(data) == wanted:
                return Task(self.name, base.canonical_json(data), stratum, split, index, stage, knobs_digest)
        raise NoTask(
            f"{self.name}: {PATIENCE} draws of stratum {stratum} gave no {wanted} task; its knobs: "
            f"{knobs.strata[stratum].model_dump()}"
        )

    # ----------------------------------------------------------------------------------------------------- fixed sets

    def validation(self) -> FrozenSet:
        """Fixed tasks that steer training."""
        return self._fixed_set("validation")

    def held_out(self) -> FrozenSet:
        """Fixed tasks for claims."""
        return self._fixed_set("held_out")

    def fixed(self, name: str, stratum: str) -> list[Task]:
        """The tasks of one stratum of a fixed set, each once: by default drawn at the default knobs."""
        count = self.fixed_tasks[name]
        alone = self.reweight(self.default_knobs(), {stratum: 1.0})
        drawn = self.generate(alone, 0, 0, 2 * count, split=name)
        return list({task.id: task for task in drawn}.values())[:count]

    def _fixed_set(self, name: str) -> FrozenSet:
        if name not in self._fixed:
            found = [task for stratum in self.stratum_names() for task in self.fixed(name, stratum)]
            tasks = tuple(replace(task, index=index) for index, task in enumerate(found))
            self._fixed[name] = FrozenSet(name, tasks, base.digest([task.payload for task in tasks]))
        return self._fixed[name]

    # --------------------------------------------------------------------------------------------------------- people

    def render(self, task: Task, completion: str | None = None) -> str:
        """What is asked and, given an answer, the answer and its verdict."""
        parts = [f"{task.stratum}:", *(message["content"] for message in self.prompt(task))]
        if completion is not None:
            found = self.score(task, completion)
            if isinstance(found, Failure):
                said = f"failure ({found.kind}): {found.message}"
            else:
                said = f"{found.outcome}, reward {found.reward:.3f}"
            parts += ["answer:", completion, said]
        return "\n".join(parts)

    def vocabulary(self) -> tuple[str, ...]:
        """The most frequent words of prompts and answers in a sample of training tasks, at several difficulties."""
        words: Counter[str] = Counter()
        rng = base.stream(self.name, "vocabulary")
        for knobs in (self.default_knobs(), *(self.random_knobs(rng) for _ in range(4))):
            for task in self.generate(knobs, 0, 0, WORDS_SAMPLE // 5, split="vocabulary"):
                texts = [message["content"] for message in self.prompt(task)]
                with suppress(NoAnswer):
                    texts.append(self.answer(task))
                words.update(word for text in texts for word in text.split())
        return tuple(word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORDS])
