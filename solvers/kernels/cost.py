"""The sum of costs of one component's agents, and whether it needs a wait: the cheapest exact search first."""

from __future__ import annotations

import numpy as np

from solvers.compiling import as_int, kernel
from solvers.kernels import conflicts
from solvers.kernels.bounds import cover
from solvers.kernels.conflicts import least_beyond_horizon, open_root, raise_bounds, resolve_conflicts
from solvers.kernels.moves import VALUES
from solvers.kernels.record import (
    BY_COST,
    BY_STEPS,
    COST_VALUE,
    DETOUR,
    EXPANSIONS,
    HAS_TRIPLES,
    MEMBERS,
    UNKNOWN,
    WAIT_COST_VALUE,
    choose,
    distance,
    keep_arrivals,
    plan_waits,
)
from solvers.kernels.search import CAPPED, EXHAUSTED, FOUND, search
from solvers.kernels.store import read_path
from solvers.kernels.tables import fill_excess, fill_triples, note_start_pairs
from solvers.kernels.workspace import AGENTS, COSTS, SIZE, Workspace

NONE = -2
"""Proven that there is no such plan; UNKNOWN: the budget ran out."""

MORE_SPLITS = np.array([0, 0, 0, 0, 200, 1_000])
"""By number of agents, nodes up to which conflict-based search goes on once the pair tables bound it."""
PART_TRY = 300
"""Expansions for each three of the agents that might bound the cost, ten times as many for each four."""
BEFORE_TRIPLES = np.array([0, 0, 0, 150, 150, 50])
"""By number of agents, expansions of the cost search before it asks for the tables of three."""
TRIPLE_STEP = 12
"""The tables of three reach this far above the bound at hand; where that is too near, they are filled again, twice as
far."""


@kernel
def cheapest(ws: Workspace, group: int, want_wait: bool, quick: bool, budget: int) -> None:
    """Settle the sum of costs and whether each cheapest plan has a wait."""
    record, team = ws.record[group], ws.team[group]
    shortest, known = 0, 0
    for q in range(record[MEMBERS]):
        shortest += distance(ws, team[q])
        known += ws.steps[BY_STEPS, team[q]]
    # The plan of least makespan is a first one: only a cheaper one is looked for.
    known = min(known - shortest, COSTS)
    excess = _settle_cost(ws, group, True, shortest, record[DETOUR], known - 1, quick, budget)
    if excess == NONE and known < COSTS:
        excess = known
        _keep_plan_by_steps(ws, group)
    if excess < 0:
        return
    record[COST_VALUE] = shortest + excess
    if not want_wait:
        return
    if not plan_waits(ws, group, BY_COST):
        record[WAIT_COST_VALUE] = 0
    elif excess % 2 == 1:
        # The grid is bipartite: without waits every agent's excess is even.
        record[WAIT_COST_VALUE] = 1
    else:
        free = _settle_cost(ws, group, False, shortest, excess, excess, quick, budget)
        # The plan found replaces the one that waits.
        record[WAIT_COST_VALUE] = UNKNOWN if free == UNKNOWN else int(free == NONE)


@kernel
def _settle_cost(
    ws: Workspace, group: int, waits: bool, shortest: int, least: int, most: int, quick: bool, budget: int
) -> int:
    """Least excess between `least` and `most`; NONE when proven that there is none up to `most`, else UNKNOWN.

    The plan is kept.
    """
    if least > most:
        return NONE
    record, team = ws.record[group], ws.team[group]
    members = record[MEMBERS]
    horizon = least_beyond_horizon(ws, team, members)
    if quick:
        count = open_root(ws, team, members, waits, shortest + least)
        status, bound = conflicts.CAPPED, shortest + least
        for tables in range(2):
            if tables:
                fill_excess(ws, group)
                least = max(least, _start_bound(ws, group))
                if least > most:
                    return NONE
                raise_bounds(ws, count, shortest + least)
            # Without tables as many nodes as what the tables cost to fill is worth.
            pairs = members * (members - 1) // 2
            cap = as_int(MORE_SPLITS[members]) if tables else max(1, members - 2) * pairs * ws.frame[SIZE]
            before = count
            status, bound, node, count = resolve_conflicts(
                ws, team, members, waits, shortest + most, min(cap, budget), count
            )
            record[EXPANSIONS] += count - before
            if status != conflicts.CAPPED:
                break
        if status == FOUND and bound <= horizon:
            _keep_walks(ws, group, node)
            return bound - shortest
        if status == conflicts.EXHAUSTED and shortest + most < horizon:
            return NONE
        if bound <= horizon:
            least = max(least, bound - shortest)
    return _settle_jointly(ws, group, waits, least, most, quick, budget)


@kernel
def _keep_plan_by_steps(ws: Workspace, group: int) -> None:
    """The plan of least makespan is the cheapest one, too."""
    for q in range(ws.record[group, MEMBERS]):
        i = ws.team[group, q]
        ws.steps[BY_COST, i] = ws.steps[BY_STEPS, i]
        for t in range(ws.steps[BY_STEPS, i] + 1):
            ws.path[BY_COST, i, t] = ws.path[BY_STEPS, i, t]


@kernel
def _keep_walks(ws: Workspace, group: int, node: int) -> None:
    """Keep the plan of conflict-based search."""
    for q in range(ws.record[group, MEMBERS]):
        i = ws.team[group, q]
        ws.steps[BY_COST, i] = ws.length[node, i]
        for t in range(ws.length[node, i] + 1):
            ws.path[BY_COST, i, t] = ws.walk[node, i, t]


@kernel
def _start_bound(ws: Workspace, group: int) -> int:
    """Excess of the start by the pair tables."""
    values = ws.locals[VALUES]
    note_start_pairs(ws, group, values)
    return cover(values, as_int(ws.record[group, MEMBERS]), False, COSTS)


@kernel
def _settle_jointly(ws: Workspace, group: int, waits: bool, least: int, most: int, quick: bool, budget: int) -> int:
    """As _settle_cost, by the joint search alone: with pairs, then with tables of three up to a rising limit."""
    record, members = ws.record[group], ws.record[group, MEMBERS]
    fill_excess(ws, group)
    if members < 3:
        _, excess, _ = _search_all(ws, group, waits, False, least, most, budget)
        return excess
    if quick:
        least = _bound_by_parts(ws, group, 3, waits, False, least, most, budget)
        tries = min(budget, as_int(BEFORE_TRIPLES[members]))
        status, excess, least = _search_all(ws, group, waits, False, least, most, tries)
        if status != CAPPED:
            return excess
    limit, step = least, TRIPLE_STEP
    while True:
        limit = min(most, limit + step)
        step *= 2
        if record[HAS_TRIPLES] < limit + 1:
            fill_triples(ws, group, limit)
        if members == AGENTS:
            least = _bound_by_parts(ws, group, 4, waits, True, least, limit, budget)
        status, excess, least = _search_all(ws, group, waits, True, least, limit, budget)
        if status != EXHAUSTED or limit == most:
            return excess
        least = limit + 1


@kernel
def _search_all(
    ws: Workspace, group: int, waits: bool, triples: bool, least: int, most: int, limit: int
) -> tuple[int, int, int]:
    """(status, excess or NONE or UNKNOWN, lower bound) of one joint search; the plan is kept."""
    record, team = ws.record[group], ws.team[group]
    status, excess, expansions, entry = search(ws, team, record[MEMBERS], waits, triples, least, most, limit)
    record[EXPANSIONS] += expansions
    if status == FOUND:
        steps = read_path(ws, entry, team, record[MEMBERS], ws.path[BY_COST])
        if steps < 0:
            return CAPPED, UNKNOWN, excess
        keep_arrivals(ws, group, BY_COST, steps)
    return status, excess if status == FOUND else NONE if status == EXHAUSTED else UNKNOWN, excess


@kernel
def _bound_by_parts(
    ws: Workspace, group: int, count: int, waits: bool, triples: bool, least: int, most: int, budget: int
) -> int:
    """The largest excess that some `count` of the agents need without the others, as far as that is quickly found; with
    `triples` in plans of the whole team within `most`, since the tables are cut to those."""
    if ws.record[group, MEMBERS] <= count:
        return least
    for chosen in range(1 << ws.record[group, MEMBERS]):
        if choose(ws, group, chosen) == count:
            tries = min(budget, PART_TRY if count == 3 else 10 * PART_TRY)
            status, excess, expansions, _ = search(ws, ws.team[AGENTS], count, waits, triples, least, most, tries)
            ws.record[group, EXPANSIONS] += expansions
            least = max(least, most + 1 if status == EXHAUSTED else excess)
    return least
