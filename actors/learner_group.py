"""The learner as the driver sees it: N DeepSpeed ranks in N Ray actors that live and die together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from actors.config import AlgorithmConfig, LearnerConfig
from actors.learner import LearnerRank
from actors.records import Batch, Row, UpdateResult
from actors.rollout import Place
from actors.waiting import await_all
from actors.weights.segments import site
from actors.weights.shipment import SHARED_MEMORY, Route, Shipment
from actors.weights.transfer import DriverLed, EngineCalls, Rendezvous, Sender
from actors.weights.transports import Publisher


class LearnerActor(LearnerRank):
    """A rank inside Ray: adds the ways that its weights take to the engines."""

    def site(self) -> str:
        """Where this process can share memory."""
        return site()

    def publish(self, route: Route, busy: Sequence[int]) -> Shipment | None:
        """Write the current weights to where engines pull them from; rank 0 returns the shipment."""
        if self.rank == 0:
            return self._publisher.publish(self.weights(), self.version, route, busy)
        for _ in self.weights():  # takes part in the gathering of shards, keeps nothing
            pass
        return None

    @cached_property
    def _publisher(self) -> Publisher:
        return Publisher()

    def connect(self, rendezvous: Rendezvous, engines: Sequence[Any], deadline_s: float) -> dict[str, Any]:
        """Meet the engines for pushed weights; returns what they have to know of every push."""
        client = EngineCalls(engines, deadline_s) if engines else DriverLed()
        self._sender = Sender(self.weights, rendezvous, self.rank, client)
        return self._sender.update()

    def send(self) -> None:
        """Push the current weights to the engines that are receiving."""
        self._sender.send()


class LearnerGroup:
    """All ranks as one. A lost rank ends the group: restart from the last checkpoint."""

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        temperature: float,
        place: Place,
        total_updates: int | None = None,
        *,
        lag: int = 0,
        max_new_tokens: int | None = None,
    ) -> None:
        """See :class:`LearnerRank`; ``place`` gives the Ray options of each rank's actor."""
        import ray

        self._config = config
        env = {"OMP_NUM_THREADS": str(config.threads)}
        if not config.gpus:
            env["DS_ACCELERATOR"] = "cpu"
        self._ranks = [
            ray.remote(LearnerActor)
            .options(**{**place(f"learner-{i}", 0), "runtime_env": {"env_vars": env}})
            .remote(model, config, algorithm, temperature, total_updates, lag=lag, max_new_tokens=max_new_tokens)
            for i in range(config.ranks)
        ]
        self.version = 0
        self._shipments: list[weakref.ref[Shipment]] = []

    def start(self) -> None:
        """Join the ranks into one process group and build their engines."""
        what = "the learner ranks to start"
        host, port = self._await([self._ranks[0].address.remote()], what, starting=True)[0]
        self._await([rank.setup.remote(i, host, port) for i, rank in enumerate(self._ranks)], what, starting=True)

    def update(self, batch: Batch, meanwhile: Callable[[], None] | None = None) -> UpdateResult:
        """All optimizer updates on a batch, on all ranks; the result is rank 0's (metrics are already global).

        What the driver has to do ``meanwhile`` is done while the ranks work.
        """
        import ray

        shared = ray.put(batch)
        refs = [rank.update.remote(shared) for rank in self._ranks]
        try:
            if meanwhile is not None:
                meanwhile()
        finally:  # if that failed too: who goes on must not find the ranks at work
            result: UpdateResult = self._await(refs, "the updates on a batch")[0]
        self.version = result.version
        return result

    def score(self, rows: Sequence[Row], temperature: float | None = None) -> list[list[float]]:
        """Log-probs (nats) of the rows' generated tokens under the current weights, by default at the sampling
        temperature."""
        scores: list[list[float]] = self._all("log-probs of probe tokens", "score", list(rows), temperature)[0]
        return scores

    def reference(self, rows: Sequence[Row]) -> list[list[float]]:
        """The same under the frozen initial weights; the ranks share the rows."""
        import ray

        found: dict[int, list[float]] = {}
        for part in self._all("log-probs of the reference", "reference", ray.put(list(rows))):
            found |= part
        return [found[i] for i in range(len(rows))]

    def site(self) -> str:
        """Where rank 0, which sends the weights, can share memory."""
        return str(self._await([self._ranks[0].site.remote()], "the learner's place")[0])

    def publish(self, route: Route = SHARED_MEMORY) -> Shipment:
        """The current weights, where engines can pull them from for as long as the shipment is held."""
        held = [known for ref in self._shipments if (known := ref()) is not None]
        busy = [known.slot for known in held]
        shipment: Shipment = self._all("the weights to be gathered", "publish", route, busy)[0]
        self._shipments = [weakref.ref(known) for known in (*held, shipment)]
        return shipment

    def connect(self, backend: str, engines: Sequence[Any], deadline_s: float) -> tuple[Rendezvous, list[Any]]:
        """Start to meet ``engines`` (actors) for pushed weights: where, and one reference per rank.

        NCCL engines must join at the same time (``connect(rendezvous, rank)`` with ranks from 1); await all together.
        """
        host, port = self._await([self._ranks[0].address.remote()], "the learner's address")[0]
        rendezvous = Rendezvous(backend, host, port, 1 + len(engines))
        led = list(engines) if backend == "ipc" else []
        return rendezvous, [rank.connect.remote(rendezvous, led, deadline_s) for rank in self._ranks]

    def send(self) -> list[Any]:
        """Start to push the current weights: one reference per rank, to be awaited together with the engines."""
        return [rank.send.remote() for rank in self._ranks]

    def save(self, directory: str) -> None:
        """Write a checkpoint that ``load`` reads, at any number of ranks."""
        self._all("a checkpoint to be written", "save", directory)

    def load(self, directory: str) -> None:
        """Continue from a checkpoint."""
        self.version = self._all("a checkpoint to be loaded", "load", directory)[0]

    def export(self, directory: str) -> None:
        """Write a Hugging Face model directory."""
        self._all("the model to be exported", "export", directory)

    def _all(self, what: str, method: str, *arguments: Any) -> list[Any]:
        return self._await([getattr(rank, method).remote(*arguments) for rank in self._ranks], what)

    def _await(self, refs: Sequence[Any], what: str, *, starting: bool = False) -> list[Any]:
        deadline = self._config.start_deadline_s if starting else self._config.deadline_s
        setting = "learner.start_deadline_s" if starting else "learner.deadline_s"
        return await_all(refs, what=what, deadline_s=deadline, setting=setting)
