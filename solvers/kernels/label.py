"""All labels of one instance: which search answers which question, and in what order they are asked."""

from __future__ import annotations

from solvers.compiling import entry_kernel, kernel
from solvers.kernels.board import measure, read_board
from solvers.kernels.group import (
    COST_VALUE,
    MEMBERS,
    PLANS_FREE,
    STEPS_VALUE,
    UNKNOWN,
    WAIT_COST_VALUE,
    cheapest,
    fastest,
    gather,
    needs_wait_by,
    try_straight,
)
from solvers.kernels.workspace import HORIZON, Array, Workspace

UNSOLVABLE, SOLVABLE, UNDECIDED = 0, 1, 2
WANT_MAKESPAN, WANT_COST, WANT_WAIT_MAKESPAN, WANT_WAIT_COST = 1, 2, 4, 8
FALLBACKS_ONLY = 16
"""Added to the wanted labels: skip the quick first stages, so that a test reaches the searches behind them."""

# columns of the answers; the first four labels stand in the order of their want bits
MAKESPAN, SUM_OF_COSTS, WAIT_MAKESPAN, WAIT_COST, LENGTH_MAKESPAN, LENGTH_COST, STATUS, EXPANSIONS = range(8)
COLUMNS = 8


@entry_kernel
def label_batch(
    ws: Workspace, holes: Array, starts: Array, goals: Array, want: int, budget: int, answers: Array, plans: Array
) -> None:
    """holes uint8 [B, n, n], cells int64 [B, k] -> answers int64 [B, COLUMNS], plans uint8 [B, 2, k, HORIZON]."""
    for b in range(len(starts)):
        label(ws, holes[b], starts[b], goals[b], want, budget, answers[b], plans[b])


@kernel
def label(
    ws: Workspace, holes: Array, starts: Array, goals: Array, want: int, budget: int, answer: Array, plans: Array
) -> None:
    """Labels of one instance. Components do not meet, so each is solved alone; the makespan is their maximum."""
    answer[:] = UNKNOWN
    answer[EXPANSIONS] = 0
    plans[:] = 4
    agents = len(starts)
    size = read_board(ws, holes, starts, goals)
    answer[STATUS] = UNSOLVABLE if size == 0 else SOLVABLE
    if size == 0:
        return
    for i in range(agents):
        measure(ws, size, ws.goal[i], -1, ws.dist[i])
    for leader in range(agents):
        gather(ws, agents, leader)
        if ws.record[leader, MEMBERS] == 0:
            continue
        solvable, expansions = _label_group(ws, size, leader, want, budget)
        answer[EXPANSIONS] += expansions
        if not solvable:
            answer[STATUS] = UNSOLVABLE
            return
    _combine(ws, agents, answer)
    if want & WANT_WAIT_MAKESPAN and answer[MAKESPAN] != UNKNOWN:
        _label_wait_makespan(ws, size, agents, budget, answer)
    for column in range(4):
        if not want >> column & 1:
            answer[column] = UNKNOWN
        elif answer[column] == UNKNOWN:
            answer[STATUS] = UNDECIDED
    for kind in range(2):
        if answer[kind] == UNKNOWN:
            answer[LENGTH_MAKESPAN + kind] = UNKNOWN
        else:
            answer[LENGTH_MAKESPAN + kind] = _write_actions(ws, agents, kind, plans[kind])


@kernel
def _label_group(ws: Workspace, size: int, leader: int, want: int, budget: int) -> tuple[bool, int]:
    """Fill the component's record; (False, .) is a proof that it has no plan."""
    quick = want & FALLBACKS_ONLY == 0
    expansions = 0
    if quick:
        straight, expansions = try_straight(ws, size, leader)
        if straight:
            return True, expansions
    solvable, more = fastest(ws, size, leader, quick, budget)
    expansions += more
    # Without proven solvability the cost search could only run into its budget as well.
    if solvable == 1 and want & (WANT_COST | WANT_WAIT_COST):
        expansions += cheapest(ws, size, leader, want & WANT_WAIT_COST != 0, quick, budget)
    return solvable != 0, expansions


@kernel
def _combine(ws: Workspace, agents: int, answer: Array) -> None:
    """Makespan is the maximum, cost the sum, a needed wait in one component a needed wait; unknown spreads."""
    answer[MAKESPAN], answer[SUM_OF_COSTS], answer[WAIT_COST] = 0, 0, 0
    for leader in range(agents):
        record = ws.record[leader]
        if record[MEMBERS] == 0:
            continue
        if answer[MAKESPAN] != UNKNOWN:
            known = record[STEPS_VALUE] != UNKNOWN
            answer[MAKESPAN] = max(answer[MAKESPAN], record[STEPS_VALUE]) if known else UNKNOWN
        if answer[SUM_OF_COSTS] != UNKNOWN:
            known = record[COST_VALUE] != UNKNOWN
            answer[SUM_OF_COSTS] = answer[SUM_OF_COSTS] + record[COST_VALUE] if known else UNKNOWN
        if record[WAIT_COST_VALUE] == 1 or answer[WAIT_COST] == 0:
            answer[WAIT_COST] = record[WAIT_COST_VALUE]


@kernel
def _label_wait_makespan(ws: Workspace, size: int, agents: int, budget: int, answer: Array) -> None:
    """A component has until the makespan of the whole instance, not only until its own."""
    answer[WAIT_MAKESPAN] = 0
    for leader in range(agents):
        if ws.record[leader, MEMBERS] == 0 or ws.record[leader, PLANS_FREE] == 1:
            continue
        needed, expansions = needs_wait_by(ws, size, leader, answer[MAKESPAN], budget)
        answer[EXPANSIONS] += expansions
        if needed == 1:
            answer[WAIT_MAKESPAN] = 1
            return
        if needed == UNKNOWN:
            answer[WAIT_MAKESPAN] = UNKNOWN


@kernel
def _write_actions(ws: Workspace, agents: int, kind: int, plan: Array) -> int:
    """Turn the cells over time into action codes; the plan's length in steps."""
    length = 0
    for i in range(agents):
        path = ws.path[kind, i]
        for step in range(HORIZON):
            if path[step + 1] == path[step]:
                continue
            length = max(length, step + 1)
            for action in range(4):
                if ws.neighbours[path[step], action] == path[step + 1]:
                    plan[i, step] = action
    return length
