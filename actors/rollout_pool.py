"""The rollout engines as the driver holds them: requests in, groups out in the same order, weights between them.

Every engine works off its calls in the order they were sent. So what is submitted before a delivery of weights is
sampled with the old ones and what comes after it with the new ones, however long anything takes: a run with lag repeats
exactly, as one without does. With ``rollout.update_in_flight`` weights overtake: they are loaded between two decoding
steps of what is running, and completions go on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from actors.config import RolloutConfig
from actors.records import Arrival, Constraint, Delivery, Group, Request, Row, Sampling, Scored
from actors.rollout import Place, RolloutWorker, WorkerReport
from actors.waiting import ActorFailure, await_all
from actors.weights.transfer import Link
from environments.base import FailureKind, Message, Task

OVERTAKING = "weights"
"""Ray's concurrency group of calls that do not wait for those before them."""

ATTEMPTS = 2
"""How often a stripe may be lost before it comes back as failures."""


@dataclass(slots=True)
class _Stripe:
    """One engine's part of a ticket, and how often it was lost on the way."""

    worker: int
    requests: list[Request]
    sampling: Sampling
    ref: Any = None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch of requests on its way: :meth:`RolloutPool.collect` turns it into groups, once.

    ``deliveries`` is how many deliveries of weights were sent before it.
    """

    stripes: list[_Stripe]
    deliveries: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A delivery on its way: what was sent, and each engine's answer to come."""

    delivery: Delivery
    answers: list[tuple[Any, Any]]
    deadline_s: float


class RolloutPool:
    """N engines. A lost or late one is replaced, given the current weights and sent its open requests again."""

    def __init__(
        self, model: str, config: RolloutConfig, environment: tuple[str, dict[str, Any]], place: Place
    ) -> None:
        self._arguments = (model, config, environment)
        self._config, self._place = config, place
        self._names = [f"rollout-{i}" for i in range(config.workers)]
        self._current: Delivery | None = None
        self._link: Link | None = None
        self._sent: list[_Sent] = []
        self._settled = 0
        self._arrivals: list[Arrival] = []
        self._owed: list[list[_Stripe]] = [[] for _ in self._names]
        self.replaced = 0
        self._actors = [self._spawn(name) for name in self._names]

    def wait_ready(self) -> None:
        """Return once every engine has loaded its model."""
        self._await([a.ready.remote() for a in self._actors], "the rollout engines to start", starting=True)

    # ----------------------------------------------------------------------------------------------------- rollouts

    def rollout(self, requests: Sequence[Request], sampling: Sampling) -> tuple[list[Group], list[WorkerReport]]:
        """Sample and score, and wait for it."""
        return self.collect(self.submit(requests, sampling))

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> Ticket:
        """Send requests and return at once. Request i goes to worker i mod workers, so a run repeats exactly."""
        count = len(self._actors)
        stripes = [_Stripe(w, list(requests[w::count]), sampling) for w in range(count)]
        for stripe in stripes:
            self._owed[stripe.worker].append(stripe)
            self._send(stripe)
        return Ticket(stripes, self._settled + len(self._sent))

    def collect(self, ticket: Ticket) -> tuple[list[Group], list[WorkerReport]]:
        """Groups in the order of the ticket's requests, and what each engine says of its work.

        A stripe whose worker is lost or late is tried once more on its replacement; what fails again comes back as
        ``Failure`` members, never as a reward. Raises ``SyncError`` if weights sent before the ticket did not arrive.
        """
        self._settle(ticket.deliveries)
        count = len(self._actors)
        out: list[Group | None] = [None] * sum(len(stripe.requests) for stripe in ticket.stripes)
        reports = []
        for stripe in ticket.stripes:
            groups, report = self._receive(stripe)
            out[stripe.worker :: count] = groups
            reports.append(report)
        return [group for group in out if group is not None], reports

    def _send(self, stripe: _Stripe) -> None:
        stripe.ref = self._actors[stripe.worker].rollout.remote(stripe.requests, stripe.sampling)

    def _receive(self, stripe: _Stripe) -> tuple[list[Group], WorkerReport]:
        what = f"{len(stripe.requests)} prompts on {self._names[stripe.worker]}"
        while True:
            try:
                groups, report = self._await([stripe.ref], what)[0]
                self._owed[stripe.worker].remove(stripe)
                return groups, report
            except ActorFailure as failure:
                stripe.lost += 1
                if stripe.lost < ATTEMPTS:
                    self._replace(stripe.worker)
                    continue
                self._owed[stripe.worker].remove(stripe)
                self._replace(stripe.worker)
                members = [(Scored(None, failure.failure),) * len(request.seeds) for request in stripe.requests]
                groups = [Group(r.task, failed) for r, failed in zip(stripe.requests, members, strict=True)]
                return groups, WorkerReport()

    def write(self, messages: Sequence[Message], sampling: Sampling, constraint: Constraint | None, seed: int) -> str:
        """One constrained completion on the first engine."""
        ref = self._actors[0].write.remote(messages, sampling, constraint, seed)
        return str(self._await([ref], "the engineer's reply")[0])

    # ----------------------------------------------------------------------------------------------------- weights

    def deliver(self, delivery: Delivery, deadline_s: float) -> None:
        """Send new weights to every engine and return at once; they are in use for all that is submitted later.

        The delivery is kept, so that a replacement can load it too.
        """
        self._current = delivery
        answers = [(actor, self._load(actor, delivery)) for actor in self._actors]
        self._sent.append(_Sent(delivery, answers, deadline_s))

    def join(self, connect: Callable[[Sequence[Any]], Link]) -> Link:
        """Let engines and learner meet for pushed weights. From now on a lost engine ends the run."""
        self._link = connect(self._actors)
        return self._link

    def receive(self, push: Callable[[Sequence[Any]], list[Arrival]]) -> None:
        """Have weights pushed to every engine, after all that was submitted before, and wait for it."""
        self._arrivals += push(self._actors)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """For the time of the block the engines' GPU memory belongs to the learner that shares it.

        Send weights next: only with them do the engines get their caches back. One that is lost on the way is replaced,
        and its successor is awake.
        """
        self._ask_all("sleep", "to give its memory away")
        try:
            yield
        finally:
            self._ask_all("wake", "to take its memory back")

    def _ask_all(self, method: str, what: str) -> None:
        refs = [getattr(actor, method).remote() for actor in self._actors]
        for w, ref in enumerate(refs):
            try:
                self._await([ref], f"{self._names[w]} {what}")
            except ActorFailure as failure:
                if failure.kind is not FailureKind.INFRASTRUCTURE:
                    raise
                self._replace(w)

    def sites(self) -> list[str]:
        """Where each engine can share memory."""
        return [str(place) for place in self._await([a.site.remote() for a in self._actors], "the engines' places")]

    def settle(self) -> list[Arrival]:
        """Wait for every delivery, and say how those arrived that nobody was told of yet.

        Raises ``SyncError`` if an engine does not hold what it was sent, ``ActorFailure`` past the deadline.
        """
        self._settle(self._settled + len(self._sent))
        return self.arrivals()

    def arrivals(self) -> list[Arrival]:
        """What engines said on deliveries since the last call: one answer per engine and delivery."""
        found, self._arrivals = self._arrivals, []
        return found

    def _settle(self, count: int) -> None:
        """Wait for the first ``count`` deliveries. Whatever an engine had to do before them has its own deadline."""
        while self._settled < count:
            sent = self._sent.pop(0)
            self._settled += 1
            what = f"weight version {sent.delivery.version} on "
            busy = self._config.deadline_s if any(self._owed) else 0.0
            for w, (actor, answer) in enumerate(sent.answers):
                if actor is not self._actors[w]:
                    continue  # replaced since, and its successor started with weights as new as these
                try:
                    deadline = sent.deadline_s + busy
                    self._arrivals += await_all(
                        [answer], what=what + self._names[w], deadline_s=deadline, setting="sync.deadline_s"
                    )
                except ActorFailure as failure:
                    if failure.kind is not FailureKind.INFRASTRUCTURE:
                        raise
                    self._replace(w)

    def _load(self, actor: Any, delivery: Delivery) -> Any:
        overtaking = {"concurrency_group": OVERTAKING} if self._config.update_in_flight else {}
        return actor.load.options(**overtaking).remote(delivery)

    def probe(self, tasks: Sequence[Task], new_tokens: int) -> list[Row]:
        """A few tokens sampled by the first engine after each task's prompt: what syncs are checked on."""
        rows: list[Row] = self._await([self._actors[0].probe.remote(tasks, new_tokens)], "probe tokens")[0]
        return rows

    # ----------------------------------------------------------------------------------------------------- processes

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
        groups = {"concurrency_groups": {OVERTAKING: 1}} if self._config.update_in_flight else {}
        worker = ray.remote(**groups)(RolloutWorker) if groups else ray.remote(RolloutWorker)
        return worker.options(**options).remote(name, *self._arguments)

    def _replace(self, w: int) -> None:
        """Kill what is left of a worker and start another in its place: current weights first, then what was open."""
        import ray

        ray.kill(self._actors[w])
        if self._link is not None:
            raise ActorFailure(
                FailureKind.INFRASTRUCTURE,
                f"{self._names[w]} was lost, and no other can take its place in a group that gets its weights by "
                f"{self._link.backend}: envwright resume starts a new one; sync.transport = object_store survives it",
            )
        self.replaced += 1
        self._actors[w] = self._spawn(self._names[w])
        self._await([self._actors[w].ready.remote()], f"a replacement of {self._names[w]}", starting=True)
        if self._current is not None:
            self._await([self._load(self._actors[w], self._current)], f"weights on the new {self._names[w]}")
        for stripe in self._owed[w]:
            self._send(stripe)
