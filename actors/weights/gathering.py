"""Whole parameters out of DeepSpeed's shards, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from actors.weights.shipment import BUCKET_BYTES


def gathered(
    parameters: Iterable[tuple[str, Any]], *, sharded: bool, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[tuple[str, Any]]:
    """(name, whole tensor) of each parameter, valid until the next one is asked for.

    Under ZeRO-3 (``sharded``) buckets of at most ``bucket_bytes`` are gathered by one collective each, so every rank
    must iterate to the end; a bucket is complete before its first tensor is handed out.
    """
    if not sharded:
        yield from ((name, parameter.detach()) for name, parameter in parameters)
        return
    import deepspeed

    for bucket in buckets(parameters, bucket_bytes):
        with deepspeed.zero.GatheredParameters([parameter for _, parameter in bucket]):
            yield from ((name, parameter.detach()) for name, parameter in bucket)


def buckets(parameters: Iterable[tuple[str, Any]], bucket_bytes: int) -> Iterator[list[tuple[str, Any]]]:
    """Consecutive parameters of at most ``bucket_bytes`` whole bytes together, or one larger one."""
    bucket: list[tuple[str, Any]] = []
    size = 0
    for name, parameter in parameters:
        whole = int(getattr(parameter, "ds_numel", parameter.numel())) * parameter.element_size()
        if bucket and size + whole > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, parameter))
        size += whole
    if bucket:
        yield bucket
