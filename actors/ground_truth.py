"""A pool of solver processes behind the environment's ``Labeller``.

A batch is cut into requests. A process that dies or is over the deadline is killed and replaced, and its request is
sent again: wall-clock time never decides a label, only the solver's own node budget does.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from actors.config import GroundTruthConfig
from actors.rollout import Place
from actors.waiting import why_lost
from environments.base import Failure, FailureKind

ARRAY_ROWS = 8
"""A request of arrays holds up to this many times ``ground_truth.chunk`` instances: a row is cheap to move. The slowest
boards measured (10x10, 5 agents) then take 6 s, a tenth of the default deadline."""
FEWEST = 256
"""Rows below which a request is not cut: sending one costs about a millisecond of the driver."""
SHARES = 4
"""Requests per process of a batch between the two bounds, so that a slow one does not leave the others idle."""
IN_FLIGHT = 2
"""Requests at a process: one runs, one waits there while the answer travels. Against one at a time this gave 1.2 to 1.6
times the labels/s on 3x3 boards (2 cores, batches of 4 096) and as many on slow boards; a third gave no more."""


class SolverWorker:
    """One solver process: the environment with its own in-process labeller."""

    def __init__(self, environment: tuple[str, dict[str, Any]]) -> None:
        from environments.registry import load_environment

        self._environment = load_environment(*environment)

    @staticmethod
    def array_methods(environment: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
        """The array methods of the environment's labeller: those named ``label_...``, beside ``label``."""
        from environments.registry import load_environment

        return tuple(name for name in dir(load_environment(*environment).labeller) if name.startswith("label_"))

    def ready(self) -> None:
        """Draw one task: this loads, on a new machine compiles, whatever the ground truth needs."""
        self._environment.generate(self._environment.default_knobs(), 0, 0, 1)

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the labeller returns for a part of a batch."""
        return getattr(self._environment.labeller, method)(*arguments)


class Sent(NamedTuple):
    """A request at a process; ``failed`` counts the tries that failed before."""

    ref: Any
    request: int
    failed: int


@dataclass
class Process:
    """A solver process as the pool sees it: what it was sent, in order, and since when it works on the first of it."""

    name: str
    actor: Any
    starting: Any
    """The answer to ``ready``; None once it came."""
    since: float
    sent: deque[Sent] = field(default_factory=deque)

    @property
    def next_answer(self) -> Any:
        """An actor works in order, so this answer comes first."""
        return self.sent[0].ref if self.starting is None else self.starting


class SolverPool:
    """A :class:`environments.base.Labeller` over Ray actors: requests out, labels back in order.

    Where the environment's own labeller has array methods (``label_...``: arrays [B, ...] to a dataclass of arrays
    [B] or a ``Failure``), the pool has them too. Threads may share it; their calls take turns.
    """

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
        self._turn = threading.Lock()
        self.replaced = 0
        # Attributes of the instance: a runtime-checkable protocol does not see what __getattr__ makes up.
        for name in worker.array_methods(environment):  # type: ignore[attr-defined]
            setattr(self, name, functools.partial(self._label_arrays, name))
        self._processes = [Process(f"solver-{i}", None, None, 0.0) for i in range(config.workers)]
        for process in self._processes:
            self._start(process)

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        """Labels in order. A request that failed ``retries`` + 1 times comes back as typed failures."""
        if not payloads:
            return []
        parts = [list(payloads[part]) for part in self._parts(len(payloads), self._config.chunk)]
        results = self._map("label", [(part,) for part in parts])
        return [
            label
            for part, result in zip(parts, results, strict=True)
            for label in ([result] * len(part) if isinstance(result, Failure) else result)
        ]

    def _label_arrays(self, method: str, *arrays: Any) -> Any:
        """``method`` of the environment's labeller on arrays [B, ...]: a dataclass of arrays [B], or the first Failure.

        ValueError if the arrays differ in length.
        """
        lengths = sorted({len(array) for array in arrays})
        if len(lengths) != 1:
            raise ValueError(
                f"{method}: arrays of lengths {lengths} are not allowed; give one row per instance in each"
            )
        parts = self._parts(lengths[0], ARRAY_ROWS * self._config.chunk)
        results = self._map(method, [tuple(array[part] for array in arrays) for part in parts])
        failure = next((result for result in results if isinstance(result, Failure)), None)
        return _joined(results) if failure is None else failure

    def _parts(self, count: int, most: int) -> list[slice]:
        """Where to cut a batch; an empty one is a single empty part."""
        share = -(-count // (SHARES * len(self._processes)))
        size = min(most, max(FEWEST, share))
        return [slice(first, first + size) for first in range(0, max(1, count), size)]

    def _map(self, method: str, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``method`` once per request; results in order, a typed failure where all tries failed."""
        longest = self._config.start_deadline_s + (self._config.retries + 1) * self._config.deadline_s
        if not self._turn.acquire(timeout=longest):
            busy = f"another thread's batch has kept the solver pool busy for over {longest:g} s"
            return [Failure(FailureKind.TIMEOUT, f"{busy}: raise ground_truth.workers")] * len(requests)
        try:
            return self._run(method, requests)
        finally:
            self._turn.release()

    def _run(self, method: str, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        import ray

        results: list[Any] = [None] * len(requests)
        waiting = deque((index, 0) for index in range(len(requests)))  # (request, failed tries)
        try:
            while waiting or any(process.sent for process in self._processes):
                self._send(method, requests, waiting)
                busy = {process.next_answer: process for process in self._processes if process.sent}
                patience = max(0.0, min(map(self._deadline, busy.values())) - self._clock())
                came, _ = ray.wait(list(busy), num_returns=1, timeout=patience)
                now = self._clock()
                late = [ref for ref, process in busy.items() if ref not in came and now >= self._deadline(process)]
                for ref in [*came, *late]:
                    self._advance(busy[ref], waiting, results)
        finally:
            # Only after an exception is anything left: the next batch must not wait for answers that nobody wants.
            for process in self._processes:
                if process.sent:
                    self._replace(process)
        return results

    def _send(self, method: str, requests: Sequence[tuple[Any, ...]], waiting: deque[tuple[int, int]]) -> None:
        """Fill the processes' queues, those that are up first."""
        while waiting:
            free = [process for process in self._processes if len(process.sent) < IN_FLIGHT]
            if not free:
                return
            process = min(free, key=lambda process: (process.starting is not None, len(process.sent)))
            if process.starting is None and not process.sent:
                process.since = self._clock()
            request, failed = waiting.popleft()
            process.sent.append(Sent(process.actor.call.remote(method, *requests[request]), request, failed))

    def _deadline(self, process: Process) -> float:
        """When the next answer is overdue. A request's time runs from when the one before it was answered."""
        config = self._config
        return process.since + (config.deadline_s if process.starting is None else config.start_deadline_s)

    def _advance(self, process: Process, waiting: deque[tuple[int, int]], results: list[Any]) -> None:
        """Take the next answer of a process. A lost process has failed the first request it held, not the others."""
        result, lost = self._answer(process)
        process.since = self._clock()
        if process.starting is not None and not lost:
            process.starting = None
            return
        first = process.sent.popleft()
        if lost:
            waiting.extendleft((sent.request, sent.failed) for sent in reversed(process.sent))
            self._replace(process)
        if isinstance(result, Failure) and result.kind is not FailureKind.DATA and first.failed < self._config.retries:
            waiting.append((first.request, first.failed + 1))
        else:
            results[first.request] = result

    def _answer(self, process: Process) -> tuple[Any, bool]:
        """(The answer that came, False), or (why none did, True). An exception of the worker's own code is raised."""
        import ray
        from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

        try:
            return ray.get(process.next_answer, timeout=0), False
        except GetTimeoutError:
            if process.starting is None:
                late = f"had no labels after ground_truth.deadline_s = {self._config.deadline_s:g} s"
            else:
                late = f"was not up after ground_truth.start_deadline_s = {self._config.start_deadline_s:g} s"
            return Failure(FailureKind.TIMEOUT, f"{process.name} {late}"), True
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayActorError as error:
            return Failure(FailureKind.INFRASTRUCTURE, f"{process.name} died: {why_lost(error)}"), True
        except ObjectLostError:
            return Failure(FailureKind.INFRASTRUCTURE, f"the labels of {process.name} were lost with its node"), True

    def _replace(self, process: Process) -> None:
        import ray

        ray.kill(process.actor)
        self.replaced += 1
        self._start(process)

    def _start(self, process: Process) -> None:
        import ray

        options = {**self._place(process.name, self.replaced), "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
        process.actor = ray.remote(self._worker).options(**options).remote(self._environment)
        process.starting, process.since = process.actor.ready.remote(), self._clock()
        process.sent.clear()


def _joined(parts: Sequence[Any]) -> Any:
    """Dataclasses of arrays as one, field by field."""
    names = [entry.name for entry in fields(parts[0])]
    return type(parts[0])(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
