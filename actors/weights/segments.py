"""Memory and files that one process writes and others map, kept warm from one version of the weights to the next.

The first write into fresh pages takes seven times the copy, so segments are reused. Memory comes from ``memfd_create``:
readers open ``/proc/<pid>/fd/<n>``, nothing appears under /dev/shm (``docker --shm-size`` does not matter), and the
kernel frees it with the last process that maps it, however that process ended.
"""

from __future__ import annotations

import mmap
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from actors.weights.errors import Overwritten, Unreachable

HEADER = 64
"""Bytes before the first tensor: the publisher, and the version that the segment holds."""

_STAMP = struct.Struct("<32sq")
_WRITING = -1


def site() -> str:
    """Names the kernel, process namespace and user within which this process can share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}:{os.getuid()}"


class Segment:
    """Shared memory of one bucket, as its writer has it. Pages that were never written cost nothing."""

    def __init__(self, capacity: int, publisher: str) -> None:
        self._descriptor = os.memfd_create("envwright-weights")
        self._place = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._map_in(capacity, publisher)

    def _map_in(self, capacity: int, publisher: str) -> None:
        self.capacity, self._publisher = capacity, publisher.encode()
        os.ftruncate(self._descriptor, capacity)
        self._map = mmap.mmap(self._descriptor, capacity)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def begin(self) -> None:
        """Until :meth:`seal` a reader finds that the segment is being written."""
        self._stamp(_WRITING)

    def write(self, offset: int, tensor: Any) -> None:
        """Copy a torch tensor, from whatever device and layout, to ``offset``."""
        import torch

        region = torch.from_numpy(self._bytes)[offset : offset + tensor.nbytes]
        region.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def seal(self, used: int, version: int) -> Any:
        """The first ``used`` bytes are this version's; returns the place where readers find them."""
        self._stamp(version)
        return self._place

    def _stamp(self, version: int) -> None:
        _STAMP.pack_into(self._map, 0, self._publisher, version)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class FileSegment(Segment):
    """A bucket as a file of exactly the bytes used, durable once sealed."""

    def __init__(self, capacity: int, publisher: str, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._place = str(path)
        self._map_in(capacity, publisher)

    def seal(self, used: int, version: int) -> Any:
        """Make the bytes durable; returns the path."""
        self._stamp(version)
        self._map.flush()
        os.ftruncate(self._descriptor, used)
        os.fsync(self._descriptor)
        return self._place


class StoredSegment(Segment):
    """A bucket that goes to Ray's object store when it is sealed; its own memory is free for the next one then."""

    def seal(self, used: int, version: int) -> Any:
        """Put the bytes into the store; returns the reference."""
        import ray

        self._stamp(version)
        return ray.put(self._bytes[:used])


class Mappings:
    """A reader's open segments. Those of shared memory stay mapped, so that the next version finds warm pages."""

    def __init__(self) -> None:
        self._publisher = ""
        self._open: dict[str, tuple[int, np.ndarray[Any, Any]]] = {}

    @contextmanager
    def read(self, place: Any, publisher: str, version: int, *, keep: bool) -> Iterator[Any]:
        """The bytes at ``place`` as a uint8 torch tensor that must not be written.

        Raises :class:`Unreachable`, or :class:`Overwritten` if they are not those of ``version`` before or after.
        """
        import torch

        if publisher != self._publisher:
            self._open.clear()
            self._publisher = publisher
        data = self._mapped(place, keep) if isinstance(place, str) else _fetch(place)
        _check(data, place, publisher, version)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.from_numpy(data)
        yield tensor
        _check(data, place, publisher, version)

    def _mapped(self, place: str, keep: bool) -> np.ndarray[Any, Any]:
        try:
            with open(place, "rb") as file:
                # A descriptor's number comes round again: the inode tells whether this is what was mapped before.
                inode = os.fstat(file.fileno()).st_ino
                known, data = self._open.get(place, (-1, _NOTHING))
                if known != inode:
                    data = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        except (OSError, ValueError) as error:
            raise Unreachable(
                f"cannot open the weights at {place} ({error}): shared memory needs learner rank 0 and the engine "
                "alive in one container of one node; sync.transport = object_store works across nodes"
            ) from None
        if keep:
            self._open[place] = inode, data
        return data


_NOTHING = np.zeros(0, np.uint8)


def _fetch(place: Any) -> np.ndarray[Any, Any]:
    import ray

    data: np.ndarray[Any, Any] = ray.get(place)
    return data


def _check(data: np.ndarray[Any, Any], place: Any, publisher: str, version: int) -> None:
    writer, held = _STAMP.unpack(data[: _STAMP.size].tobytes())
    if writer != publisher.encode():
        raise Unreachable(f"{place} does not hold the weights of learner {publisher}: its process has ended")
    if held != version:
        found = "is being written" if held == _WRITING else f"holds version {held}"
        raise Overwritten(f"weight version {version} is gone, {place} {found}: hold its shipment until all have it")
