"""The engine's side of a sync: gets a shipment into its vLLM model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from actors.lora import merge_adapters
from actors.weights.errors import EngineAsleep
from actors.weights.installation import Installer, find_installer
from actors.weights.segments import Mappings
from actors.weights.shipment import PUSHED, Shipment
from actors.weights.transfer import Rendezvous
from actors.weights.transports import Pairs, unpack


class Receiver:
    """Puts shipments into one in-process ``vllm.LLM``. What it has mapped stays mapped for the next one."""

    def __init__(self, llm: Any, base: Callable[[], Pairs], *, on_cpu: bool) -> None:
        """``base`` gives the model's initial weights, which adapters are added to."""
        self._llm, self._base, self._on_cpu = llm, base, on_cpu
        self._mappings = Mappings()
        self._asleep: set[str] = set()
        self.tied = bool(getattr(llm.llm_engine.model_config.hf_config, "tie_word_embeddings", False))

    def receive(self, shipment: Shipment) -> None:
        """Replace all weights. Raises ``SyncError``: the engine sleeps, or the shipment is not what it was."""
        self.require_awake()
        if shipment.update is not None:
            self.step("start_weight_update")
            self.step("update_weights", {"update_info": shipment.update})
            self.step("finish_weight_update")
        elif shipment.transport not in PUSHED:  # under IPC the learner has called every step already
            with self.opened(shipment) as tensors:
                self._install(tensors)
        if self._asleep:  # the cache's turn, now that the weights have their place
            self.wake(*self._asleep)

    def _install(self, tensors: dict[str, Any]) -> None:
        if any(name.endswith(".lora_A.weight") for name in tensors):
            tensors = dict(merge_adapters(self._base(), tensors.items()))
        if self.installer is not None and self.installer.fits(tensors):
            self.installer.install(tensors)
        else:
            self.reload(tensors.items())

    # --------------------------------------------------------------------------------------------------- pulled weights

    @contextmanager
    def opened(self, shipment: Shipment) -> Iterator[dict[str, Any]]:
        """Its tensors by name: the transport's memory, for the time of the block."""
        with unpack(shipment, self._mappings) as pairs:
            yield dict(pairs)

    @cached_property
    def installer(self) -> Installer | None:
        """The quick way, for the models on the CPU backend whose layout is known."""
        models: list[Any] = []
        if self._on_cpu:
            self._llm.apply_model(models.append)
        return find_installer(models[0], self._llm.llm_engine.model_config.dtype) if len(models) == 1 else None

    def reload(self, pairs: Pairs) -> None:
        """vLLM's own way, for every model and device."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": with_head(pairs, self.tied)})

    # --------------------------------------------------------------------------------------------------- pushed weights

    def connect(self, rendezvous: Rendezvous, rank: int) -> None:
        """Meet the learner; blocks until it and every other engine have come."""
        self.step("init_weight_transfer_engine", {"init_info": rendezvous.engine(rank)})

    def step(self, name: str, request: dict[str, Any] | None = None) -> None:
        """One step of vLLM's weight-transfer API: init_weight_transfer_engine, start_, update_ or finish_..."""
        self.require_awake()
        getattr(self._llm, name)(*([] if request is None else [request]))

    # ------------------------------------------------------------------------------------------------------------ sleep

    def sleep(self) -> None:
        """Give weights' and cache's memory to whoever shares the GPU; the weights wait in host memory (level 1)."""
        self._llm.sleep(level=1)
        self._asleep = {"weights", "kv_cache"}

    def wake(self, *tags: str) -> None:
        """Take the memory of ``weights`` or ``kv_cache`` back, if it was given away.

        With both at once there may be no room to load.
        """
        if wanted := [tag for tag in tags if tag in self._asleep]:
            self._llm.wake_up(wanted)
            self._asleep -= set(wanted)

    def require_awake(self) -> None:
        """Raise :class:`EngineAsleep` if there is no memory for weights: vLLM would end with a segmentation fault."""
        if "weights" in self._asleep:
            raise EngineAsleep("the engine sleeps and nothing was sent to it: wake its weights before a sync")


def with_head(pairs: Pairs, tied: bool) -> Iterator[tuple[str, Any]]:
    """The pairs, and a tied ``lm_head`` beside its embedding: on CPU it would go on with its packed old weights."""
    for name, tensor in pairs:
        yield name, tensor
        if tied and name == "model.embed_tokens.weight":
            yield "lm_head.weight", tensor
