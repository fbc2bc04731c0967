"""The proof that an engine computes with the weights it was sent: log-probs of the same tokens on both sides.

Version numbers show that a message arrived, and checksums say nothing of weights that a backend has packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.weights.errors import SyncError


@dataclass(frozen=True, slots=True)
class SyncCheck:
    """Largest and mean |log-prob difference| (nats) over the probe tokens, and how many there were."""

    worst: float
    mean: float
    tokens: int


def compare(
    worker: str,
    measured: Sequence[Sequence[float]],
    expected: Sequence[Sequence[float]],
    *,
    version: int,
    tolerance: float,
) -> SyncCheck:
    """Hold an engine's log-probs (nats, one list per probe row) against the learner's for the same tokens.

    Raises :class:`SyncError` when their mean difference is over ``tolerance`` or not a number.
    """
    gaps = [
        abs(a - b) for row, wanted in zip(measured, expected, strict=True) for a, b in zip(row, wanted, strict=True)
    ]
    if not gaps:
        return SyncCheck(0.0, 0.0, 0)
    gap = np.array(gaps)
    check = SyncCheck(float(gap.max()), float(gap.mean()), len(gap))
    if not check.mean <= tolerance:  # also catches NaN
        raise SyncError(
            f"{worker} reports weight version {version} but its log-probs differ from the learner's by "
            f"{check.mean:.3g} nats on average over {check.tokens} probe tokens (sync.tolerance = {tolerance:g}): "
            "the engine is not using the weights it was sent"
        )
    return check
