"""Reads one instance into the workspace: components, cells, neighbours, distances."""

from __future__ import annotations

import numpy as np

from solvers.compiling import kernel, trailing_zeros
from solvers.kernels.bits import bit_of, holds, set_frame, spread
from solvers.kernels.workspace import INF, SIZE, WIDTH, Array, Word, Workspace


@kernel
def read_board(ws: Workspace, holes: Array, starts: Array, goals: Array) -> int:
    """Fill frame, cells, neighbours, groups, starts and goals; V, or 0 when a goal is outside its start's component."""
    size = holes.shape[0]
    low, high = _free_spots(holes)
    set_frame(ws, size, size, low, high)
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
    return _number_cells(ws, size, room_low, room_high, starts, goals)


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
def _number_cells(ws: Workspace, size: int, low: Word, high: Word, starts: Array, goals: Array) -> int:
    """Number the cells of the room and, on a large board, move it into its bounding box if one word then suffices."""
    top, bottom, left, right = 0, size - 1, 0, size - 1
    if size > 8:
        top, bottom, left, right = _box(size, low, high)
        if (bottom - top + 1) * (right - left + 1) > 64:
            top, bottom, left, right = 0, size - 1, 0, size - 1
    width, height = right - left + 1, bottom - top + 1
    count = 0
    moved_low, moved_high = np.uint64(0), np.uint64(0)
    for row in range(height):
        for column in range(width):
            spot = row * width + column
            ws.cell[spot] = -1
            if holds(low, high, (row + top) * size + column + left):
                bit_low, bit_high = bit_of(spot)
                moved_low, moved_high = moved_low | bit_low, moved_high | bit_high
                ws.cell[spot] = count
                ws.spot[count] = spot
                up = ws.cell[spot - width] if row > 0 else -1
                before = ws.cell[spot - 1] if column > 0 else -1
                ws.neighbours[count, 0], ws.neighbours[count, 1] = up, -1
                ws.neighbours[count, 2], ws.neighbours[count, 3] = before, -1
                if up >= 0:
                    ws.neighbours[up, 1] = count
                if before >= 0:
                    ws.neighbours[before, 3] = count
                count += 1
    set_frame(ws, width, height, moved_low, moved_high)
    ws.frame[SIZE] = count
    _name_agents(ws, size, top, left, starts, goals)
    return count


@kernel
def _name_agents(ws: Workspace, size: int, top: int, left: int, starts: Array, goals: Array) -> None:
    """Sort the agents by component and falling distance, and measure their distances."""
    width = ws.frame[WIDTH]
    count = 0
    for leader in range(len(starts)):
        first = count
        for agent in range(leader, len(starts)):
            if ws.group_of[agent] != leader:
                continue
            start = ws.cell[(starts[agent] // size - top) * width + starts[agent] % size - left]
            goal = ws.cell[(goals[agent] // size - top) * width + goals[agent] % size - left]
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
def _box(size: int, low: Word, high: Word) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of a set on the whole board."""
    top, bottom, left, right = size, -1, size, -1
    for half in range(2):
        rest = np.uint64(low) if half == 0 else np.uint64(high)
        while rest != 0:
            spot = 64 * half + trailing_zeros(rest)
            rest &= rest - np.uint64(1)
            top, bottom = min(top, spot // size), max(bottom, spot // size)
            left, right = min(left, spot % size), max(right, spot % size)
    return top, bottom, left, right


@kernel
def fill_near(ws: Workspace) -> None:
    """The neighbours of every cell as a set."""
    for v in range(ws.frame[SIZE]):
        low, high = bit_of(ws.spot[v])
        low, high = spread(ws, low, high)
        ws.near[v, 0], ws.near[v, 1] = low, high


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
