"""What passes between the parts of an evaluation: questions, replies, kept answers, and what a solver is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from environments.base import SCHEMA_VERSION, Failure, Task, stream

Cell = tuple[int, int]
"""(agents, size): one cell of the paper's table."""

Key = tuple[str, int]
"""(task id, sample index): what is asked once."""

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. ``temperature`` 0 is greedy; the seed of each sample is derived from ``seed``."""

    temperature: float = 0.0
    max_new_tokens: int = 8192
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """One completion wanted: the task, which of its samples, and the seed to draw it with."""

    task: Task
    sample: int
    seed: int

    @classmethod
    def of(cls, task: Task, sample: int, seed: int) -> Question:
        """The sample's own seed is a function of the evaluation's seed, the task and the sample's index alone."""
        return cls(task, sample, stream("evaluation", seed, task.id, sample).getrandbits(31))

    @property
    def key(self) -> Key:
        """What identifies it."""
        return self.task.id, self.sample


@dataclass(frozen=True, slots=True)
class Reply:
    """What a solver said. ``finish_reason`` is ``length`` if the token limit ended it.

    Token counts are None where nothing counts them. ``latency_s`` is the time of the request that was answered, in
    seconds; of a solver that answers in batches, the batch's time divided by its answers.
    """

    text: str
    finish_reason: str
    latency_s: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def truncated(self) -> bool:
        """Whether the token limit ended it."""
        return self.finish_reason == "length"


Keep = Callable[[Question, Reply | Failure], None]
"""Takes each answer as soon as it is there."""


class Solver(Protocol):
    """Who answers. Making one is cheap: models are loaded by ``answer``, which is not called if nothing is asked."""

    name: str
    """The row's name in tables."""
    deterministic: bool
    """Whether a second sample of a task could only repeat the first."""

    def identity(self) -> dict[str, Any]:
        """All that decides its answers besides the sampling, as JSON: settings of the evaluation."""
        ...

    def answer(self, questions: Sequence[Question], keep: Keep) -> None:
        """Answer each question once, in any order, and hand every reply or typed failure to ``keep`` at once."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One kept record: reply and verdict of a sample, or why there is none. A failure has no outcome and no reward."""

    task_id: str
    sample: int
    agents: int
    size: int
    stratum: str
    seed: int
    completion: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float | None = None
    outcome: str | None = None
    reward: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    failure: Mapping[str, str] | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def key(self) -> Key:
        """What identifies it."""
        return self.task_id, self.sample

    @property
    def cell(self) -> Cell:
        """Where it counts."""
        return self.agents, self.size
