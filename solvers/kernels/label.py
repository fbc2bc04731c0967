"""All labels of one instance: which search answers which question, and in what order they are asked."""

from __future__ import annotations

from solvers.compiling import cycles, entry_kernel, kernel
from solvers.kernels.board import read_board
from solvers.kernels.cost import cheapest
from solvers.kernels.makespan import fastest, needs_wait_by, try_straight
from solvers.kernels.record import COST_VALUE, PLANS_FREE, STEPS_VALUE, UNKNOWN, WAIT_COST_VALUE, gather
from solvers.kernels.record import EXPANSIONS as SPENT
from solvers.kernels.workspace import CANCEL, Array, Workspace

UNSOLVABLE, SOLVABLE, UNDECIDED = 0, 1, 2
WANT_MAKESPAN, WANT_COST, WANT_WAIT_MAKESPAN, WANT_WAIT_COST = 1, 2, 4, 8
FALLBACKS_ONLY = 16
"""Added to the wanted labels: skip the quick first stages, so that a test reaches the searches behind them."""

# columns of the answers; the first four labels stand in the order of their want bits
MAKESPAN, SUM_OF_COSTS, WAIT_MAKESPAN, WAIT_COST, LENGTH_MAKESPAN, LENGTH_COST, STATUS, EXPANSIONS, CYCLES = range(9)
COLUMNS = 9


@entry_kernel
def label_batch(
    ws: Workspace, holes: Array, starts: Array, goals: Array, want: int, budget: int, answers: Array, plans: Array
) -> None:
    """holes uint8 [B, n, n], cells int64 [B, k] -> answers int64 [B, COLUMNS], plans uint8 [B, 2, k, HORIZON].

    `plans` comes filled with waits. A cancelled batch stops early and leaves nonsense.
    """
    for b in range(len(starts)):
        begin = cycles()
        label(ws, holes[b], starts[b], goals[b], want, budget, answers[b], plans[b])
        answers[b, CYCLES] = cycles() - begin
        if ws.counter[CANCEL]:
            break


@kernel
def label(
    ws: Workspace, holes: Array, starts: Array, goals: Array, want: int, budget: int, answer: Array, plans: Array
) -> None:
    """Labels of one instance. Components do not meet, so each is solved alone; the makespan is their maximum."""
    for column in range(COLUMNS):
        answer[column] = UNKNOWN
    answer[EXPANSIONS] = 0
    agents = len(starts)
    answer[STATUS] = UNSOLVABLE
    if read_board(ws, holes, starts, goals) == 0:
        return
    groups, first = 0, 0
    solvable = True
    while first < agents and solvable:
        first = gather(ws, agents, groups, first)
        solvable = _label_group(ws, groups, want, budget)
        answer[EXPANSIONS] += ws.record[groups, SPENT]
        groups += 1
    if not solvable:
        return
    answer[STATUS] = SOLVABLE
    _combine(ws, groups, answer)
    if want & WANT_WAIT_MAKESPAN and answer[MAKESPAN] != UNKNOWN:
        _label_wait_makespan(ws, groups, budget, answer)
    for column in range(4):
        if not want >> column & 1:
            answer[column] = UNKNOWN
        elif answer[column] == UNKNOWN:
            answer[STATUS] = UNDECIDED
    for kind in range(2):
        if answer[kind] != UNKNOWN:
            answer[LENGTH_MAKESPAN + kind] = _write_actions(ws, agents, kind, plans[kind])


@kernel
def _label_group(ws: Workspace, group: int, want: int, budget: int) -> bool:
    """Fill the component's record; False is a proof that it has no plan."""
    quick = want & FALLBACKS_ONLY == 0
    if quick and try_straight(ws, group):
        return True
    solvable = fastest(ws, group, quick, budget)
    # Without proven solvability the cost search could only run into its budget as well.
    if solvable == 1 and want & (WANT_COST | WANT_WAIT_COST):
        cheapest(ws, group, want & WANT_WAIT_COST != 0, quick, budget)
    return solvable != 0


@kernel
def _combine(ws: Workspace, groups: int, answer: Array) -> None:
    """Makespan is the maximum, cost the sum, a needed wait in one component a needed wait; unknown spreads."""
    answer[MAKESPAN], answer[SUM_OF_COSTS], answer[WAIT_COST] = 0, 0, 0
    for group in range(groups):
        record = ws.record[group]
        if answer[MAKESPAN] != UNKNOWN:
            known = record[STEPS_VALUE] != UNKNOWN
            answer[MAKESPAN] = max(answer[MAKESPAN], record[STEPS_VALUE]) if known else UNKNOWN
        if answer[SUM_OF_COSTS] != UNKNOWN:
            known = record[COST_VALUE] != UNKNOWN
            answer[SUM_OF_COSTS] = answer[SUM_OF_COSTS] + record[COST_VALUE] if known else UNKNOWN
        if record[WAIT_COST_VALUE] == 1 or answer[WAIT_COST] == 0:
            answer[WAIT_COST] = record[WAIT_COST_VALUE]


@kernel
def _label_wait_makespan(ws: Workspace, groups: int, budget: int, answer: Array) -> None:
    """A component has until the makespan of the whole instance, not only until its own."""
    answer[WAIT_MAKESPAN] = 0
    for group in range(groups):
        if ws.record[group, PLANS_FREE] == 1:
            continue
        spent = ws.record[group, SPENT]
        needed = needs_wait_by(ws, group, answer[MAKESPAN], budget)
        answer[EXPANSIONS] += ws.record[group, SPENT] - spent
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
        path, row = ws.path[kind, i], plan[ws.name[i]]
        length = max(length, ws.steps[kind, i])
        for step in range(ws.steps[kind, i]):
            for action in range(4):
                if ws.neighbours[path[step], action] == path[step + 1]:
                    row[step] = action
    return length
