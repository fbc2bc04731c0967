"""Reads one instance into the workspace: components, compact cells, neighbours, distances."""

from __future__ import annotations

import numpy as np

from solvers.compiling import kernel
from solvers.kernels.workspace import INF, Array, Workspace


@kernel
def read_board(ws: Workspace, holes: Array, starts: Array, goals: Array) -> int:
    """Fill cells, neighbours, groups, starts and goals; V, or 0 when a goal lies outside its start's component."""
    size = holes.shape[0]
    component = ws.locals.reshape(-1)
    for cell in range(size * size):
        component[cell] = -1
    agents = len(starts)
    for i in range(agents):
        if component[starts[i]] < 0:
            _flood(ws.queue, holes, component, starts[i], i)
        ws.group_of[i] = component[starts[i]]
        if component[goals[i]] != ws.group_of[i]:
            return 0
    count = 0
    for cell in range(size * size):
        ws.id_of[cell] = -1
        if component[cell] >= 0:
            ws.id_of[cell] = count
            ws.cell_of[count] = cell
            count += 1
    for v in range(count):
        ws.masks[v, 0] = np.uint64(0)
        ws.masks[v, 1] = np.uint64(0)
        row, column = ws.cell_of[v] // size, ws.cell_of[v] % size
        for action in range(4):
            u = -1
            r, c = _step(row, column, action)
            if 0 <= r < size and 0 <= c < size:
                u = ws.id_of[r * size + c]
            ws.neighbours[v, action] = u
            if u >= 0:
                ws.masks[v, u >> 6] |= np.uint64(1) << np.uint64(u & 63)
    for i in range(agents):
        ws.start[i] = ws.id_of[starts[i]]
        ws.goal[i] = ws.id_of[goals[i]]
    return count


@kernel
def _step(row: int, column: int, action: int) -> tuple[int, int]:
    """UP, DOWN, LEFT, RIGHT."""
    if action == 0:
        return row - 1, column
    if action == 1:
        return row + 1, column
    if action == 2:
        return row, column - 1
    return row, column + 1


@kernel
def _flood(queue: Array, holes: Array, component: Array, source: int, name: int) -> None:
    """Give every cell of the source's component the name."""
    size = holes.shape[0]
    component[source] = name
    queue[0] = source
    head, tail = 0, 1
    while head < tail:
        row, column = queue[head] // size, queue[head] % size
        head += 1
        for action in range(4):
            r, c = _step(row, column, action)
            if 0 <= r < size and 0 <= c < size and holes[r, c] == 0 and component[r * size + c] < 0:
                component[r * size + c] = name
                queue[tail] = r * size + c
                tail += 1


@kernel
def measure(ws: Workspace, size: int, goal: int, barred: int, out: Array) -> None:
    """Distances to `goal` over all cells except `barred` (-1: none); INF where there is no way."""
    for v in range(size):
        out[v] = INF
    out[goal] = 0
    ws.queue[0] = goal
    head, tail = 0, 1
    while head < tail:
        v = ws.queue[head]
        head += 1
        for action in range(4):
            u = ws.neighbours[v, action]
            if u >= 0 and u != barred and out[u] == INF:
                out[u] = out[v] + 1
                ws.queue[tail] = u
                tail += 1
