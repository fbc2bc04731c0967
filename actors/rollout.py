"""A rollout worker: a vLLM engine and the environment's checker in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from actors.chat import opened_thought, prompt_ids
from actors.config import RolloutConfig
from actors.records import Arrival, Constraint, Delivery, Group, Request, Row, Sample, Sampling, Scored
from actors.weights.segments import site
from actors.weights.transfer import Rendezvous
from environments.base import Failure, FailureKind, Message, Task

Place = Callable[[str, int], dict[str, Any]]
"""Ray actor options for a readable name such as ``rollout-0``; the number counts the replacements its pool has made."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one call cost: seconds spent generating and scoring, tokens generated, and ``busy_s``, all the seconds that
    the engine worked since its last report (weights and checks too)."""

    generate_s: float = 0.0
    score_s: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0


class RolloutWorker:
    """Samples completions of tasks and scores them in place (the environment declares scoring cheap)."""

    def __init__(self, name: str, model: str, config: RolloutConfig, environment: tuple[str, dict[str, Any]]) -> None:
        from actors.engine import Engine
        from environments.registry import load_environment

        self._name, self._config = name, config
        self._environment = load_environment(*environment)
        self._engine = Engine(model, config)
        self._tokenizer = self._engine.tokenizer
        self._busy_s = 0.0

    def ready(self) -> str:
        """Answers once the engine is up."""
        return self._name

    def rollout(self, requests: Sequence[Request], sampling: Sampling) -> tuple[list[Group], WorkerReport]:
        """All completions of all requests, scored, grouped by task in order."""
        started = time.perf_counter()
        prompts = [self._tokenize(self._environment.prompt(request.task)) for request in requests]
        fits = [len(ids) <= self._config.max_prompt_tokens for ids in prompts]
        flat = [(ids, seed) for r, ids, ok in zip(requests, prompts, fits, strict=True) if ok for seed in r.seeds]
        outputs = iter(self._sample([ids for ids, _ in flat], [seed for _, seed in flat], sampling))
        generated = time.perf_counter()
        groups, tokens = [], 0
        for request, ids, ok in zip(requests, prompts, fits, strict=True):
            members = []
            for index, seed in enumerate(request.seeds):
                if not ok:
                    members.append(Scored(None, _too_long(len(ids), self._config.max_prompt_tokens)))
                    continue
                sample = self._record(request.task.id, ids, index, seed, next(outputs))
                tokens += len(sample.token_ids)
                verdict = self._environment.score(request.task, sample.text, truncated=sample.truncated)
                members.append(Scored(sample, verdict))
            groups.append(Group(request.task, tuple(members)))
        ended = time.perf_counter()
        busy, self._busy_s = self._busy_s + ended - started, 0.0
        return groups, WorkerReport(generated - started, ended - generated, tokens, busy)

    def write(self, messages: Sequence[Message], sampling: Sampling, constraint: Constraint | None, seed: int) -> str:
        """One completion of a chat as text, held to a constraint: how the policy speaks as the engineer."""
        ids = self._tokenize(messages)
        limit = self._config.max_prompt_tokens + self._config.max_new_tokens
        room = limit - len(ids)
        if room < 1:
            raise ValueError(
                f"the engineer's prompt has {len(ids)} tokens, the engine holds {limit}: "
                "raise rollout.max_prompt_tokens or switch engineer.modules off"
            )
        output = self._engine.generate(
            [ids],
            [seed],
            temperature=sampling.temperature,
            max_new_tokens=min(sampling.max_new_tokens, room),
            constraint=constraint,
        )[0]
        return self._text(output.token_ids)

    def probe(self, tasks: Sequence[Task], new_tokens: int) -> list[Row]:
        """A few tokens sampled after each task's prompt, for the checks of later weights."""
        prompts = [self._tokenize(self._environment.prompt(task)) for task in tasks]
        outputs = self._sample(prompts, range(len(prompts)), Sampling(self._config.temperature, new_tokens))
        return [Row(tuple(prompt), tuple(output.token_ids)) for prompt, output in zip(prompts, outputs, strict=True)]

    def load(self, delivery: Delivery) -> Arrival:
        """Put delivered weights into the engine, between two decoding steps if it is generating, and check them."""
        with self._engine.between_steps():
            started = time.perf_counter()
            arrival = self._engine.load(self._name, delivery)
            self._busy_s += time.perf_counter() - started
        return arrival

    def sleep(self) -> None:
        """Give the GPU's memory to the learner that shares it."""
        self._engine.weights.sleep()

    def wake(self) -> None:
        """Make room for weights again; the caches follow once new ones are in (see ``Receiver.receive``)."""
        self._engine.weights.wake("weights")

    # What pushed weights ask of an engine, see ``actors/weights/transfer.py``.

    def site(self) -> str:
        """Where this process can share memory."""
        return site()

    def connect(self, rendezvous: Rendezvous, rank: int) -> None:
        """Meet the learner for pushed weights."""
        self._engine.weights.connect(rendezvous, rank)

    def require_awake(self) -> None:
        """Raise ``EngineAsleep`` if weights cannot be sent now."""
        self._engine.weights.require_awake()

    def weight_step(self, name: str, request: dict[str, Any] | None = None) -> None:
        """One step of a push that the learner leads."""
        self._engine.weights.step(name, request)

    def _sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling) -> list[Any]:
        if not prompts:
            return []
        return self._engine.generate(
            prompts, seeds, temperature=sampling.temperature, max_new_tokens=sampling.max_new_tokens
        )

    def _record(self, task_id: str, prompt: Sequence[int], index: int, seed: int, output: Any) -> Sample:
        ids = tuple(output.token_ids)
        if output.logprobs.token_ids != list(ids):
            raise RuntimeError(f"{self._name}: log-probs are of tokens {output.logprobs.token_ids}, sampled were {ids}")
        return Sample(
            task_id=task_id,
            prompt_ids=tuple(prompt),
            token_ids=ids,
            logprobs=tuple(output.logprobs.logprobs),
            versions=tuple(
                int(span.version) for span in output.weight_versions or () for _ in range(span.start, span.end)
            ),
            text=self._thought + self._text(ids),
            finish_reason=str(output.finish_reason),
            index=index,
            seed=seed,
            worker=self._name,
        )

    def _tokenize(self, messages: Sequence[Message]) -> list[int]:
        return prompt_ids(self._tokenizer, messages, thinking=self._config.thinking)

    @cached_property
    def _thought(self) -> str:
        return opened_thought(self._tokenizer, thinking=self._config.thinking)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _too_long(tokens: int, limit: int) -> Failure:
    return Failure(
        FailureKind.DATA,
        f"the prompt has {tokens} tokens, rollout.max_prompt_tokens is {limit}",
    )
