"""The transports that engines pull from: shared memory, Ray's object store, files on a shared disk.

One loop writes the buckets of all three and one reads them; a transport says only what a bucket is made of.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from actors.weights.segments import HEADER, FileSegment, Mappings, Segment, StoredSegment
from actors.weights.shipment import Entry, Parcel, Route, Shipment

Pairs = Iterable[tuple[str, Any]]
"""(Hugging Face name, torch tensor); a tensor need only last until the next pair is asked for."""

ALIGN = 64
"""Tensors start on a cache line."""


class Publisher:
    """The learner's side: writes one version after the other, into what no shipment in use needs any more."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self._memory: dict[int, list[Segment]] = {}
        self._stage: list[Segment] = []
        self._folders: dict[int, Path] = {}

    def publish(self, pairs: Pairs, version: int, route: Route, busy: Collection[int] = ()) -> Shipment:
        """Write all ``pairs``. The slots in ``busy`` belong to shipments that are still held and stay as they are."""
        slot = -1
        if route.transport == "shared_memory":
            slot = next(i for i in range(len(busy) + 1) if i not in busy)
            opener = _reuse(self._memory.setdefault(slot, []), lambda capacity: Segment(capacity, self.name))
        elif route.transport == "object_store":
            opener = self._staged
        elif route.transport == "disk":
            slot, folder = self._new_folder(Path(route.directory), version, busy)
            opener = lambda i, capacity: FileSegment(capacity, self.name, folder / f"bucket-{i:04d}.bin")  # noqa: E731
        else:
            raise ValueError(f"sync.transport = {route.transport} sends to engines that receive, it does not publish")
        parcels = tuple(_fill(pairs, version, opener, route.bucket_bytes))
        return Shipment(version, route.transport, self.name, slot, parcels)

    def _staged(self, index: int, capacity: int) -> Segment:
        """The same memory for every bucket: the store has its own copy of those before."""
        return _reuse(self._stage, lambda size: StoredSegment(size, self.name))(0, capacity)

    def _new_folder(self, directory: Path, version: int, busy: Collection[int]) -> tuple[int, Path]:
        """A folder of its own for each version; those that no shipment in use needs are deleted."""
        for slot in self._folders.keys() - set(busy):
            shutil.rmtree(self._folders.pop(slot), ignore_errors=True)
        slot = max([*self._folders, *busy, -1]) + 1
        folder = directory / f"weights-{self.name[:8]}-{version:08d}-{slot}"
        folder.mkdir(parents=True)
        self._folders[slot] = folder
        return slot, folder


def _reuse(segments: list[Segment], make: Callable[[int], Segment]) -> Callable[[int, int], Segment]:
    """Open segment ``index`` with at least this capacity, the one of the version before if it is large enough."""

    def opener(index: int, capacity: int) -> Segment:
        if index == len(segments):
            segments.append(make(capacity))
        elif segments[index].capacity < capacity:
            segments[index] = make(capacity)
        return segments[index]

    return opener


def _fill(pairs: Pairs, version: int, opener: Callable[[int, int], Segment], bucket_bytes: int) -> Iterator[Parcel]:
    """Write tensors one after the other, in buckets of at most ``bucket_bytes`` (or one tensor)."""
    segment: Segment | None = None
    entries: list[Entry] = []
    index = used = limit = 0
    for name, tensor in pairs:
        if segment is not None and used + tensor.nbytes > limit:
            yield Parcel(segment.seal(used, version), tuple(entries))
            segment, entries, index = None, [], index + 1
        if segment is None:
            limit = HEADER + max(bucket_bytes, tensor.nbytes)
            segment, used = opener(index, limit), HEADER
            segment.begin()
        segment.write(used, tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(name, dtype, tuple(tensor.shape), used, tensor.nbytes))
        used = -(-(used + tensor.nbytes) // ALIGN) * ALIGN
    if segment is not None:
        yield Parcel(segment.seal(used, version), tuple(entries))


@contextmanager
def unpack(shipment: Shipment, mappings: Mappings) -> Iterator[Iterator[tuple[str, Any]]]:
    """The (name, torch tensor) pairs of a shipment, without a copy and in the order they were written.

    The tensors are memory of the transport: do not write to them, and keep none beyond the ``with`` block.
    """
    with ExitStack() as stack:
        yield _pairs(shipment, mappings, stack)


def _pairs(shipment: Shipment, mappings: Mappings, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    import torch

    keep = shipment.transport == "shared_memory"
    for parcel in shipment.parcels:
        reading = mappings.read(parcel.place, shipment.publisher, shipment.version, keep=keep)
        data = stack.enter_context(reading)
        for entry in parcel.entries:
            flat = data[entry.offset : entry.offset + entry.size].view(getattr(torch, entry.dtype))
            yield entry.name, flat.view(entry.shape)
