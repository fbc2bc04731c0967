"""Sets of spots as two 64-bit words, the high one empty where the box of the components has at most 64 spots."""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel
from solvers.kernels.workspace import WIDE, WIDTH, Word, Workspace


@kernel
def bit_of(spot: int) -> tuple[Word, Word]:
    """The set of one spot."""
    bit = np.uint64(1) << np.uint64(spot & 63)
    if spot < 64:
        return bit, np.uint64(0)
    return np.uint64(0), bit


@kernel
def holds(low: Word, high: Word, spot: int) -> bool:
    """Is the spot in the set?"""
    word = np.uint64(low) if spot < 64 else np.uint64(high)
    return as_int((word >> np.uint64(spot & 63)) & np.uint64(1)) == 1


@kernel
def spread(ws: Workspace, low: Word, high: Word) -> tuple[Word, Word]:
    """All spots one move away from the set."""
    one, width = np.uint64(1), np.uint64(ws.frame[WIDTH])
    low, high = np.uint64(low), np.uint64(high)
    if ws.frame[WIDE] == 0:
        low = (
            (((low << width) | (low >> width)) & ws.mask[0]) | ((low >> one) & ws.mask[2]) | ((low << one) & ws.mask[4])
        )
        return low, high
    last, rest = np.uint64(63), np.uint64(64) - width
    up_low, up_high = (low >> width) | (high << rest), high >> width
    down_low, down_high = low << width, (high << width) | (low >> rest)
    left_low, left_high = (low >> one) | (high << last), high >> one
    right_low, right_high = low << one, (high << one) | (low >> last)
    return (
        ((up_low | down_low) & ws.mask[0]) | (left_low & ws.mask[2]) | (right_low & ws.mask[4]),
        ((up_high | down_high) & ws.mask[1]) | (left_high & ws.mask[3]) | (right_high & ws.mask[5]),
    )


@kernel
def set_frame(ws: Workspace, width: int, height: int, low: Word, high: Word) -> None:
    """Take a box of this size, with these free spots, as the ground of `spread`."""
    ws.frame[WIDTH] = width
    ws.frame[WIDE] = width * height > 64
    ws.mask[0], ws.mask[1] = low, high
    left_low, left_high = np.uint64(low), np.uint64(high)
    right_low, right_high = np.uint64(low), np.uint64(high)
    for row in range(height):
        first_low, first_high = bit_of(row * width)
        last_low, last_high = bit_of(row * width + width - 1)
        right_low, right_high = right_low & ~first_low, right_high & ~first_high
        left_low, left_high = left_low & ~last_low, left_high & ~last_high
    ws.mask[2], ws.mask[3] = left_low, left_high
    ws.mask[4], ws.mask[5] = right_low, right_high
