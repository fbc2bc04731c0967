"""What is known of the agents of one component so far: a row of Workspace.record, and their plans."""

from __future__ import annotations

from solvers.compiling import as_int, kernel
from solvers.kernels.workspace import AGENTS, Workspace

UNKNOWN = -1
BY_STEPS, BY_COST = 0, 1

# columns of Workspace.record; HAS_STEPS, HAS_TRIPLES: one more than the makespan, the excess up to which those tables
# hold; DETOUR: every plan has one
(
    MEMBERS, HAS_STEPS, HAS_EXCESS, HAS_TRIPLES, STEPS_VALUE, COST_VALUE, PLANS_FREE, WAIT_COST_VALUE, EXPANSIONS,
    DETOUR, HAS_WITHIN,
) = range(11)  # fmt: skip


@kernel
def gather(ws: Workspace, agents: int, group: int, first: int) -> int:
    """Start the record of the component whose agents begin at `first`; where the next one begins."""
    record = ws.record[group]
    record[:] = 0
    record[STEPS_VALUE], record[COST_VALUE], record[WAIT_COST_VALUE] = UNKNOWN, UNKNOWN, UNKNOWN
    count = 0
    for i in range(first, agents):
        if ws.group_of[ws.name[i]] != ws.group_of[ws.name[first]]:
            break
        ws.team[group, count] = i
        count += 1
    record[MEMBERS] = count
    return first + count


@kernel
def distance(ws: Workspace, i: int) -> int:
    """Steps of agent i from its start to its goal."""
    return as_int(ws.dist[i, ws.start[i]])


@kernel
def choose(ws: Workspace, group: int, chosen: int) -> int:
    """Put the members whose bits are set into the last team; their number."""
    count = 0
    for q in range(ws.record[group, MEMBERS]):
        if chosen >> q & 1:
            ws.team[AGENTS, count] = ws.team[group, q]
            count += 1
    return count


@kernel
def keep_trail(ws: Workspace, group: int, kind: int, steps: int) -> None:
    """Keep the plan of a decision."""
    for q in range(ws.record[group, MEMBERS]):
        i = ws.team[group, q]
        for t in range(steps + 1):
            ws.path[kind, i, t] = ws.trail[t, q]
    keep_arrivals(ws, group, kind, steps)


@kernel
def keep_arrivals(ws: Workspace, group: int, kind: int, steps: int) -> None:
    """Note when each agent of the kept plan arrives for good."""
    for q in range(ws.record[group, MEMBERS]):
        i = ws.team[group, q]
        arrival = steps
        while arrival > 0 and ws.path[kind, i, arrival - 1] == ws.path[kind, i, arrival]:
            arrival -= 1
        ws.steps[kind, i] = arrival


@kernel
def plan_waits(ws: Workspace, group: int, kind: int) -> bool:
    """Does an agent of the kept plan stand still before its final arrival?"""
    for q in range(ws.record[group, MEMBERS]):
        i = ws.team[group, q]
        for t in range(ws.steps[kind, i]):
            if ws.path[kind, i, t] == ws.path[kind, i, t + 1]:
                return True
    return False
