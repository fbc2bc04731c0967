"""Weights pushed from GPU to GPU by vLLM's weight-transfer API: NCCL between GPUs, CUDA IPC within one.

Both sides act at the same time. Under NCCL the driver starts both and awaits them together, so that an error of either
surfaces at once instead of leaving the other in a broadcast that nobody joins. Under IPC the learner's first rank calls
the engines itself, because only it has the handles of the buffer that it is filling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from actors.waiting import ActorFailure, await_all
from actors.weights.shipment import Pushed, Shipment
from actors.weights.transports import Pairs
from environments.base import FailureKind


def backend_of(gpus: float) -> Pushed | None:
    """The backend for engines of so many GPUs each: IPC where one is shared with the learner, else NCCL."""
    if not gpus:
        return None
    return "ipc" if gpus < 1 else "nccl"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where learner rank 0 and the engines meet; ``world`` counts rank 0 and every engine."""

    backend: str
    host: str
    port: int
    world: int

    def trainer(self, rank: int) -> Any:
        """vLLM's record of a learner rank. Buckets are packed: one broadcast or handle for many tensors."""
        kind = TRAINER_RECORDS[self.backend]()
        known = {"master_address": self.host, "master_port": self.port, "world_size": self.world, "packed": True}
        return kind(rank=rank, **{f.name: known[f.name] for f in fields(kind) if f.name in known})

    def engine(self, rank: int) -> dict[str, Any]:
        """vLLM's record of the engine that is ``rank`` (from 1) in the group."""
        if self.backend == "ipc":
            return {"packed": True}
        place = {"master_address": self.host, "master_port": self.port, "world_size": self.world}
        return {**place, "rank_offset": rank, "packed": True}


@dataclass(frozen=True, slots=True)
class Link:
    """A learner and engines that have met. ``update`` tells the engines what every push consists of."""

    backend: Pushed
    update: dict[str, Any]

    def shipment(self, version: int) -> Shipment:
        """Stands for weights that are pushed. Under IPC the engines are told bucket by bucket instead."""
        return Shipment(version, self.backend, update=None if self.backend == "ipc" else self.update)


def _nccl() -> Any:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo


def _ipc() -> Any:
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo


TRAINER_RECORDS: dict[str, Callable[[], Any]] = {"nccl": _nccl, "ipc": _ipc}
"""Gives the class of vLLM's record of a learner rank, by backend."""


class Sender:
    """One learner rank's end. Every rank must send, because the weights may be gathered from all of them."""

    def __init__(self, pairs: Callable[[], Pairs], rendezvous: Rendezvous, rank: int, client: Any) -> None:
        """Blocks until the engines have joined. ``client`` reaches them: :class:`DriverLed` or :class:`EngineCalls`."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        self._source = _source(pairs)
        info = rendezvous.trainer(rank)
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=self._source)

    def update(self) -> dict[str, Any]:
        """Names, dtypes and shapes of what is sent, as the engines need them beforehand."""
        entries = self._source.metadata()
        return {
            "names": [entry.name for entry in entries],
            "dtype_names": [str(entry.dtype).removeprefix("torch.") for entry in entries],
            "shapes": [list(entry.shape) for entry in entries],
        }

    def send(self) -> None:
        """Send the current weights; returns when they have left."""
        self._source.begin()
        try:
            self._engine.send_weights()
        finally:
            self._source.finish()


_NOTHING: Iterator[tuple[str, Any]] = iter(())


def _source(pairs: Callable[[], Pairs]) -> Any:
    """vLLM's two views of the same weights: what there is (asked for once: it may take a gather), and the tensors."""
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class Source(WeightSource):
        def __init__(self) -> None:
            self._metadata = [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in pairs()]
            self.pairs, self._open = pairs, _NOTHING

        def metadata(self) -> list[Any]:
            return self._metadata

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            self._open = iter(self.pairs())
            return self._open

        def begin(self) -> None:
            self._open = _NOTHING

        def finish(self) -> None:
            """Go to the end after an error too: the other ranks wait for this one in every gather."""
            for _ in self._open:
                pass

    return Source()


class DriverLed:
    """The client of a sender whose engines the driver has started itself: it has nothing to say to them."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """The driver has told them."""

    def start_weight_update(self) -> None:
        """The driver has told them."""

    def update_weights(self, update_info: Any) -> None:
        """The driver has told them."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The driver has told them."""


class EngineCalls:
    """The client of a sender that leads the engines: each call goes to all of them, and has a deadline."""

    def __init__(self, engines: Sequence[Any], deadline_s: float) -> None:
        """``engines`` are actors with ``weight_step(name, request)``, see ``Receiver.step``."""
        self._engines, self._deadline_s = engines, deadline_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Introduce the learner."""
        self._call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Have them prepare."""
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Hand over one bucket."""
        self._call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Have them use what they got."""
        self._call("finish_weight_update")

    def _call(self, step: str, request: dict[str, Any] | None = None) -> None:
        refs = [engine.weight_step.remote(step, request) for engine in self._engines]
        await_together(refs, what=f"{step} on all engines", deadline_s=self._deadline_s)


def await_together(refs: Sequence[Any], *, what: str, deadline_s: float) -> list[Any]:
    """Results of all ``refs`` in order, under one deadline; the first error of any of them ends the wait.

    Raises ``ActorFailure``: a lost actor, or the deadline. An error of an actor's own code is raised as it is.
    """
    import ray

    pending, ends = list(refs), time.monotonic() + deadline_s
    while pending:
        ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, ends - time.monotonic()))
        if not ready:
            raise ActorFailure(
                FailureKind.TIMEOUT,
                f"waited {deadline_s:g} s for {what} and {len(pending)} of {len(refs)} did not answer; raise "
                "sync.deadline_s if the work is that long. Engines may hold part of the new weights: restart them",
            )
        await_all(ready, what=what, deadline_s=deadline_s, setting="sync.deadline_s")
    return await_all(refs, what=what, deadline_s=deadline_s, setting="sync.deadline_s")
