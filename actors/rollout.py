"""Rollout workers: a vLLM engine and the environment's checker in one Ray actor, and the pool that the driver holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from actors.chat import opened_thought, prompt_ids
from actors.config import RolloutConfig
from actors.records import Constraint, Group, Request, Sample, Sampling, Scored
from actors.waiting import ActorFailure, await_all
from environments.base import Failure, FailureKind, Message, Task

Place = Callable[[str, int], dict[str, Any]]
"""Ray actor options for a readable name such as ``rollout-0``; the number counts the replacements its pool has made."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one call cost: seconds spent generating and scoring, and tokens generated."""

    generate_s: float
    score_s: float
    tokens: int


class RolloutWorker:
    """Samples completions of tasks and scores them in place (the environment declares scoring cheap)."""

    def __init__(self, name: str, model: str, config: RolloutConfig, environment: tuple[str, dict[str, Any]]) -> None:
        from actors.engine import Engine
        from environments.registry import load_environment

        self._name, self._config = name, config
        self._environment = load_environment(*environment)
        self._engine = Engine(model, config)
        self._tokenizer = self._engine.tokenizer

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
        return groups, WorkerReport(generated - started, time.perf_counter() - generated, tokens)

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

    def probe(self, tasks: Sequence[Task], new_tokens: int) -> list[Sample]:
        """A few sampled tokens after each task's prompt, for the sync check."""
        prompts = [self._tokenize(self._environment.prompt(task)) for task in tasks]
        outputs = self._sample(prompts, range(len(prompts)), Sampling(self._config.temperature, new_tokens))
        return [
            self._record(task.id, ids, 0, i, output)
            for i, (task, ids, output) in enumerate(zip(tasks, prompts, outputs, strict=True))
        ]

    def load(self, version: int, buckets: Sequence[Any]) -> int:
        """Fetch buckets from the object store and put them into the engine; returns the version now in use."""
        import ray

        from actors.weight_sync import unpack

        self._engine.load(version, (pair for ref in buckets for pair in unpack(ray.get(ref))))
        return self._engine.version

    def _sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling) -> list[Any]:
        if not prompts:
            return []
        return self._engine.generate(
            prompts, seeds, temperature=sampling.temperature, max_new_tokens=sampling.max_new_tokens
        )

    def _record(self, task_id: str, prompt: Sequence[int], index: int, seed: int, output: Any) -> Sample:
        ids = tuple(output.token_ids)
        return Sample(
            task_id=task_id,
            prompt_ids=tuple(prompt),
            token_ids=ids,
            logprobs=tuple(step[token].logprob for step, token in zip(output.logprobs, ids, strict=True)),
            versions=(self._engine.version,) * len(ids),
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


class RolloutPool:
    """The engines as one: requests in, groups out in the same order. A lost engine is replaced once per call."""

    def __init__(
        self, model: str, config: RolloutConfig, environment: tuple[str, dict[str, Any]], place: Place
    ) -> None:
        self._arguments = (model, config, environment)
        self._config, self._place = config, place
        self._names = [f"rollout-{i}" for i in range(config.workers)]
        self._weights: tuple[int, Sequence[Any]] | None = None
        self.replaced = 0
        self._actors = [self._spawn(name) for name in self._names]

    def wait_ready(self) -> None:
        """Return once every engine has loaded its model."""
        self._await([a.ready.remote() for a in self._actors], "the rollout engines to start", starting=True)

    def rollout(self, requests: Sequence[Request], sampling: Sampling) -> tuple[list[Group], list[WorkerReport]]:
        """Sample and score. Request i goes to worker i mod workers, so a run repeats exactly.

        A stripe whose worker is lost or late is tried once more on its replacement; what fails again comes back as
        ``Failure`` members, never as a reward.
        """
        count = len(self._actors)
        stripes = [list(requests[w::count]) for w in range(count)]
        refs = [self._actors[w].rollout.remote(stripe, sampling) for w, stripe in enumerate(stripes)]
        out: list[Group | None] = [None] * len(requests)
        reports = []
        for w, ref in enumerate(refs):
            groups, report = self._collect(w, ref, stripes[w], sampling)
            out[w::count] = groups
            reports.append(report)
        return [group for group in out if group is not None], reports

    def _collect(self, w: int, ref: Any, stripe: list[Request], sampling: Sampling) -> tuple[list[Group], WorkerReport]:
        what = f"{len(stripe)} prompts on {self._names[w]}"
        for attempt in range(2):
            try:
                groups, report = self._await([ref], what)[0]
                return groups, report
            except ActorFailure as lost:
                self._replace(w)
                if attempt:
                    failed = [Group(r.task, (Scored(None, lost.failure),) * len(r.seeds)) for r in stripe]
                    return failed, WorkerReport(0.0, 0.0, 0)
                ref = self._actors[w].rollout.remote(stripe, sampling)
        raise AssertionError("unreachable")

    def write(self, messages: Sequence[Message], sampling: Sampling, constraint: Constraint | None, seed: int) -> str:
        """One constrained completion on the first engine."""
        ref = self._actors[0].write.remote(messages, sampling, constraint, seed)
        return str(self._await([ref], "the engineer's reply")[0])

    def load(self, version: int, buckets: Sequence[Any], deadline_s: float) -> None:
        """Put new weights into every engine. The buckets are kept so that a replacement can load them too."""
        self._weights = (version, buckets)
        refs = [a.load.remote(version, buckets) for a in self._actors]
        await_all(
            refs, what=f"weight version {version} on all engines", deadline_s=deadline_s, setting="sync.deadline_s"
        )

    def probe(self, tasks: Sequence[Task], new_tokens: int) -> dict[str, list[Sample]]:
        """Probe samples of every engine by its name."""
        refs = [a.probe.remote(tasks, new_tokens) for a in self._actors]
        return dict(zip(self._names, self._await(refs, "probe tokens after a weight sync"), strict=True))

    def _await(self, refs: Sequence[Any], what: str, *, starting: bool = False) -> list[Any]:
        deadline = self._config.start_deadline_s if starting else self._config.deadline_s
        setting = "rollout.start_deadline_s" if starting else "rollout.deadline_s"
        return await_all(refs, what=what, deadline_s=deadline, setting=setting)

    def _spawn(self, name: str) -> Any:
        import ray

        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": str(self._config.threads),
        }
        options = {**self._place(name, self.replaced), "runtime_env": {"env_vars": environment}}
        return ray.remote(RolloutWorker).options(**options).remote(name, *self._arguments)

    def _replace(self, w: int) -> None:
        """Kill what is left of a worker and start another with the current weights in its place."""
        import ray

        ray.kill(self._actors[w])
        self.replaced += 1
        self._actors[w] = self._spawn(self._names[w])
        self._await([self._actors[w].ready.remote()], f"a replacement of {self._names[w]}", starting=True)
        if self._weights is not None:
            version, buckets = self._weights
            self._await([self._actors[w].load.remote(version, buckets)], f"weights on the new {self._names[w]}")


def _too_long(tokens: int, limit: int) -> Failure:
    return Failure(
        FailureKind.DATA,
        f"the prompt has {tokens} tokens, rollout.max_prompt_tokens is {limit}",
    )
