"""A second opinion on every verdict: a simulator that shares no code with the checker, on spoiled optimal plans."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.base import Task, Verdict
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.plan import Fault, parse_plan
from environments.mapf_frozenlake.settings import MapfSettings

KINDS: list[dict[str, Any]] = [
    {"sizes": (3, 4, 5)},
    {"sizes": (4, 6), "agents": 4, "objective": "sum_of_costs"},
    {"sizes": (3, 5), "agents": 3, "plan_format": "json"},
    {"sizes": (3, 4), "plan_format": "coordinates"},
    {"sizes": (4, 5), "agents": 3, "plan_format": "coordinates", "template": "compact"},
    {"sizes": (3, 4), "plan_format": "json", "template": "compact", "goal_credit": 0.2, "prefix_credit": 0.1},
]
WORDS = ("UP", "DOWN", "LEFT", "RIGHT", "WAIT")
FAULTS = {"truncated", "parse_error", "missing_agent"}
SPLINTERS = (
    *(
        "UP",
        "wait",
        "Right",
        "HOP",
        "ＵＰ",
        "UР",
        "LEFТ",
        "RıGHT",
        "1:",
        "2:",
        "9:",
        "agent 1:",
        "\n",
        "\n\n",
        "\u2028",
    ),
    *("<think>", "</think>", "```", "**", "->", "→", ",", ":", "{", "}", "[", "]", '"', '"1"', "(0, 1)", "(-1, 0)"),
    *("r0c1", "r9c9", "(99999, 0)", "٣:", "\x00", "\ud800", "\U0001f600", "So:", "9" * 5000, "\x1c", "null", "1e999"),
)

Cell = tuple[int, int]


def simulate(data: dict[str, Any], tracks: Sequence[list[Cell]]) -> tuple[str, int, list[int]]:
    """Outcome without the label, the step of the first broken rule, arrivals. ``tracks``: cells from step 0 on."""
    n = data["n"]
    lake = {(r, c) for r in range(n) for c in range(n)}
    holes = {divmod(h, n) for h in data["holes"]}
    starts, goals = ([divmod(c, n) for c in data[k]] for k in ("starts", "goals"))
    for track, start in zip(tracks, starts, strict=True):
        if track[0] != start:
            return "illegal_move", 0, []
    length = max(map(len, tracks))
    tracks = [track + [track[-1]] * (length - len(track)) for track in tracks]
    for t in range(1, length):
        was, now = [track[t - 1] for track in tracks], [track[t] for track in tracks]
        moved = {(a, b) for a, b in zip(was, now, strict=True) if a != b}
        broken = {
            "illegal_move": any((a - c) ** 2 + (b - d) ** 2 > 1 for (a, b), (c, d) in moved),
            "out_of_bounds": not set(now) <= lake,
            "hole": bool(set(now) & holes),
            "vertex_conflict": len(set(now)) < len(now),
            "edge_conflict": any((b, a) in moved for a, b in moved),
        }
        for name, so in broken.items():
            if so:
                return name, t, []
    if [track[-1] for track in tracks] != goals:
        return "goal_not_reached", length - 1, []
    arrivals = []
    for track, goal in zip(tracks, goals, strict=True):
        while track and track[-1] == goal:
            track.pop()
        arrivals.append(len(track))
    return "arrived", length - 1, arrivals


def walk(start: Cell, plan: Sequence[Any]) -> list[Cell]:
    """The cells of one agent: actions one after the other, or the path as it is."""
    if plan and not isinstance(plan[0], str):
        return list(plan)
    track = [start]
    for word in plan:
        r, c = track[-1]
        track.append((r + (word == "DOWN") - (word == "UP"), c + (word == "RIGHT") - (word == "LEFT")))
    return track


class Bench:
    """One kind of environment with tasks, their optimal answers and the plans in them."""

    def __init__(self, kind: dict[str, Any]) -> None:
        self.environment = MapfFrozenLake(MapfSettings(**kind))
        self.format = self.environment.settings.plan_format
        self.agents = self.environment.settings.agents
        self.tasks = self.environment.generate(self.environment.default_knobs(), 5, 0, 60)
        self.data = [task.data() for task in self.tasks]
        self.answers = [self.environment.answer(task) for task in self.tasks]
        self.plans = [self.read(answer) for answer in self.answers]
        self.outcomes = {str(o.value) for o in self.environment.Outcome}

    def read(self, text: str) -> Any:
        return parse_plan(text, self.agents, plan_format=self.format)

    def check(self, i: int, text: str, truncated: bool, plans: Sequence[Any] | None = None) -> str:
        """Raise unless the verdict is the simulator's; ``plans`` if they are known without the parser."""
        found = self.environment.score(self.tasks[i], text, truncated=truncated)
        assert isinstance(found, Verdict), (found, text)
        assert found.outcome in self.outcomes and 0.0 <= found.reward <= 1.0, (found, text)
        read = self.read(text) if plans is None else plans
        if isinstance(read, Fault):
            assert found.outcome in ({"truncated"} if truncated else FAULTS - {"truncated"}), (found, text)
            assert found.reward == 0.0 and found.facts["reason"], (found, text)
            return found.outcome
        self.check_plan(self.data[i], found, read, text)
        return found.outcome

    def check_plan(self, data: dict[str, Any], found: Verdict, plans: Sequence[Any], text: str) -> None:
        starts = [divmod(c, data["n"]) for c in data["starts"]]
        outcome, step, arrivals = simulate(data, [walk(s, plan) for s, plan in zip(starts, plans, strict=True)])
        limits = self.environment.settings
        credit = limits.goal_credit + limits.prefix_credit
        if outcome != "arrived":
            assert (found.outcome, found.facts["step"]) == (outcome, step), (found, text)
            assert found.facts["agents"] and len(found.facts["cell"]) == 2, (found, text)
            assert found.reward <= credit, (found, text)
            return
        costs = {"makespan": max(arrivals), "sum_of_costs": sum(arrivals)}
        quotient = data[limits.objective] / costs[limits.objective]
        assert found.outcome == ("optimal" if quotient == 1 else "valid"), (found, text)
        assert {name: found.facts[name] for name in costs} == costs, (found, text)
        assert found.reward > credit and found.reward == credit + (1 - credit) * quotient, (found, text)


@cache
def bench(number: int) -> Bench:
    return Bench(KINDS[number])


def spoil_text(text: str, other: str, rng: random.Random) -> str:
    """One small change of what was written."""
    kind = rng.randrange(10)
    at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    if kind == 0:
        return text[:at] + text[to:] if to - at < 9 else text[:at]
    if kind == 1:
        return text[:at] + rng.choice(SPLINTERS) + text[at:]
    if kind == 2:
        return text[:at] + text[at:to] + text[at:]
    if kind == 3:
        return text[:at] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000)))) + text[at + 1 :]
    if kind == 4:
        return rng.choice((text + "\n" + other, f"<think>{other}</think>\n{text}", f"{other}\nNo:\n{text}\nDone."))
    if kind == 5:
        return rng.choice((text.lower(), text.upper(), text.title(), text.swapcase(), text[::-1]))
    if kind == 6:
        lines = text.splitlines()
        rng.shuffle(lines)
        return "\n".join(lines)
    words = text.split(" ")
    i, j = rng.randrange(len(words)), rng.randrange(len(words))
    if kind == 7:
        words[i], words[j] = words[j], words[i]
    elif kind == 8:
        words.insert(i, words[j])
    else:
        del words[i]
    return " ".join(words)


def spoil_plan(plans: list[list[Any]], n: int, cells: bool, rng: random.Random) -> None:
    """One small change of what the agents do."""
    plan = rng.choice(plans)
    new = (rng.randint(-1, n), rng.randint(-1, n)) if cells else rng.choice(WORDS)
    kind = rng.randrange(5)
    if kind == 0 and plan:
        del plan[rng.randrange(len(plan))]
    elif kind == 1 and plan:
        plan[rng.randrange(len(plan))] = new
    elif kind == 2 and plan:
        i = rng.randrange(len(plan))
        plan.insert(i, plan[i])
    elif kind == 3:
        rng.shuffle(plans)
    else:
        plan.insert(rng.randrange(len(plan) + 1), "WAIT" if not cells and rng.random() < 0.5 else new)


def written(plans: Sequence[Sequence[Any]], plan_format: str) -> str:
    if plan_format == "json":
        return json.dumps(dict(enumerate(plans, 1)))
    return "\n".join(f"{i}: {' '.join(map(str, plan))}" for i, plan in enumerate(plans, 1))


def fuzz(count: int, seed: int) -> Counter[str]:
    """Spoil optimal answers ``count`` times, half as text and half as plans; outcomes seen."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for turn in range(count):
        some = bench(turn % len(KINDS))
        i, j = rng.randrange(len(some.tasks)), rng.randrange(len(some.tasks))
        if rng.random() < 0.5:
            plans = [list(plan) for plan in some.plans[i]]
            for _ in range(rng.randint(0, 3)):
                spoil_plan(plans, some.data[i]["n"], some.format == "coordinates", rng)
            seen[some.check(i, written(plans, some.format), rng.random() < 0.2, plans_or_stay(plans, some, i))] += 1
        else:
            text = some.answers[i]
            for _ in range(rng.randint(1, 4)):
                text = spoil_text(text, some.answers[j], rng)
            seen[some.check(i, text, rng.random() < 0.2)] += 1
    return seen


def plans_or_stay(plans: list[list[Any]], some: Bench, i: int) -> list[list[Any]]:
    """An empty path stays at the start, as an empty list of actions does."""
    data = some.data[i]
    starts = [divmod(c, data["n"]) for c in data["starts"]]
    return (
        [plan or [start] for plan, start in zip(plans, starts, strict=True)] if some.format == "coordinates" else plans
    )


def test_checker_and_simulator_agree_on_spoiled_plans() -> None:
    seen = fuzz(6_000, seed=1)
    assert set(seen) == {str(o.value) for o in bench(3).environment.Outcome}, seen


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from((*SPLINTERS[:-4], *WORDS, *(f"{w}," for w in WORDS))), max_size=40).map(" ".join),
    st.recursive(
        st.none() | st.integers() | st.sampled_from(WORDS),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(("1", "2", "agent 3", "x")), x),
    ).map(json.dumps),
)


def hold(number: int, i: int, text: str, truncated: bool, cut: int) -> None:
    some = bench(number)
    some.check(i, text, truncated)
    answer = some.answers[i]
    some.check(i, answer[:cut] + text + answer[cut:], truncated)


ANY = (st.integers(0, len(KINDS) - 1), st.integers(0, 59), TEXTS, st.booleans(), st.integers(0, 60))


@given(*ANY)
@settings(max_examples=400, deadline=None)
def test_checker_and_simulator_agree_on_any_text(number: int, i: int, text: str, truncated: bool, cut: int) -> None:
    hold(number, i, text, truncated, cut)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_completions_are_judged_as_the_simulator_does() -> None:
    seen = fuzz(950_000, seed=2)
    assert min(seen.values()) > 1_000, seen

    @given(*ANY)
    @settings(max_examples=25_000, deadline=None)
    def twice(number: int, i: int, text: str, truncated: bool, cut: int) -> None:
        hold(number, i, text, truncated, cut)

    twice()


def test_the_simulator_is_no_yes_man() -> None:
    """A checker that forgets a rule is found out."""
    task = Task("mapf_frozenlake", json.dumps({"n": 3, "holes": [4], "starts": [0, 1], "goals": [1, 0]}), "3x3", "t", 0)
    data = task.data()
    for outcome, tracks in {
        "edge_conflict": [[(0, 0), (0, 1)], [(0, 1), (0, 0)]],
        "vertex_conflict": [[(0, 0), (0, 1)], [(0, 1)]],
        "hole": [[(0, 0)], [(0, 1), (1, 1)]],
        "out_of_bounds": [[(0, 0), (-1, 0)], [(0, 1)]],
        "illegal_move": [[(0, 0), (2, 0)], [(0, 1)]],
        "goal_not_reached": [[(0, 0)], [(0, 1)]],
    }.items():
        assert simulate(data, tracks)[0] == outcome
