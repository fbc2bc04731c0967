"""The questions about the agents of one component, each answered by the cheapest search that is exact for it."""

from __future__ import annotations

from solvers.compiling import as_int, kernel
from solvers.kernels.board import measure
from solvers.kernels.conflicts import least_beyond_horizon, resolve_conflicts
from solvers.kernels.pairs import fill_pair_excess, fill_pair_steps
from solvers.kernels.reach import MEET, SEPARATE, meet
from solvers.kernels.search import CAPPED, COST, EXHAUSTED, FOUND, STEPS, search
from solvers.kernels.store import read_path
from solvers.kernels.workspace import AGENTS, COSTS, HORIZON, MOMENTS, Workspace

UNKNOWN = -1
BY_STEPS, BY_COST = 0, 1

# columns of Workspace.record
MEMBERS, HAS_STEPS, HAS_EXCESS, STEPS_VALUE, COST_VALUE, PLANS_FREE, WAIT_COST_VALUE = range(7)

FIRST_TRY = 300
"""Expansions for each of the searches without tables: most instances end there, the rest lose little."""
SPLIT_CAP = 400
"""Nodes of conflict-based search; those it does not solve by then it rarely solves with twenty times as many."""
BEFORE_PROOF = 20_000
"""Expansions of the makespan search, and of a proof by three agents, before more is spent on an instance."""
MEETING_SHARE = 10
"""A two-sided expansion moves all agents at once and costs about ten of the others."""


@kernel
def gather(ws: Workspace, agents: int, leader: int) -> None:
    """Start the record of the component led by its lowest agent; members sorted by falling distance."""
    record, order = ws.record[leader], ws.order[leader]
    record[:] = 0
    record[STEPS_VALUE], record[COST_VALUE], record[WAIT_COST_VALUE] = UNKNOWN, UNKNOWN, UNKNOWN
    count = 0
    for i in range(agents):
        if ws.group_of[i] != leader:
            continue
        place = count
        while place > 0 and _distance(ws, order[place - 1]) < _distance(ws, i):
            order[place] = order[place - 1]
            place -= 1
        order[place] = i
        count += 1
    record[MEMBERS] = count


@kernel
def _distance(ws: Workspace, i: int) -> int:
    return as_int(ws.dist[i, ws.start[i]])


@kernel
def _keep_plan(ws: Workspace, leader: int, kind: int, entry: int) -> int:
    """Read the found plan into ws.path, staying at the goals to the horizon; its steps or -1 when it is too long."""
    order, members = ws.order[leader], ws.record[leader, MEMBERS]
    steps = read_path(ws, entry, order, members, ws.path[kind])
    if steps >= 0:
        for q in range(members):
            ws.path[kind, order[q], steps + 1 :] = ws.goal[order[q]]
    return steps


@kernel
def _plan_waits(ws: Workspace, leader: int, kind: int) -> bool:
    """Does an agent of the kept plan stand still before its final arrival?"""
    for q in range(ws.record[leader, MEMBERS]):
        path = ws.path[kind, ws.order[leader, q]]
        moving = False
        for step in range(HORIZON - 1, -1, -1):
            if path[step] != path[step + 1]:
                moving = True
            elif moving:
                return True
    return False


@kernel
def try_straight(ws: Workspace, size: int, leader: int) -> tuple[bool, int]:
    """A plan in which every agent walks a shortest path answers all questions at once: optimal in both, no waits."""
    record = ws.record[leader]
    order, members = ws.order[leader], record[MEMBERS]
    status, _, expansions, entry = search(ws, size, order, members, COST, False, False, 0, FIRST_TRY)
    if status != FOUND:
        return False, expansions
    record[STEPS_VALUE] = _keep_plan(ws, leader, BY_STEPS, entry)
    _keep_plan(ws, leader, BY_COST, entry)
    record[COST_VALUE] = 0
    for q in range(members):
        record[COST_VALUE] += _distance(ws, order[q])
    record[PLANS_FREE] = 1
    record[WAIT_COST_VALUE] = 0
    return True, expansions


@kernel
def fastest(ws: Workspace, size: int, leader: int, quick: bool, budget: int) -> tuple[int, int]:
    """Settle the makespan; (1 solvable | 0 proven unsolvable | -1 open, expansions)."""
    record = ws.record[leader]
    order, members = ws.order[leader], record[MEMBERS]
    longest = _distance(ws, order[0])
    status, steps, expansions, entry = search(
        ws, size, order, members, STEPS, True, False, longest, min(budget, FIRST_TRY if quick else 0)
    )
    solvable = UNKNOWN
    if status != FOUND:
        _fill_steps(ws, size, leader)
        status, steps, more, entry = search(
            ws, size, order, members, STEPS, True, True, COSTS - 1, min(budget, BEFORE_PROOF if quick else 0)
        )
        expansions += more
        if status == CAPPED:
            solvable, more = _settle_by_subsets(ws, leader, budget)
            expansions += more
            if solvable == UNKNOWN and (budget > BEFORE_PROOF or not quick):
                status, steps, more, entry = search(ws, size, order, members, STEPS, True, True, COSTS - 1, budget)
                expansions += more
            if status == CAPPED and solvable == UNKNOWN:
                verdict, more = meet(ws, order, members, 1 + budget // MEETING_SHARE)
                expansions += more
                solvable = 0 if verdict == SEPARATE else 1 if verdict == MEET else UNKNOWN
            if solvable == 0:
                return 0, expansions
    if status == EXHAUSTED:
        return 0, expansions
    if status == FOUND:
        solvable = 1
        if _keep_plan(ws, leader, BY_STEPS, entry) >= 0:
            record[STEPS_VALUE] = steps
            record[PLANS_FREE] = 0 if _plan_waits(ws, leader, BY_STEPS) else 1
    return solvable, expansions


@kernel
def _settle_by_subsets(ws: Workspace, leader: int, budget: int) -> tuple[int, int]:
    """(0: proven unsolvable, else UNKNOWN; expansions). Three agents that cannot pass each other are proof enough.

    The more agents, the dearer an expansion and the fewer of them: a proof is quick where agents are locked in.
    """
    members = ws.record[leader, MEMBERS]
    subset = ws.order[AGENTS]
    expansions = 0
    for count in range(3, members + 1):
        for chosen in range(1 << members):
            taken = 0
            for q in range(members):
                if chosen >> q & 1:
                    if taken < count:
                        subset[taken] = ws.order[leader, q]
                    taken += 1
            if taken != count:
                continue
            verdict, more = meet(ws, subset, count, min(budget, BEFORE_PROOF >> 2 * (count - 3)))
            expansions += more
            if verdict == SEPARATE:
                return 0, expansions
    return UNKNOWN, expansions


@kernel
def cheapest(ws: Workspace, size: int, leader: int, want_wait: bool, quick: bool, budget: int) -> int:
    """Settle the sum of costs and whether each cheapest plan has a wait; expansions."""
    record = ws.record[leader]
    order, members = ws.order[leader], record[MEMBERS]
    least = 0
    for q in range(members):
        least += _distance(ws, order[q])
    cost, node, expansions = resolve_conflicts(ws, order, members, min(budget, SPLIT_CAP if quick else 0))
    if 0 <= cost <= least_beyond_horizon(ws, order, members):
        _keep_walks(ws, leader, node)
        record[COST_VALUE] = cost
    else:
        _fill_excess(ws, size, leader)
        status, excess, more, entry = search(ws, size, order, members, COST, True, True, COSTS - 1, budget)
        expansions += more
        if status != FOUND or _keep_plan(ws, leader, BY_COST, entry) < 0:
            return expansions
        record[COST_VALUE] = least + excess
    if want_wait:
        expansions += _label_wait_cost(ws, size, leader, record[COST_VALUE] - least, budget)
    return expansions


@kernel
def _keep_walks(ws: Workspace, leader: int, node: int) -> None:
    """Copy the plan of conflict-based search into ws.path."""
    for q in range(ws.record[leader, MEMBERS]):
        i = ws.order[leader, q]
        for t in range(HORIZON + 1):
            ws.path[BY_COST, i, t] = ws.walk[node, i, min(t, MOMENTS - 1)]


@kernel
def _label_wait_cost(ws: Workspace, size: int, leader: int, excess: int, budget: int) -> int:
    """Does every plan of this excess have a wait? Expansions; the record stays unknown when the budget runs out."""
    record = ws.record[leader]
    if not _plan_waits(ws, leader, BY_COST):
        record[WAIT_COST_VALUE] = 0
        return 0
    if excess % 2 == 1:
        # The grid is bipartite: without waits every agent's excess is even.
        record[WAIT_COST_VALUE] = 1
        return 0
    _fill_excess(ws, size, leader)
    members = record[MEMBERS]
    status, _, expansions, _ = search(ws, size, ws.order[leader], members, COST, False, True, excess, budget)
    if status != CAPPED:
        record[WAIT_COST_VALUE] = 0 if status == FOUND else 1
    return expansions


@kernel
def needs_wait_by(ws: Workspace, size: int, leader: int, makespan: int, budget: int) -> tuple[int, int]:
    """Is there no plan without a wait that ends by `makespan`? (1 | 0 | UNKNOWN, expansions)."""
    record = ws.record[leader]
    order, members = ws.order[leader], record[MEMBERS]
    _fill_steps(ws, size, leader)
    _fill_avoid(ws, size, leader)
    status, _, expansions, _ = search(ws, size, order, members, STEPS, False, True, makespan, budget)
    if status == CAPPED:
        return UNKNOWN, expansions
    return 0 if status == FOUND else 1, expansions


@kernel
def _fill_steps(ws: Workspace, size: int, leader: int) -> None:
    order, members = ws.order[leader], ws.record[leader, MEMBERS]
    if ws.record[leader, HAS_STEPS]:
        return
    ws.record[leader, HAS_STEPS] = 1
    for q in range(members):
        for r in range(q):
            fill_pair_steps(ws, size, min(order[q], order[r]), max(order[q], order[r]))


@kernel
def _fill_avoid(ws: Workspace, size: int, leader: int) -> None:
    order, members = ws.order[leader], ws.record[leader, MEMBERS]
    for q in range(members):
        for r in range(members):
            if q != r:
                measure(ws, size, ws.goal[order[q]], ws.goal[order[r]], ws.avoid[order[q], order[r]])


@kernel
def _fill_excess(ws: Workspace, size: int, leader: int) -> None:
    order, members = ws.order[leader], ws.record[leader, MEMBERS]
    if ws.record[leader, HAS_EXCESS]:
        return
    ws.record[leader, HAS_EXCESS] = 1
    _fill_avoid(ws, size, leader)
    for q in range(members):
        for r in range(q):
            fill_pair_excess(ws, size, min(order[q], order[r]), max(order[q], order[r]))
