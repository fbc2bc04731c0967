"""A pool of solver processes behind the environment's ``Labeller``.

A request is a chunk of instances. A process that dies or is over the deadline is killed and replaced, and its chunk is
sent again: wall-clock time never decides a label, only the solver's own node budget does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.config import GroundTruthConfig
from actors.rollout import Place
from actors.waiting import why_lost
from environments.base import Failure, FailureKind


class SolverWorker:
    """One solver process: the environment's own in-process labeller."""

    def __init__(self, environment: tuple[str, dict[str, Any]]) -> None:
        from environments.registry import load_environment

        self._labeller = load_environment(*environment).labeller

    def ready(self) -> bool:
        """Answers once the process is up."""
        return True

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        """Labels of a chunk, in order."""
        return list(self._labeller.label(payloads))


class SolverPool:
    """A :class:`environments.base.Labeller` over Ray actors: chunks out, labels back in order."""

    def __init__(
        self,
        config: GroundTruthConfig,
        environment: tuple[str, dict[str, Any]],
        place: Place,
        worker: type = SolverWorker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._environment, self._place = config, environment, place
        self._worker, self._clock = worker, clock
        self._names = [f"solver-{i}" for i in range(config.workers)]
        self.queue = 0
        self.replaced = 0
        self._actors = [self._spawn(name) for name in self._names]

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        """Labels in order. A chunk that failed ``retries`` + 1 times comes back as typed failures."""
        size = self._config.chunk
        chunks = [list(payloads[i : i + size]) for i in range(0, len(payloads), size)]
        results = self._map("label", [(chunk,) for chunk in chunks])
        return [
            label
            for chunk, result in zip(chunks, results, strict=True)
            for label in ([result] * len(chunk) if isinstance(result, Failure) else result)
        ]

    def _map(self, method: str, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``method`` of the workers once per request; results in order, a typed failure where all tries failed."""
        import ray

        results: list[Any] = [None] * len(requests)
        waiting = [(index, 0) for index in range(len(requests))]  # (request, failed attempts)
        busy: dict[Any, tuple[int, int, int, float]] = {}  # ref -> (worker, request, failed attempts, started)
        idle = list(range(len(self._actors)))
        while waiting or busy:
            while waiting and idle:
                worker, (request, failed) = idle.pop(0), waiting.pop(0)
                ref = getattr(self._actors[worker], method).remote(*requests[request])
                busy[ref] = (worker, request, failed, self._clock())
            self.queue = len(waiting)
            oldest = min(started for *_, started in busy.values())
            patience = max(0.0, oldest + self._config.deadline_s - self._clock())
            done, _ = ray.wait(list(busy), num_returns=1, timeout=patience)
            for ref in done or self._overdue(busy):
                worker, request, failed, _ = busy.pop(ref)
                idle.append(worker)
                results[request] = self._result(ref, worker, answered=bool(done))
                if isinstance(results[request], Failure) and failed < self._config.retries:
                    waiting.append((request, failed + 1))
        return results

    def _overdue(self, busy: Mapping[Any, tuple[int, int, int, float]]) -> list[Any]:
        now = self._clock()
        return [ref for ref, (*_, started) in busy.items() if now - started >= self._config.deadline_s]

    def _result(self, ref: Any, worker: int, *, answered: bool) -> Any:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        if not answered:
            self._replace(worker)
            return Failure(
                FailureKind.TIMEOUT,
                f"{self._names[worker]} had no labels after ground_truth.deadline_s = {self._config.deadline_s:g} s",
            )
        try:
            return ray.get(ref)
        except RayActorError as error:
            self._replace(worker)
            return Failure(FailureKind.INFRASTRUCTURE, f"{self._names[worker]} died: {why_lost(error)}")
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None

    def _replace(self, worker: int) -> None:
        import ray

        ray.kill(self._actors[worker])
        self.replaced += 1
        self._actors[worker] = self._spawn(self._names[worker])

    def _spawn(self, name: str) -> Any:
        import ray

        options = {**self._place(name, self.replaced), "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
        return ray.remote(self._worker).options(**options).remote(self._environment)
