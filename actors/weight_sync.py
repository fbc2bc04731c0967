"""Weights from learner to engines through Ray's shared-memory object store, in buckets, and the check that follows.

The store hands numpy arrays to every reader without a copy; torch tensors would be copied, so bfloat16 travels as its
raw 16-bit words. A bucket is gathered completely before it is sent. After the load the engines sample a few tokens and
the learner recomputes their log-probs: version numbers alone do not show that the new weights are the ones in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.config import SyncConfig
from actors.records import Row, Sample
from environments.base import Task

if TYPE_CHECKING:
    from actors.learner_group import LearnerGroup
    from actors.rollout import RolloutPool

BUCKET_BYTES = 256 << 20


class SyncError(RuntimeError):
    """An engine does not hold the learner's weights."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor as plain words: ``words`` is a numpy array, ``dtype`` the torch dtype name it stands for."""

    name: str
    words: np.ndarray[Any, Any]
    dtype: str


@dataclass(frozen=True, slots=True)
class SyncCheck:
    """Largest and mean |log-prob difference| (nats) over the sampled tokens, and how many there were."""

    worst: float
    mean: float
    tokens: int


def pack(pairs: Iterable[tuple[str, Any]], bucket_bytes: int = BUCKET_BYTES) -> Iterator[list[Packed]]:
    """Buckets of CPU copies of (name, torch tensor) pairs, each at most ``bucket_bytes`` (or one tensor)."""
    import torch

    bucket: list[Packed] = []
    size = 0
    for name, tensor in pairs:
        host = tensor.detach().to("cpu").contiguous()
        dtype = str(host.dtype).removeprefix("torch.")
        words = host.view(torch.uint16).numpy() if host.dtype == torch.bfloat16 else host.numpy()
        if bucket and size + words.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(Packed(name, words, dtype))
        size += words.nbytes
    if bucket:
        yield bucket


def unpack(bucket: Sequence[Packed]) -> Iterator[tuple[str, Any]]:
    """The (name, torch tensor) pairs of a bucket, without a copy. The tensors are read-only memory: do not write."""
    import warnings

    import torch

    for packed in bucket:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.from_numpy(packed.words)
        yield packed.name, tensor.view(torch.bfloat16) if packed.dtype == "bfloat16" else tensor


def compare(
    worker: str, samples: Sequence[Sample], recomputed: Sequence[Sequence[float]], *, version: int, tolerance: float
) -> SyncCheck:
    """Check an engine's probe samples against the learner's log-probs of the same tokens.

    Raises :class:`SyncError` when a token was made by another version or the mean difference is over ``tolerance``.
    """
    stale = {v for sample in samples for v in sample.versions} - {version}
    if stale:
        raise SyncError(
            f"{worker} sampled with weight version {sorted(stale)} after version {version} was synchronised"
        )
    sampled = np.array([x for sample in samples for x in sample.logprobs])
    learner = np.array([x for row in recomputed for x in row])
    gap = np.abs(sampled - learner)
    check = SyncCheck(float(gap.max()), float(gap.mean()), len(gap))
    if not check.mean <= tolerance:  # also catches NaN
        raise SyncError(
            f"{worker} reports weight version {version} but its log-probs differ from the learner's by "
            f"{check.mean:.3g} nats on average over {check.tokens} sampled tokens (sync.tolerance = {tolerance:g}): "
            "the engine is not using the weights it was sent"
        )
    return check


def synchronise(learner: LearnerGroup, rollouts: RolloutPool, probes: Sequence[Task], config: SyncConfig) -> SyncCheck:
    """Bring every engine to the learner's weights and prove it on a few sampled tokens after each of ``probes``.

    Raises :class:`SyncError` when an engine holds other weights, ``ActorFailure`` past a deadline.
    """
    rollouts.load(learner.version, learner.publish(), config.deadline_s)
    by_worker = rollouts.probe(probes, max(1, config.check_tokens // len(probes)))
    samples = [sample for found in by_worker.values() for sample in found]
    scores = iter(learner.score([Row(s.prompt_ids, s.token_ids) for s in samples]))
    checks = [
        compare(name, found, [next(scores) for _ in found], version=learner.version, tolerance=config.tolerance)
        for name, found in by_worker.items()
    ]
    tokens = sum(check.tokens for check in checks)
    mean = sum(check.mean * check.tokens for check in checks) / tokens
    return SyncCheck(max(check.worst for check in checks), mean, tokens)
