"""What travels from learner to engine in place of the weights: small records of where the bytes are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Pulled = Literal["shared_memory", "object_store", "disk"]
"""Transports that engines read from when they come to it."""

Pushed = Literal["nccl", "ipc"]
"""Transports of vLLM's weight-transfer API on GPUs: learner and engines act at the same time."""

PUSHED: tuple[str, ...] = get_args(Pushed)

BUCKET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Route:
    """How weights travel. ``directory`` is where ``disk`` writes, a folder that every engine's node sees."""

    transport: Pulled | Pushed = "shared_memory"
    directory: str = ""
    bucket_bytes: int = BUCKET_BYTES


SHARED_MEMORY = Route()
"""The route of a learner and engines on one node."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a parcel: its Hugging Face name, torch dtype name, shape, first byte and number of bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """One bucket of weights. ``place`` is where its bytes are: a path, or a reference into Ray's object store."""

    place: Any
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Shipment:
    """One version of the weights, for every engine to unpack.

    Whoever holds it in the driver keeps it readable: the learner reuses the memory or files of ``slot`` only when the
    driver has let go of the shipment. ``publisher`` names the process that wrote it. ``update`` is what vLLM's API
    wants to know of a pushed update; such a shipment has no parcels.
    """

    version: int
    transport: Pulled | Pushed
    publisher: str = ""
    slot: int = -1
    parcels: tuple[Parcel, ...] = ()
    update: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        return sum(entry.size for parcel in self.parcels for entry in parcel.entries)
