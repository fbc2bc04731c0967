"""Your own data and reward: rows of a JSONL file, and a function ``reward(prompt, completion, row) -> float``.

A task's payload is its row, so a process that only asks and judges (a rollout worker) never reads the file.
"""

from __future__ import annotations

import enum
import importlib
import math
import numbers
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from environments import base
from environments.base import Failure, FailureKind, Labeller, Message, NoAnswer, Outcomes, Task, Verdict
from environments.jsonl_rows import DataError, Keys, Rows, messages, read_rows
from environments.simple import SimpleEnvironment

Reward = Callable[[Any, str, dict[str, Any]], float]
"""(prompt as it stands in the row, completion, row) -> a number from 0 to 1. Must be deterministic and quick."""


class JsonlSettings(BaseModel):
    """Fixed for a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="JSONL file, one object a line; relative to where the run is started")
    reward: str = Field(description="`package.module:function`, called as reward(prompt, completion, row)")
    prompt_key: str = Field("prompt", description="key of the prompt: a text, or a list of chat messages")
    stratum_key: str | None = Field(None, description="key of the stratum; without it all rows are one, `all`")
    answer_key: str | None = Field(None, description="key of an answer that earns 1, which a small new model imitates")
    threshold: float = Field(1.0, gt=0, le=1, description="reward from which an answer counts as solved")
    validation: float = Field(0.05, gt=0, lt=1, description="part of the prompts that only the validation set holds")
    held_out: float = Field(0.1, gt=0, lt=1, description="part of the prompts that only the held-out set holds")
    checksum: str | None = Field(None, description="refuse a file whose rows have another (shown by `env check`)")

    @model_validator(mode="after")
    def _something_to_train_on(self) -> JsonlSettings:
        if self.validation + self.held_out >= 1:
            raise ValueError(
                f"validation = {self.validation} and held_out = {self.held_out} leave no rows for training: "
                "their sum must stay below 1"
            )
        return self


class JsonlOutcome(Outcomes):
    """What can become of a completion, worst first."""

    TRUNCATED = "truncated", "the token limit came before an answer with any reward"
    WRONG = "wrong", "reward 0"
    PARTIAL = "partial", "a reward above 0 and below the threshold"
    SOLVED = "solved", "a reward at the threshold or above"


class JsonlEnvironment(SimpleEnvironment):
    """The environment. The prompt's hash decides which set a row belongs to, so equal rows are never in two."""

    name: ClassVar[str] = "jsonl"
    Settings: ClassVar[type[BaseModel]] = JsonlSettings
    Outcome: ClassVar[type[enum.StrEnum]] = JsonlOutcome
    solved: ClassVar[frozenset[str]] = frozenset({JsonlOutcome.SOLVED.value})

    def __init__(self, settings: BaseModel, labeller: Labeller | None = None) -> None:
        if not isinstance(settings, JsonlSettings):
            raise TypeError(f"jsonl takes JsonlSettings, not {type(settings).__name__}")
        super().__init__(settings, labeller)
        self.settings: JsonlSettings = settings
        self.reserved = {"validation": settings.validation, "held_out": settings.held_out}
        self._reward = reward_function(settings.reward)

    @cached_property
    def data(self) -> Rows:
        """The file, read once. Raises DataError, which says what to change."""
        keys = Keys(self.settings.prompt_key, self.settings.stratum_key, self.settings.answer_key)
        rows = read_rows(self.settings.path, keys)
        if self.settings.checksum not in (None, rows.checksum):
            raise DataError(
                f"{self.settings.path}: its rows have checksum {rows.checksum}, `checksum` says "
                f"{self.settings.checksum}: give the file that the run was made for, or drop the setting"
            )
        return rows

    @cached_property
    def _by_set(self) -> dict[tuple[str, str], list[str]]:
        """(set, stratum) -> rows; every set must have some of every stratum."""
        found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for stratum, rows in self.data.strata.items():
            for row in rows:
                found[self.split_of(self.data.parsed(row)), stratum].append(row)
            for split in ("train", *self.reserved):
                if not found[split, stratum]:
                    raise DataError(
                        f"{self.settings.path}: of {len(rows)} rows of stratum {stratum} none falls to the "
                        f"{split} set: add rows, or change `validation` ({self.settings.validation:g}) and "
                        f"`held_out` ({self.settings.held_out:g})"
                    )
        return dict(found)

    def summary(self) -> str:
        """One line on the data: rows by set, duplicates, checksum."""
        sizes: defaultdict[str, int] = defaultdict(int)
        for (split, _), rows in self._by_set.items():
            sizes[split] += len(rows)
        listed = ", ".join(f"{count} {split}" for split, count in sizes.items())
        return f"{listed}; {self.data.duplicates} duplicate rows left out; checksum {self.data.checksum}"

    # ---------------------------------------------------------------------------------------------------------- tasks

    def stratum_names(self) -> tuple[str, ...]:
        """The values of the stratum key, numbers ascending, else by name."""
        return tuple(self.data.strata)

    def identity(self, data: Mapping[str, Any]) -> Any:
        """The prompt alone: rows that differ in other keys are the same question to the policy."""
        return messages(data[self.settings.prompt_key])

    def draw(self, stratum: str, row: Any, rng: random.Random) -> Mapping[str, Any] | None:
        """A training row of the stratum, or one of another set where the caller is after that."""
        return self.data.parsed(rng.choice(self.data.strata[stratum]))

    def fixed(self, name: str, stratum: str) -> list[Task]:
        """Every row of the set, in an order that does not depend on the file's."""
        return [Task(self.name, row, stratum, name, index) for index, row in enumerate(self._by_set[name, stratum])]

    def prompt(self, task: Task) -> list[Message]:
        """The row's messages; a text becomes one user turn."""
        return messages(task.data()[self.settings.prompt_key])

    def answer(self, task: Task) -> str:
        """The row's own answer. Raises NoAnswer without ``answer_key``."""
        if self.settings.answer_key is None:
            raise NoAnswer("environment.settings.answer_key is not set")
        return str(task.data()[self.settings.answer_key])

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict | Failure:
        """The reward function's number; an exception or a number outside 0..1 is a data failure."""
        where = f"reward `{self.settings.reward}` on task {task.id}"
        try:
            row = task.data()
            value = self._reward(row[self.settings.prompt_key], completion, row)
        except Exception as error:
            return Failure(FailureKind.DATA, f"{where} raised {type(error).__name__}: {error}")
        if not isinstance(value, numbers.Real) or math.isnan(value) or not 0 <= value <= 1:
            return Failure(FailureKind.DATA, f"{where} gave {value!r:.60}: it must be a number from 0 to 1")
        reward = float(value)
        if reward >= self.settings.threshold:
            outcome = JsonlOutcome.SOLVED
        elif reward > 0:
            outcome = JsonlOutcome.PARTIAL
        else:
            outcome = JsonlOutcome.TRUNCATED if truncated else JsonlOutcome.WRONG
        return Verdict(reward, outcome.value)


class BadReward(ValueError):
    """``reward`` does not lead to a function."""


def reward_function(path: str) -> Reward:
    """The function behind ``package.module:function``. Raises BadReward."""
    module_name, colon, attribute = path.partition(":")
    if not colon:
        raise BadReward(f"`reward` = {path!r} must look like package.module:function")
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except ImportError as error:
        raise BadReward(
            f"`reward` = {path!r}: cannot import `{module_name}` ({error}). It must be importable on this machine and "
            "on every worker: install its package, or put its folder on PYTHONPATH"
        ) from error
    if not callable(found):
        raise BadReward(f"`reward` = {path!r}: `{module_name}` has no function `{attribute}`")
    reward: Reward = found
    return reward


if TYPE_CHECKING:
    _contract: type[base.Environment] = JsonlEnvironment
