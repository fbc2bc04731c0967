"""What travels between rollouts and learner: requests, samples, groups, batches. Plain frozen records, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from environments.base import SCHEMA_VERSION, Failure, Task, Verdict


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. ``temperature`` 0 is greedy."""

    temperature: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One task to be sampled ``len(seeds)`` times, each completion with its own seed."""

    task: Task
    seeds: tuple[int, ...]


Constraint = tuple[Literal["json"], dict[str, Any]] | tuple[Literal["regex"], str]
"""What a reply is held to while it is decoded: a JSON schema or a regular expression."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion. Token in, token out: text is never re-tokenised.

    ``token_ids``, ``logprobs`` and ``versions`` have one entry per generated token: the log-probability (nats) under
    the sampling distribution, and the weight version that produced it. ``text`` is those tokens as text, with the
    ``<think>`` in front if the chat template ends the prompt with one: what the checker reads.
    """

    task_id: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    text: str
    finish_reason: str
    index: int
    seed: int
    worker: str
    schema_version: int = SCHEMA_VERSION

    @property
    def truncated(self) -> bool:
        """Whether the token limit ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Scored:
    """A sample with what the checker said, or why there is no sample or no verdict."""

    sample: Sample | None
    result: Verdict | Failure


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one task."""

    task: Task
    members: tuple[Scored, ...]

    @property
    def rewards(self) -> list[float]:
        """Rewards of the members that were judged; failures have none."""
        return [m.result.reward for m in self.members if isinstance(m.result, Verdict)]

    @property
    def has_signal(self) -> bool:
        """Whether rewards differ, so that the group yields a non-zero advantage."""
        rewards = self.rewards
        return len(rewards) > 1 and max(rewards) - min(rewards) > 1e-9


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence: the generated part carries an advantage and the log-probs it was sampled with."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    advantage: float = 0.0
    logprobs: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What the learner gets of one step: ``rows`` are reinforced, ``replay`` rows are imitated (cross-entropy).

    ``groups`` are the indices of the groups that the rows come from; the others were filtered out.
    """

    rows: tuple[Row, ...]
    replay: tuple[Row, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Weights on their way to the engines, and what proves that they arrived.

    ``shipment`` says where the weights are (the transport's own record). ``expected`` are the log-probs (nats, at
    temperature 1) that the learner finds for the generated tokens of ``probes`` with these weights; an engine that has
    loaded them must find the same within ``tolerance`` on average.
    """

    version: int
    shipment: Any
    probes: tuple[Row, ...] = ()
    expected: tuple[tuple[float, ...], ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """An engine's answer to a delivery: mean and largest |log-prob difference| (nats) over ``tokens`` probe tokens, and
    the seconds that loading and checking took."""

    worker: str
    version: int
    mean: float
    worst: float
    tokens: int
    load_s: float
    check_s: float


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What the updates on one batch report back: the weight version they made, metrics by name."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)
