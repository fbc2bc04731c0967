"""What can go wrong between the learner's weights and an engine's. Each of them stops a run."""

from __future__ import annotations


class SyncError(RuntimeError):
    """An engine does not hold the learner's weights."""


class Unreachable(SyncError):
    """This process cannot open the weights: another machine or container, or a learner that is gone."""


class Overwritten(SyncError):
    """The memory of a shipment was used for other weights before or while it was read."""


class EngineAsleep(SyncError):
    """Weights were meant for an engine whose memory is released: nothing was sent."""
