"""vLLM's two CUDA weight-transfer backends without CUDA, for the contract test on machines that have no GPU.

Everything is real but the way of the bytes: the factories, the records, both sides' steps and the layer-wise reload are
vLLM's; broadcasts go through the rendezvous' TCP store, and an IPC handle is the bytes themselves. Nothing but the
test imports this module, which is why it may load vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import (
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import TrainerInitInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from actors.weights import transfer
from actors.weights.receiver import with_head


def install() -> None:
    """Put the fakes in the place of vLLM's ``nccl`` and ``ipc`` backends, in this process."""
    transfer.TRAINER_RECORDS.update(nccl=lambda: BroadcastRecord, ipc=lambda: HandedRecord)
    WeightTransferTrainerFactory._registry.update(nccl=lambda: BroadcastTrainer, ipc=lambda: HandedTrainer)
    WeightTransferEngineFactory._registry.update(nccl=lambda: BroadcastEngine, ipc=lambda: HandedEngine)


@dataclass
class EngineRecord:
    """What an engine is told when it meets the learner."""

    master_address: str = ""
    master_port: int = 0
    world_size: int = 0
    rank_offset: int = 0
    packed: bool = True


@dataclass
class UpdateRecord:
    """What an engine is told of an update; ``tensors`` are the handles of the IPC fake."""

    names: list[str]
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)


class LayerwiseEngine(WeightTransferEngine):
    """What both fake engines share: vLLM's layer-wise reload."""

    init_info_cls, update_info_cls = EngineRecord, UpdateRecord

    def init_transfer_engine(self, init_info: EngineRecord) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Make the layers ready to be loaded."""
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Make the layers ready for use."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to release."""

    def _load(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self.model.load_weights(with_head(pairs, self.model_config.hf_config.tie_word_embeddings))


# --------------------------------------------------------------------------------------------------- broadcast, as NCCL


@dataclass
class BroadcastRecord(TrainerInitInfo):
    """A learner rank."""

    backend: ClassVar[str] = "nccl"
    master_address: str
    master_port: int
    world_size: int
    packed: bool = True


class BroadcastTrainer(TrainerWeightTransferEngine):
    """Rank 0 broadcasts every tensor; the other ranks only help to gather them."""

    @classmethod
    def trainer_init(cls, init_info: BroadcastRecord, *, client: Any, source: Any = None) -> BroadcastTrainer:
        """Join the group while the engines do."""
        trainer = cls(client=client, source=source, is_sender=init_info.is_sender)
        if trainer.is_sender:
            with ThreadPoolExecutor(1) as calls:
                told = calls.submit(client.init_weight_transfer_engine, {})
                trainer.group = _join(init_info, 0)
                told.result()
        return trainer

    def send_weights(self) -> None:
        """One round."""
        if self.is_sender:
            self.client.start_weight_update()
        for _, tensor in self.source:
            if self.is_sender:
                self.group.broadcast(tensor, src=0)
        if self.is_sender:
            self.client.finish_weight_update()


class BroadcastEngine(LayerwiseEngine):
    """Takes part in the broadcasts, in the order of the update's names."""

    def init_transfer_engine(self, init_info: EngineRecord) -> None:
        """Join the group."""
        self.group = _join(init_info, init_info.rank_offset)

    def receive_weights(self, update_info: UpdateRecord) -> None:
        """Receive and load."""
        self._load((name, self.group.broadcast(torch.empty(0), src=0)) for name in update_info.names)


def _join(info: Any, rank: int) -> Any:
    return StatelessProcessGroup.create(info.master_address, info.master_port, rank, info.world_size)


# -------------------------------------------------------------------------------------------------- handed over, as IPC


@dataclass
class HandedRecord(TrainerInitInfo):
    """A learner rank."""

    backend: ClassVar[str] = "ipc"
    packed: bool = False


class HandedTrainer(TrainerWeightTransferEngine):
    """Rank 0 hands each engine one tensor after the other and leads it through the update."""

    @classmethod
    def trainer_init(cls, init_info: HandedRecord, *, client: Any, source: Any = None) -> HandedTrainer:
        """Introduce itself to the engines."""
        trainer = cls(client=client, source=source, is_sender=init_info.is_sender)
        if trainer.is_sender:
            client.init_weight_transfer_engine({"packed": init_info.packed})
        return trainer

    def send_weights(self) -> None:
        """One round."""
        if self.is_sender:
            self.client.start_weight_update()
        for name, tensor in self.source:
            if self.is_sender:
                self.client.update_weights(asdict(UpdateRecord([name], tensors=[tensor.clone()])))
        if self.is_sender:
            self.client.finish_weight_update()


class HandedEngine(LayerwiseEngine):
    """Loads what it is handed."""

    def receive_weights(self, update_info: UpdateRecord) -> None:
        """Load."""
        self._load(zip(update_info.names, update_info.tensors, strict=True))
