"""Sets of spots as two 64-bit words, the high one empty unless the board is wide.

A move is a shift by one or by a row, in one word a rotation, so that the spots of a board lie on a ring. Where rows of
a larger board overlap on it but none of their free cells do, one word is still enough: each direction has a mask of the
spots on which its moves may land.
"""

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
    one, last = np.uint64(1), np.uint64(63)
    width = np.uint64(ws.frame[WIDTH])
    rest = np.uint64(64) - width
    low, high = np.uint64(low), np.uint64(high)
    mask = ws.mask
    if ws.frame[WIDE] == 0:
        vertical = (((low >> width) | (low << rest)) & mask[0]) | (((low << width) | (low >> rest)) & mask[2])
        return vertical | (((low >> one) | (low << last)) & mask[4]) | (((low << one) | (low >> last)) & mask[6]), high
    up_low, up_high = (low >> width) | (high << rest), high >> width
    down_low, down_high = low << width, (high << width) | (low >> rest)
    left_low, left_high = (low >> one) | (high << last), high >> one
    right_low, right_high = low << one, (high << one) | (low >> last)
    return (
        (up_low & mask[0]) | (down_low & mask[2]) | (left_low & mask[4]) | (right_low & mask[6]),
        (up_high & mask[1]) | (down_high & mask[3]) | (left_high & mask[5]) | (right_high & mask[7]),
    )
