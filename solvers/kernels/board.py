"""Reads one instance into the workspace: components, cells, neighbours, distances."""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, inlined_kernel, kernel, trailing_zeros
from solvers.kernels.bits import bit_of, holds, spread
from solvers.kernels.workspace import INF, SIZE, WIDE, WIDTH, Array, Word, Workspace


@kernel
def read_board(ws: Workspace, holes: Array, starts: Array, goals: Array) -> int:
    """Fill frame, cells, neighbours, groups, starts and goals; V, or 0 when a goal is outside its start's component."""
    size = holes.shape[0]
    low, high = _free_spots(holes)
    _lay_out(ws, size, low, high)
    room_low, room_high = np.uint64(0), np.uint64(0)
    for i in range(len(starts)):
        ws.group_of[i] = -1
    for i in range(len(starts)):
        if ws.group_of[i] >= 0:
            continue
        low, high = _flood(ws, starts[i])
        room_low, room_high = room_low | low, room_high | high
        for j in range(i, len(starts)):
            if holds(low, high, starts[j]):
                ws.group_of[j] = i
                if not holds(low, high, goals[j]):
                    return 0
    ws.frame[SIZE] = _number_cells(ws, size, room_low, room_high)
    _name_agents(ws, starts, goals)
    return as_int(ws.frame[SIZE])


@kernel
def _free_spots(holes: Array) -> tuple[Word, Word]:
    low, high = np.uint64(0), np.uint64(0)
    size = holes.shape[0]
    for row in range(size):
        for column in range(size):
            spot = row * size + column
            bit = np.uint64(holes[row, column] == 0) << np.uint64(spot & 63)
            if spot < 64:
                low |= bit
            else:
                high |= bit
    return low, high


@kernel
def _flood(ws: Workspace, source: int) -> tuple[Word, Word]:
    """The component of a spot."""
    low, high = bit_of(source)
    while True:
        more_low, more_high = spread(ws, low, high)
        more_low, more_high = more_low | low, more_high | high
        if more_low == low and more_high == high:
            return low, high
        low, high = more_low, more_high


@kernel
def _lay_out(ws: Workspace, size: int, low: Word, high: Word) -> None:
    """Row by row, as on the board: a move may land on any free spot, but not come out on the other side."""
    low, high = np.uint64(low), np.uint64(high)
    ws.frame[WIDTH], ws.frame[WIDE] = size, size > 8
    ws.mask[0], ws.mask[1], ws.mask[2], ws.mask[3] = low, high, low, high
    left_low, left_high, right_low, right_high = low, high, low, high
    for row in range(size):
        first_low, first_high = bit_of(row * size)
        last_low, last_high = bit_of(row * size + size - 1)
        right_low, right_high = right_low & ~first_low, right_high & ~first_high
        left_low, left_high = left_low & ~last_low, left_high & ~last_high
    if size == 8:
        edge = np.uint64(255)
        ws.mask[0], ws.mask[2] = low & ~(edge << np.uint64(56)), low & ~edge
    ws.mask[4], ws.mask[5], ws.mask[6], ws.mask[7] = left_low, left_high, right_low, right_high


@kernel
def _wind_up(ws: Workspace, size: int, low: Word, high: Word) -> bool:
    """Lay out the cells of a larger board in one word, each row so many spots after the last one that none meet."""
    for offset in range(62):
        # From the board's own width up to 63, then the smaller ones.
        width = 2 + (size - 2 + offset) % 62
        taken = np.uint64(0)
        row = 0
        while row < size:
            spots = _wind(_row_of(size, low, high, row), width * row)
            if taken & spots != 0:
                break
            taken |= spots
            row += 1
        if row < size:
            continue
        ws.frame[WIDTH], ws.frame[WIDE] = width, 0
        ws.mask[:] = np.uint64(0)
        before = np.uint64(0)
        for row in range(size):
            here = _row_of(size, low, high, row)
            ws.mask[2] |= _wind(here & before, width * row)
            ws.mask[0] |= _wind(here & before, width * (row - 1))
            ws.mask[4] |= _wind(here & (here >> np.uint64(1)), width * row)
            ws.mask[6] |= _wind(here & (here << np.uint64(1)), width * row)
            before = here
        return True
    return False


@inlined_kernel
def _row_of(size: int, low: Word, high: Word, row: int) -> Word:
    """The cells of a set in a row of the board, the leftmost one in the lowest bit."""
    first = row * size
    if first >= 64:
        bits = np.uint64(high) >> np.uint64(first - 64)
    else:
        bits = np.uint64(low) >> np.uint64(first)
        if first + size > 64:
            bits |= np.uint64(high) << np.uint64(64 - first)
    return bits & ((np.uint64(1) << np.uint64(size)) - np.uint64(1))


@inlined_kernel
def _wind(spots: Word, by: int) -> Word:
    """Move spots along the ring of one word."""
    spots = np.uint64(spots)
    return (spots << np.uint64(by & 63)) | (spots >> np.uint64(-by & 63))


@kernel
def _number_cells(ws: Workspace, size: int, low: Word, high: Word) -> int:
    """Number the cells of the room row by row, in one word if they fit into it; their number."""
    wound = size > 8 and _wind_up(ws, size, low, high)
    width = ws.frame[WIDTH]
    count = 0
    for row in range(size):
        for column in range(size):
            place = row * size + column
            ws.number[place] = -1
            if not holds(low, high, place):
                continue
            spot = (row * width + column) & 63 if wound else place
            ws.number[place], ws.cell[spot], ws.spot[count] = count, count, spot
            up = ws.number[place - size] if row > 0 else -1
            before = ws.number[place - 1] if column > 0 else -1
            ws.neighbours[count, 0], ws.neighbours[count, 1] = up, -1
            ws.neighbours[count, 2], ws.neighbours[count, 3] = before, -1
            if up >= 0:
                ws.neighbours[up, 1] = count
            if before >= 0:
                ws.neighbours[before, 3] = count
            count += 1
    return count


@kernel
def _name_agents(ws: Workspace, starts: Array, goals: Array) -> None:
    """Sort the agents by component and falling distance, and measure their distances."""
    count = 0
    for leader in range(len(starts)):
        first = count
        for agent in range(leader, len(starts)):
            if ws.group_of[agent] != leader:
                continue
            start, goal = ws.number[starts[agent]], ws.number[goals[agent]]
            ws.name[count], ws.start[count], ws.goal[count] = agent, start, goal
            measure(ws, goal, -1, -1, ws.dist[count])
            place = count
            while place > first and ws.dist[place - 1, ws.start[place - 1]] < ws.dist[place, ws.start[place]]:
                _swap_agents(ws, place)
                place -= 1
            count += 1


@kernel
def _swap_agents(ws: Workspace, place: int) -> None:
    """Swap an agent with the one before it."""
    for row in (ws.name, ws.start, ws.goal):
        row[place], row[place - 1] = row[place - 1], row[place]
    for v in range(ws.frame[SIZE]):
        kept = ws.dist[place, v]
        ws.dist[place, v] = ws.dist[place - 1, v]
        ws.dist[place - 1, v] = kept


@kernel
def fill_near(ws: Workspace) -> None:
    """The neighbours of every cell, as a set and as a list."""
    for v in range(ws.frame[SIZE]):
        low, high = bit_of(ws.spot[v])
        low, high = spread(ws, low, high)
        ws.near[v, 0], ws.near[v, 1] = low, high
        ways = ws.ways[v]
        ways[1] = v
        count = 1
        for action in range(4):
            u = ws.neighbours[v, action]
            if u >= 0:
                count += 1
                ways[count] = u
        ways[0] = count


@kernel
def measure(ws: Workspace, goal: int, barred: int, other: int, out: Array) -> None:
    """Distances to `goal` over all cells except `barred` and `other` (-1: none); INF where there is no way."""
    for v in range(ws.frame[SIZE]):
        out[v] = INF
    seen_low, seen_high = np.uint64(0), np.uint64(0)
    if barred >= 0:
        seen_low, seen_high = bit_of(ws.spot[barred])
    if other >= 0:
        low, high = bit_of(ws.spot[other])
        seen_low, seen_high = seen_low | low, seen_high | high
    low, high = bit_of(ws.spot[goal])
    layer = 0
    while low != 0 or high != 0:
        seen_low, seen_high = seen_low | low, seen_high | high
        rest = low
        while rest != 0:
            out[ws.cell[trailing_zeros(rest)]] = layer
            rest &= rest - np.uint64(1)
        rest = high
        while rest != 0:
            out[ws.cell[64 + trailing_zeros(rest)]] = layer
            rest &= rest - np.uint64(1)
        low, high = spread(ws, low, high)
        low, high = low & ~seen_low, high & ~seen_high
        layer += 1


@kernel
def fill_within(ws: Workspace, i: int) -> None:
    """Distances from the start of agent i, and the spots within every distance."""
    measure(ws, ws.start[i], -1, -1, ws.from_start[i])
    for radius in range(ws.frame[SIZE]):
        ws.within[i, radius, 0], ws.within[i, radius, 1] = np.uint64(0), np.uint64(0)
    for v in range(ws.frame[SIZE]):
        radius = as_int(ws.from_start[i, v])
        if radius != INF:
            low, high = bit_of(ws.spot[v])
            ws.within[i, radius, 0] |= low
            ws.within[i, radius, 1] |= high
    for radius in range(1, ws.frame[SIZE]):
        ws.within[i, radius, 0] |= ws.within[i, radius - 1, 0]
        ws.within[i, radius, 1] |= ws.within[i, radius - 1, 1]
