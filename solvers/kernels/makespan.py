"""The makespan of one component's agents, and whether it needs a wait: the cheapest exact search first."""

from __future__ import annotations

from solvers.compiling import as_int, kernel
from solvers.kernels.decide import CAPPED, FOUND, NO_TABLES, PAIRS_ONLY, REFUTED, UP_TO_TRIPLES, decide, sweep
from solvers.kernels.pairs import pair_row
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

STRAIGHT_TRY = 500
"""Configurations of the search for a straight plan."""
FIRST_TRY = 60
"""Configurations for the makespan search without tables: most instances end there, the rest lose little."""
DIVE = 400
"""Configurations of the depth-first search for each makespan before the breadth-first one takes over."""
BEFORE_ALL = 5_000
"""Configurations for each part of the agents that might refute a makespan."""
BEFORE_TABLES = 4_000
"""Configurations of all agents before the tables of three are asked for."""
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
    fill_steps(ws, group)
    space = ws.frame[SIZE]
    for q in range(record[MEMBERS]):
        space *= max(1, ws.frame[SIZE] - q)
        for r in range(q):
            row = pair_row(team[r], team[q])
            steps = as_int(ws.pair_steps[row, ws.start[team[r]] * ws.frame[SIZE] + ws.start[team[q]]])
            if steps == INF:
                return 0
            makespan = max(makespan, steps)
    before, rounds = record[EXPANSIONS], 0
    while True:
        status = _try_makespan(ws, group, makespan, min(budget, DIVE) if quick else 0, budget)
        if status != REFUTED:
            return 1 if status == FOUND else UNKNOWN
        makespan += 1
        rounds += 1
        if rounds == PROOF_ROUND and _part_is_stuck(ws, group, min(budget, BEFORE_ALL)):
            return 0
        if makespan >= HORIZON or EXHAUST_SHARE * (record[EXPANSIONS] - before) > space or not quick:
            # So few configurations are left that all can be seen: the shortest plan, or the proof that there is none.
            status = _sweep_all(ws, group, HORIZON - 1, NO_TABLES, budget)
            return 1 if status == FOUND else 0 if status == REFUTED else UNKNOWN


@kernel
def _part_is_stuck(ws: Workspace, group: int, budget: int) -> bool:
    """Is it proven of some of the agents, fewer than all, that they have no plan of any length?"""
    record, subset = ws.record[group], ws.team[AGENTS]
    for count in range(3, record[MEMBERS]):
        for chosen in range(1 << record[MEMBERS]):
            if choose(ws, group, chosen) == count:
                for q in range(count):
                    ws.deadline[q] = HORIZON - 1
                status, _, expansions = sweep(ws, subset, count, NO_TABLES, budget)
                record[EXPANSIONS] += expansions
                if status == REFUTED:
                    return True
    return False


@kernel
def _try_makespan(ws: Workspace, group: int, makespan: int, dive: int, budget: int) -> int:
    """Decide one makespan with the pair tables and keep what follows from it.

    Three or four agents that cannot do it alone are the cheaper refutation, and mostly there are some.
    """
    record = ws.record[group]
    members = record[MEMBERS]
    status = _dive(ws, group, makespan, PAIRS_ONLY, dive)
    if status != CAPPED:
        return status
    status = _try_parts(ws, group, makespan, PAIRS_ONLY, dive, min(budget, BEFORE_ALL))
    if status == REFUTED:
        return status
    if members > 3:
        status = _sweep_all(ws, group, makespan, PAIRS_ONLY, min(budget, BEFORE_TABLES))
        if status != CAPPED:
            return status
        if fill_triple_tables(ws, group, makespan):
            return REFUTED
        if _try_parts(ws, group, makespan, UP_TO_TRIPLES, dive, budget) == REFUTED:
            return REFUTED
        return _sweep_all(ws, group, makespan, UP_TO_TRIPLES, budget)
    return _sweep_all(ws, group, makespan, PAIRS_ONLY, budget)


@kernel
def _try_parts(ws: Workspace, group: int, makespan: int, tables: int, dive: int, budget: int) -> int:
    """REFUTED when some of the agents, fewer than all, cannot do it alone; tables of three speak for three."""
    record, subset = ws.record[group], ws.team[AGENTS]
    members = record[MEMBERS]
    for count in range(3 if tables == PAIRS_ONLY else 4, members):
        for chosen in range(1 << members):
            if choose(ws, group, chosen) != count:
                continue
            for q in range(count):
                ws.deadline[q] = makespan
            status, _, expansions = decide(ws, subset, count, True, tables, dive)
            record[EXPANSIONS] += expansions
            if status == CAPPED:
                status, _, expansions = sweep(ws, subset, count, tables, budget)
                record[EXPANSIONS] += expansions
            if status == REFUTED:
                return status
    return CAPPED


@kernel
def _dive(ws: Workspace, group: int, makespan: int, tables: int, dive: int) -> int:
    """Look for a plan of this makespan depth-first and keep it."""
    record = ws.record[group]
    for q in range(record[MEMBERS]):
        ws.deadline[q] = makespan
    status, steps, expansions = decide(ws, ws.team[group], record[MEMBERS], True, tables, dive)
    record[EXPANSIONS] += expansions
    if status == FOUND:
        keep_trail(ws, group, BY_STEPS, steps)
        record[STEPS_VALUE] = makespan
        record[PLANS_FREE] = not plan_waits(ws, group, BY_STEPS)
    return status


@kernel
def _sweep_all(ws: Workspace, group: int, makespan: int, tables: int, budget: int) -> int:
    """Look for the shortest plan of at most this makespan breadth-first and keep it."""
    record, team = ws.record[group], ws.team[group]
    for q in range(record[MEMBERS]):
        ws.deadline[q] = makespan
    status, entry, expansions = sweep(ws, team, record[MEMBERS], tables, budget)
    record[EXPANSIONS] += expansions
    if status == FOUND:
        steps = read_path(ws, entry, team, record[MEMBERS], ws.path[BY_STEPS])
        keep_arrivals(ws, group, BY_STEPS, steps)
        record[STEPS_VALUE] = steps
        record[PLANS_FREE] = not plan_waits(ws, group, BY_STEPS)
    return status


@kernel
def needs_wait_by(ws: Workspace, group: int, makespan: int, budget: int) -> int:
    """Is there no plan without a wait that ends by `makespan`? 1, 0 or UNKNOWN."""
    record, team = ws.record[group], ws.team[group]
    members = record[MEMBERS]
    status = _decide_moving(ws, group, team, members, makespan, record[HAS_STEPS], FIRST_TRY)
    if status == CAPPED:
        fill_steps(ws, group)
        # Mostly some of the agents cannot do it even without the others, which is shown sooner.
        for count in range(2, members):
            for chosen in range(1 << members):
                if choose(ws, group, chosen) == count:
                    tries = min(budget, BEFORE_ALL)
                    if _decide_moving(ws, group, ws.team[AGENTS], count, makespan, PAIRS_ONLY, tries) == REFUTED:
                        return 1
        status = _decide_moving(ws, group, team, members, makespan, PAIRS_ONLY, budget)
    return UNKNOWN if status == CAPPED else int(status != FOUND)


@kernel
def _decide_moving(ws: Workspace, group: int, team: Array, members: int, makespan: int, tables: int, limit: int) -> int:
    """Decide a makespan without waits. Arrivals then have the parity of the distances: the grid is bipartite."""
    for q in range(members):
        ws.deadline[q] = makespan - (makespan - distance(ws, team[q])) % 2
    status, _, expansions = decide(ws, team, members, False, tables, limit)
    ws.record[group, EXPANSIONS] += expansions
    return status
