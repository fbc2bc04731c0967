"""Fills the tables of one component's agents once they are asked for."""

from __future__ import annotations

from solvers.compiling import as_int, kernel
from solvers.kernels.board import fill_near, fill_within, measure
from solvers.kernels.bounds import OPPOSITE, pair_excess, triple_row
from solvers.kernels.moves import VALUES
from solvers.kernels.pairs import fill_pair_excess, fill_pair_steps, pair_row
from solvers.kernels.record import HAS_EXCESS, HAS_STEPS, HAS_TRIPLES, HAS_WITHIN, MEMBERS
from solvers.kernels.triples import fill_triple_excess, fill_triple_steps
from solvers.kernels.workspace import AGENTS, CANCEL, INF, QUESTION, SIZE, Array, Workspace

AHEAD = 2
"""The tables of two hold for this many steps beyond the makespan at hand: mostly few more are tried."""


@kernel
def _fill_near(ws: Workspace, group: int) -> None:
    if not (ws.record[group, HAS_STEPS] or ws.record[group, HAS_EXCESS]):
        fill_near(ws)


@kernel
def fill_steps(ws: Workspace, group: int, makespan: int) -> int:
    """Fill the tables of two for plans of at most this makespan and a little more; the least makespan that they leave,
    INF when two of the agents have no plan."""
    team, members, size = ws.team[group], ws.record[group, MEMBERS], ws.frame[SIZE]
    if ws.record[group, HAS_STEPS] > makespan:
        return makespan
    _fill_near(ws, group)
    _fill_within(ws, group)
    limit = makespan + AHEAD
    ws.record[group, HAS_STEPS] = limit + 1
    for q in range(members):
        for r in range(q):
            i, j = team[r], team[q]
            start = ws.start[i] * size + ws.start[j]
            fill_pair_steps(ws, i, j, limit)
            if ws.pair_steps[pair_row(i, j), start] == INF:
                fill_pair_steps(ws, i, j, size * size)
            makespan = max(makespan, as_int(ws.pair_steps[pair_row(i, j), start]))
            if makespan == INF:
                return INF
    return makespan if makespan <= limit else fill_steps(ws, group, makespan)


@kernel
def fill_triple_tables(ws: Workspace, group: int, makespan: int) -> bool:
    """Tables of three for plans of at most this makespan; do they refute it? Needs fill_steps."""
    team, members = ws.team[group], ws.record[group, MEMBERS]
    size = ws.frame[SIZE]
    for q in range(members):
        for r in range(q):
            for p in range(r):
                i, j, k = team[p], team[r], team[q]
                fill_triple_steps(ws, i, j, k, makespan)
                start = (ws.start[i] * size + ws.start[j]) * size + ws.start[k]
                if ws.triple_steps[triple_row(i, j, k), start] > makespan and not ws.counter[CANCEL]:
                    return True
    return False


@kernel
def _fill_within(ws: Workspace, group: int) -> None:
    if ws.record[group, HAS_WITHIN]:
        return
    ws.record[group, HAS_WITHIN] = 1
    for q in range(ws.record[group, MEMBERS]):
        fill_within(ws, ws.team[group, q])


@kernel
def fill_excess(ws: Workspace, group: int) -> None:
    team, members = ws.team[group], ws.record[group, MEMBERS]
    if ws.record[group, HAS_EXCESS]:
        return
    _fill_near(ws, group)
    ws.record[group, HAS_EXCESS] = 1
    # What the joint searches remember of pairs is of other tables; the lowest bit says whether they may wait.
    ws.counter[QUESTION] += 2
    for q in range(members):
        i = team[q]
        for r in range(members):
            if q != r:
                measure(ws, ws.goal[i], ws.goal[team[r]], -1, ws.avoid[i, team[r], team[r]])
    _fill_pairs_around(ws, group, -1)


@kernel
def _fill_pairs_around(ws: Workspace, group: int, barred: int) -> None:
    """Cost tables of all pairs around the goal of the agent at this position; -1: around none."""
    team, members = ws.team[group], ws.record[group, MEMBERS]
    for q in range(members):
        for r in range(q):
            if barred != q and barred != r:
                fill_pair_excess(ws, team[r], team[q], team[barred] if barred >= 0 else -1)


@kernel
def note_start_pairs(ws: Workspace, group: int, values: Array) -> None:
    """Excess of every pair at the start, by the pair tables; zero where one of the two may stop there at once."""
    members, team = ws.record[group, MEMBERS], ws.team[group]
    values[:] = 0
    for q in range(members):
        for r in range(q):
            i, j = team[r], team[q]
            home, other = int(ws.start[i] == ws.goal[i]), int(ws.start[j] == ws.goal[j])
            if not (home or other):
                values[pair_row(r, q)] = pair_excess(ws, i, j, ws.start[i], ws.start[j], 0, 0)


@kernel
def fill_triples(ws: Workspace, group: int, limit: int) -> None:
    """Fill the tables of three for plans with an excess of at most `limit` of the whole team.

    Of five, what the other two need from the start is out of reach for the three: the tables bound the team, and what a
    part of it needs in plans of the team, but not what the part could do alone.
    """
    team, members = ws.team[group], ws.record[group, MEMBERS]
    if ws.record[group, HAS_TRIPLES] == 0:
        _fill_around(ws, group)
    ws.record[group, HAS_TRIPLES] = limit + 1
    values = ws.locals[VALUES]
    note_start_pairs(ws, group, values)
    for q in range(members):
        for r in range(q):
            for p in range(r):
                rest = values[OPPOSITE[triple_row(p, r, q)]] if members == AGENTS else 0
                fill_triple_excess(ws, team[p], team[r], team[q], limit - rest)


@kernel
def _fill_around(ws: Workspace, group: int) -> None:
    """Pair tables around the goal of a third agent, and what bounds the tables of three."""
    team, members = ws.team[group], ws.record[group, MEMBERS]
    _fill_within(ws, group)
    for q in range(members):
        for r in range(members):
            for p in range(members):
                if q != r and q != p and r != p:
                    i, j, k = team[q], team[r], team[p]
                    measure(ws, ws.goal[i], ws.goal[j], ws.goal[k], ws.avoid[i, j, k])
    for p in range(members):
        _fill_pairs_around(ws, group, p)
