"""The learning rate as a function of the update's number alone, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Schedule: TypeAlias = Literal["constant", "linear", "cosine"]


def rate_factor(update: int, schedule: Schedule, *, warmup: int, total: int | None) -> float:
    """What the base learning rate is multiplied by in update ``update`` (the first is 0).

    Linear warm-up reaches 1 in update ``warmup`` - 1. It is multiplied by the schedule over all ``total`` updates:
    ``linear`` is 1 - update / total, ``cosine`` is (1 + cos(π · update / total)) / 2 (Loshchilov & Hutter 2017).
    Both are 0 from ``total`` on. Raises :class:`ValueError` if a falling schedule has no ``total``.
    """
    factor = min(1.0, (update + 1) / warmup) if warmup else 1.0
    if schedule == "constant":
        return factor
    if total is None:
        raise ValueError(f"learner.schedule = {schedule} needs total_updates, the length of the run")
    passed = min(1.0, update / total) if total else 1.0
    return factor * (1.0 - passed if schedule == "linear" else (1.0 + math.cos(math.pi * passed)) / 2.0)
