"""The driver's side of a sync: which way the weights take, and how both ends of a push are held together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.config import SyncConfig
from actors.records import Arrival, Delivery
from actors.weights.errors import SyncError
from actors.weights.shipment import Pushed, Route
from actors.weights.transfer import Link, await_together, backend_of

__all__ = ["SyncError", "choose_route", "connect", "push"]


def choose_route(
    config: SyncConfig,
    *,
    learner_gpus: float,
    engine_gpus: float,
    learner: str,
    engines: Sequence[str],
    adapters: bool = False,
) -> Route:
    """The route for engines at these sites (see ``segments.site``); choose anew when engines come or go.

    ``adapters``: only LoRA adapters are moved, which engines must pull. Raises ``ValueError`` when the configured
    transport cannot work where the actors are.
    """
    backend = backend_of(engine_gpus) if learner_gpus and engine_gpus and not adapters else None
    together = all(place == learner for place in engines)
    transport = config.transport
    if transport == "auto":
        transport = backend or ("shared_memory" if together else "object_store")
    elif transport in ("nccl", "ipc") and transport != backend:
        needs = "a whole GPU for each engine" if transport == "nccl" else "a GPU that engine and learner share"
        raise ValueError(
            f"sync.transport = {transport} needs {needs} and all weights (rollout.gpus = {engine_gpus:g}, learner.gpus "
            f"= {learner_gpus:g}, LoRA adapters only: {'yes' if adapters else 'no'}): leave it at auto"
        )
    elif transport == "shared_memory" and not together:
        raise ValueError(
            "sync.transport = shared_memory needs the learner's first rank and all engines on one node: "
            "leave it at auto, or use object_store or disk"
        )
    return Route(transport, config.directory or "", config.bucket_mib << 20)


def connect(learner: Any, engines: Sequence[Any], backend: Pushed, config: SyncConfig) -> Link:
    """Bring a ``LearnerGroup`` and engine actors together for pushed weights, once for as long as both live."""
    rendezvous, refs = learner.connect(backend, engines, config.deadline_s)
    if backend != "ipc":
        refs = refs + [engine.connect.remote(rendezvous, rank) for rank, engine in enumerate(engines, 1)]
    update = await_together(refs, what="learner and engines to meet", deadline_s=config.deadline_s)[0]
    return Link(backend, update)


def push(learner: Any, engines: Sequence[Any], delivery: Delivery, config: SyncConfig) -> list[Arrival]:
    """One pushed sync: every rank sends while every engine receives, checks and answers.

    Ask the learner for the delivery's expected log-probs before: until this is over it does nothing else. Raises
    ``EngineAsleep`` before anything is sent, else the first error of either side or ``ActorFailure``.
    """
    asleep = [engine.require_awake.remote() for engine in engines]
    await_together(asleep, what="engines to say that they are awake", deadline_s=config.deadline_s)
    sends = learner.send()
    if delivery.shipment.transport == "ipc":  # sending calls the engines, which must be free to answer
        await_together(sends, what="the weights to be sent", deadline_s=config.deadline_s)
        sends = []
    receives = [engine.load.remote(delivery) for engine in engines]
    what = f"weight version {delivery.version} to be sent and received"
    return await_together([*sends, *receives], what=what, deadline_s=config.deadline_s)[len(sends) :]
