"""The makespan of one component's agents, and whether it needs a wait: the cheapest exact search first."""

from __future__ import annotations

from solvers.compiling import kernel
from solvers.kernels.decide import CAPPED, FOUND, NO_TABLES, PAIRS_ONLY, REFUTED, UP_TO_TRIPLES, decide, sweep
from solvers.kernels.record import (
    BY_COST,
    BY_STEPS,
    COST_VALUE,
    DETOUR,
    EXPANSIONS,
    HAS_STEPS,
    MEMBERS,
    PLANS_FREE,
    STEPS_VALUE,
    UNKNOWN,
    WAIT_COST_VALUE,
    choose,
    distance,
    keep_arrivals,
    keep_trail,
    plan_waits,
)
from solvers.kernels.store import read_path
from solvers.kernels.tables import fill_steps, fill_triple_tables
from solvers.kernels.workspace import AGENTS, HORIZON, INF, SIZE, Array, Workspace

NONE = -1
"""Instead of a number of configurations: leave out that search."""
STRAIGHT_TRY = 500
"""Configurations of the search for a straight plan."""
FIRST_TRY = 40
"""Configurations for the makespan search without tables: most instances end there, the rest lose little."""
DIVE = 200
"""Configurations of the depth-first search for each makespan before the breadth-first one takes over."""
DEEPER = 5
"""So many times more with the tables of three, which leave few wrong turns."""
BEFORE_ALL = 5_000
"""Configurations for each part of the agents that might prove that there is no plan, or none without waits."""
BEFORE_TABLES = 200
"""Configurations of all agents, and of each part, before the tables of three are asked for."""
PROOF_ROUND = 8
"""Makespans refuted before a proof is tried that some of the agents have no plan at all."""
EXHAUST_SHARE = 20
"""Where this many times the configurations tried so far are all there can be, they are all looked at."""


@kernel
def try_straight(ws: Workspace, group: int) -> bool:
    """A plan in which every agent walks a shortest path answers all questions at once: optimal in both, no waits."""
    record, team = ws.record[group], ws.team[group]
    total = 0
    for q in range(record[MEMBERS]):
        ws.deadline[q] = distance(ws, team[q])
        total += ws.deadline[q]
    status, steps, expansions = decide(ws, team, record[MEMBERS], True, NO_TABLES, STRAIGHT_TRY)
    record[EXPANSIONS] += expansions
    if status != FOUND:
        # An excess of at least one is what the refutation leaves.
        record[DETOUR] = status == REFUTED
        return False
    keep_trail(ws, group, BY_STEPS, steps)
    keep_trail(ws, group, BY_COST, steps)
    record[STEPS_VALUE], record[COST_VALUE] = steps, total
    record[PLANS_FREE] = 1
    record[WAIT_COST_VALUE] = 0
    return True


@kernel
def fastest(ws: Workspace, group: int, quick: bool, budget: int) -> int:
    """Settle the makespan; 1 solvable, 0 proven unsolvable, -1 open."""
    record, team = ws.record[group], ws.team[group]
    makespan = distance(ws, team[0])
    if quick:
        status = _dive(ws, group, makespan, NO_TABLES, min(budget, FIRST_TRY))
        if status == FOUND:
            return 1
        makespan += status == REFUTED
    makespan = fill_steps(ws, group, makespan)
    if makespan == INF:
        return 0
    space = ws.frame[SIZE]
    for q in range(record[MEMBERS]):
        space *= max(1, ws.frame[SIZE] - q)
    before, rounds = record[EXPANSIONS], 0
    while True:
        status = _try_makespan(ws, group, makespan, min(budget, DIVE) if quick else 0, budget)
        if status != REFUTED:
            return 1 if status == FOUND else UNKNOWN
        makespan += 1
        rounds += 1
        tries = min(budget, BEFORE_ALL)
        if rounds == PROOF_ROUND and _part_fails(ws, group, 3, HORIZON - 1, True, NO_TABLES, NONE, tries):
            return 0
        if makespan >= HORIZON or EXHAUST_SHARE * (record[EXPANSIONS] - before) > space or not quick:
            # So few configurations are left that all can be seen: the shortest plan, or the proof that there is none.
            status = _sweep_all(ws, group, HORIZON - 1, NO_TABLES, budget)
            return 1 if status == FOUND else 0 if status == REFUTED else UNKNOWN


@kernel
def _try_makespan(ws: Workspace, group: int, makespan: int, dive: int, budget: int) -> int:
    """Decide one makespan with the pair tables and keep what follows from it.

    Three or four agents that cannot do it alone are the cheaper refutation, and mostly there are some.
    """
    fill_steps(ws, group, makespan)
    status = _dive(ws, group, makespan, PAIRS_ONLY, dive)
    if status != CAPPED:
        return status
    if _part_fails(ws, group, 3, makespan, True, PAIRS_ONLY, dive, min(budget, BEFORE_TABLES)):
        return REFUTED
    if ws.record[group, MEMBERS] > 3:
        status = _sweep_all(ws, group, makespan, PAIRS_ONLY, min(budget, BEFORE_TABLES))
        if status != CAPPED:
            return status
        if fill_triple_tables(ws, group, makespan):
            return REFUTED
        status = _dive(ws, group, makespan, UP_TO_TRIPLES, DEEPER * dive)
        if status != CAPPED:
            return status
        # The tables of three speak for three.
        if _part_fails(ws, group, 4, makespan, True, UP_TO_TRIPLES, dive, budget):
            return REFUTED
        return _sweep_all(ws, group, makespan, UP_TO_TRIPLES, budget)
    return _sweep_all(ws, group, makespan, PAIRS_ONLY, budget)


@kernel
def _part_fails(
    ws: Workspace, group: int, fewest: int, makespan: int, waits: bool, tables: int, dive: int, budget: int
) -> bool:
    """Is it proven of some of the agents, at least `fewest` and not all, that they cannot do it even without the
    others? Each part may look at `dive` configurations depth-first, then at `budget` breadth-first, or NONE."""
    for count in range(fewest, ws.record[group, MEMBERS]):
        for chosen in range(1 << ws.record[group, MEMBERS]):
            if choose(ws, group, chosen) != count:
                continue
            status = CAPPED
            if dive != NONE:
                status, _ = _decide(ws, group, ws.team[AGENTS], count, makespan, waits, tables, dive)
            if status == CAPPED and budget != NONE:
                status, _ = _sweep(ws, group, ws.team[AGENTS], count, makespan, tables, budget)
            if status == REFUTED:
                return True
    return False


@kernel
def _dive(ws: Workspace, group: int, makespan: int, tables: int, dive: int) -> int:
    """Look for a plan of this makespan depth-first and keep it."""
    status, steps = _decide(ws, group, ws.team[group], ws.record[group, MEMBERS], makespan, True, tables, dive)
    if status == FOUND:
        keep_trail(ws, group, BY_STEPS, steps)
        _keep_makespan(ws, group, steps)
    return status


@kernel
def _sweep_all(ws: Workspace, group: int, makespan: int, tables: int, budget: int) -> int:
    """Look for the shortest plan of at most this makespan breadth-first and keep it."""
    team, members = ws.team[group], ws.record[group, MEMBERS]
    status, entry = _sweep(ws, group, team, members, makespan, tables, budget)
    if status == FOUND:
        steps = read_path(ws, entry, team, members, ws.path[BY_STEPS])
        keep_arrivals(ws, group, BY_STEPS, steps)
        _keep_makespan(ws, group, steps)
    return status


@kernel
def _keep_makespan(ws: Workspace, group: int, steps: int) -> None:
    """Note the makespan of the kept plan, and whether it does without waits."""
    ws.record[group, STEPS_VALUE] = steps
    ws.record[group, PLANS_FREE] = not plan_waits(ws, group, BY_STEPS)


@kernel
def needs_wait_by(ws: Workspace, group: int, makespan: int, budget: int) -> int:
    """Is there no plan without a wait that ends by `makespan`? 1, 0 or UNKNOWN."""
    record, team = ws.record[group], ws.team[group]
    if record[WAIT_COST_VALUE] == 0 and _ends_by(ws, group, BY_COST, makespan):
        return 0
    tables = PAIRS_ONLY if record[HAS_STEPS] > makespan else NO_TABLES
    status, _ = _decide(ws, group, team, record[MEMBERS], makespan, False, tables, FIRST_TRY)
    if status == CAPPED:
        fill_steps(ws, group, makespan)
        # Mostly some of the agents cannot do it even without the others, which is shown sooner.
        if _part_fails(ws, group, 2, makespan, False, PAIRS_ONLY, min(budget, BEFORE_ALL), NONE):
            return 1
        status, _ = _decide(ws, group, team, record[MEMBERS], makespan, False, PAIRS_ONLY, budget)
    return UNKNOWN if status == CAPPED else int(status != FOUND)


@kernel
def _ends_by(ws: Workspace, group: int, kind: int, makespan: int) -> bool:
    """Has every agent of the kept plan arrived by then?"""
    latest = 0
    for q in range(ws.record[group, MEMBERS]):
        latest = max(latest, ws.steps[kind, ws.team[group, q]])
    return latest <= makespan


@kernel
def _decide(
    ws: Workspace, group: int, team: Array, members: int, makespan: int, waits: bool, tables: int, limit: int
) -> tuple[int, int]:
    """(status, steps) of a depth-first search for a plan of at most this makespan."""
    for q in range(members):
        # The grid is bipartite: without waits arrivals have the parity of the distances.
        ws.deadline[q] = makespan if waits else makespan - (makespan - distance(ws, team[q])) % 2
    status, steps, expansions = decide(ws, team, members, waits, tables, limit)
    ws.record[group, EXPANSIONS] += expansions
    return status, steps


@kernel
def _sweep(
    ws: Workspace, group: int, team: Array, members: int, makespan: int, tables: int, limit: int
) -> tuple[int, int]:
    """(status, entry of the goal) of a breadth-first search for the shortest plan of at most this makespan."""
    for q in range(members):
        ws.deadline[q] = makespan
    status, entry, expansions = sweep(ws, team, members, tables, limit)
    ws.record[group, EXPANSIONS] += expansions
    return status, entry
