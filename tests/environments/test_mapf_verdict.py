"""What is legal, what counts as arrival, and what a plan is worth."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from environments.base import Failure, FailureKind, Task, Verdict, canonical_json
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.plan import MOVES
from environments.mapf_frozenlake.settings import MapfSettings
from environments.mapf_frozenlake.verdict import Shaping, execute, judge


def board(picture: str) -> Board:
    """From rows of words in the notation of prompts: ``1`` start, ``a`` goal, ``1b`` both, ``#`` hole."""
    words = picture.split()
    n = round(len(words) ** 0.5)
    agents = max(int(c) for word in words for c in word if c.isdigit())
    return Board(
        n,
        tuple(i for i, word in enumerate(words) if word == "#"),
        tuple(next(i for i, word in enumerate(words) if str(k + 1) in word) for k in range(agents)),
        tuple(next(i for i, word in enumerate(words) if "abcde"[k] in word) for k in range(agents)),
    )


def plans(text: str) -> list[tuple[str, ...]]:
    """``R D . / L``: the actions of each agent by initial, ``.`` for a wait."""
    names = {"U": "UP", "D": "DOWN", "L": "LEFT", "R": "RIGHT", ".": "WAIT"}
    return [tuple(names[letter] for letter in part.split()) for part in text.split("/")]


ROW = "1 2 . . . . b . a"
SWAP = "1b 2a . . . . . . ."
RING = "1b 2c . 4a 3d . . . ."
RESTING = ". 1 a 2 . . b . ."

VIOLATIONS = [
    ("leaves the board", ROW, "U / D", "out_of_bounds", 1, [1], [-1, 0]),
    ("enters a hole", "1 . a # 2 . . b .", "D / L", "hole", 1, [1], [1, 0]),
    ("board before hole, whoever it is", "1 . a # . . . b 2", "D / R", "out_of_bounds", 1, [2], [2, 3]),
    ("hole before vertex", "1 . 2 3 # . a b c", "R / L / R", "hole", 1, [3], [1, 1]),
    ("meets on a cell", "1 . 2 . a . b . .", "R / L", "vertex_conflict", 1, [1, 2], [0, 1]),
    ("vertex before edge", "1b 2a . 3 . 4 c . d", "R / L / R / L", "vertex_conflict", 1, [3, 4], [1, 1]),
    ("swaps", SWAP, "R / L", "edge_conflict", 1, [1, 2], [0, 1]),
    ("runs into one that has not started", "1 2 a b . . . . .", "R R / ", "vertex_conflict", 1, [1, 2], [0, 1]),
    ("runs into one that has finished", RESTING, "R / U R R", "vertex_conflict", 3, [1, 2], [0, 2]),
    ("earliest step wins", "1 . . . 2 . a . b", "R U / L L", "out_of_bounds", 2, [1], [-1, 1]),
    ("lowest pair wins", "1b . 2a 3d . 4c . . .", "R / L / R / L", "vertex_conflict", 1, [1, 2], [0, 1]),
    ("stops short", ROW, "D D / ", "goal_not_reached", 2, [1, 2], [2, 0]),
    ("no actions at all", ROW, " / ", "goal_not_reached", 0, [1, 2], [0, 0]),
    ("passes its goal", "1 a . 2 . . b . .", "R R / D", "goal_not_reached", 2, [1], [0, 2]),
]


@pytest.mark.parametrize(
    ("picture", "text", "outcome", "step", "agents", "cell"),
    [c[1:] for c in VIOLATIONS],
    ids=[c[0] for c in VIOLATIONS],
)
def test_the_first_violation_decides(
    picture: str, text: str, outcome: str, step: int, agents: list[int], cell: list[int]
) -> None:
    violation = execute(board(picture), plans(text)).violation
    assert violation is not None
    assert (violation.outcome, violation.facts()) == (outcome, {"step": step, "agents": agents, "cell": cell})


COSTS = [
    ("following is legal", "1 2a b . . . . . .", "R / R", 1, 2),
    ("a full rotation is legal", RING, "D / L / U / R", 1, 4),
    ("waits before arrival count", "1 . a . 2 b . . .", ". R R / R", 3, 4),
    ("waits after arrival are free", "1 . a . 2 b . . .", "R R . . . / R . .", 2, 3),
    ("waiting on the goal and then leaving it counts up to the last arrival", "1 a . . . . 2 b .", "R . D U / R", 4, 5),
]


@pytest.mark.parametrize(("picture", "text", "makespan", "costs"), [c[1:] for c in COSTS], ids=[c[0] for c in COSTS])
def test_arrival_is_the_step_after_which_an_agent_stays_on_its_goal(
    picture: str, text: str, makespan: int, costs: int
) -> None:
    run = execute(board(picture), plans(text))
    assert run.violation is None
    assert (run.makespan, run.sum_of_costs) == (makespan, costs)


def verdict(
    picture: str, text: str, makespan: int, costs: int, objective: str = "makespan", truncated: bool = False
) -> Any:
    lines = "\n".join(f"{i}: {' '.join(actions)}" for i, actions in enumerate(plans(text), 1))
    return judge(board(picture), {"makespan": makespan, "sum_of_costs": costs}, objective, lines, truncated)


def test_a_plan_at_the_optimum_of_the_objective_earns_one_and_a_longer_one_the_quotient() -> None:
    picture = "1 . a . 2 b . . ."
    assert verdict(picture, "R R / R", 2, 3) == Verdict(
        1.0, "optimal", {"makespan": 2, "sum_of_costs": 3, "optimum": 2}
    )
    slow = verdict(picture, ". R R . / R", 2, 3)
    assert (slow.reward, slow.outcome) == (pytest.approx(2 / 3), "valid")
    lazy = verdict(picture, "R R / . R", 2, 3)
    assert (lazy.reward, lazy.outcome) == (1.0, "optimal"), "the makespan does not mind the second agent's wait"
    lazy = verdict(picture, "R R / . R", 2, 3, objective="sum_of_costs")
    assert (lazy.reward, lazy.outcome) == (0.75, "valid")


def test_a_plan_better_than_its_label_accuses_the_label() -> None:
    found = verdict("1 . a . 2 b . . .", "R R / R", 3, 4)
    assert isinstance(found, Failure) and found.kind is FailureKind.DATA


def test_an_illegal_plan_earns_nothing_and_names_step_agents_and_cell() -> None:
    assert verdict(SWAP, "R / L", 4, 8) == Verdict(
        0.0, "edge_conflict", {"step": 1, "agents": [1, 2], "cell": [0, 1], "optimum": 4}
    )


PATHS = [
    ("jumps over a cell", ROW, "r0c0 r0c2 / r0c1", 1, [1], [0, 2]),
    ("jumps across a corner", ROW, "r0c0 / r0c1 r1c2", 1, [2], [1, 2]),
    ("a jump comes before other faults of its step", ROW, "r0c0 r-1c0 / r0c1 r2c2", 1, [2], [2, 2]),
    ("begins elsewhere", ROW, "r0c0 r1c0 / r1c1 r2c1", 0, [2], [1, 1]),
    ("omits the start", ROW, "r1c0 / r0c1", 0, [1], [1, 0]),
]


def paths(text: str) -> str:
    return "\n".join(f"{i}: {part}" for i, part in enumerate(text.split("/"), 1))


@pytest.mark.parametrize(
    ("picture", "text", "step", "agents", "cell"), [c[1:] for c in PATHS], ids=[c[0] for c in PATHS]
)
def test_a_path_that_jumps_is_an_illegal_move(
    picture: str, text: str, step: int, agents: list[int], cell: list[int]
) -> None:
    found = judge(board(picture), {"makespan": 4, "sum_of_costs": 8}, "makespan", paths(text), False, "coordinates")
    facts = {"step": step, "agents": agents, "cell": cell, "optimum": 4}
    assert found == Verdict(0.0, "illegal_move", facts)


def test_a_path_is_judged_as_the_actions_along_it() -> None:
    picture, optima = "1 . a . 2 b . . .", {"makespan": 2, "sum_of_costs": 3}
    for text, path in {
        "R R / R": "r0c0 r0c1 r0c2 / r1c1 r1c2",
        ". R R / R": "r0c0 r0c0 r0c1 r0c2 / r1c1 r1c2",
        "R R / ": "r0c0 r0c1 r0c2 / ",
        "R D / R": "r0c0 r0c1 r1c1 / r1c1 r1c2",
        "D R / L": "r0c0 r1c0 r1c1 / r1c1 r1c0",
        "U / R": "r0c0 r-1c0 / r1c1 r1c2",
    }.items():
        found = judge(board(picture), optima, "makespan", paths(path), False, "coordinates")
        assert found == verdict(picture, text, 2, 3), text


def test_only_runs_on_paths_know_the_outcome_of_a_jump() -> None:
    """An outcome is a word of the engineer's evidence: a new one would change every other run."""
    words = [str(outcome.value) for outcome in MapfFrozenLake().Outcome]
    on_paths = MapfFrozenLake(MapfSettings(plan_format="coordinates"))
    assert "illegal_move" not in words
    assert [str(o.value) for o in on_paths.Outcome if o.value != "illegal_move"] == words
    assert isinstance(on_paths, MapfFrozenLake) and len(list(type(on_paths).Outcome)) == len(words) + 1


SHAPED = Shaping(goals=0.2, prefix=0.1)


def shaped(text: str, shaping: Shaping = SHAPED) -> tuple[str, float]:
    lines = "\n".join(f"{i}: {' '.join(actions)}" for i, actions in enumerate(plans(text), 1))
    optima = {"makespan": 2, "sum_of_costs": 3}
    found = judge(board("1 . a . 2 b . . ."), optima, "makespan", lines, False, shaping=shaping)
    assert isinstance(found, Verdict)
    return found.outcome, found.reward


def test_shaping_credits_goals_and_legal_steps_and_keeps_every_valid_plan_above() -> None:
    assert shaped("R R / R") == ("optimal", 1.0)
    assert shaped(". R R / R") == ("valid", pytest.approx(0.3 + 0.7 * 2 / 3))
    assert shaped("R / R") == ("goal_not_reached", pytest.approx(0.2 / 2 + 0.1 / 2))
    assert shaped(". . . / R") == ("goal_not_reached", pytest.approx(0.2 / 2 + 0.1))
    assert shaped(" / ") == ("goal_not_reached", 0.0)
    assert shaped("R U / R") == ("out_of_bounds", pytest.approx(0.2 / 2 + 0.1 / 2))
    assert shaped("U / R") == ("out_of_bounds", 0.0), "a step that breaks a rule is not carried out"
    late = " ".join(["."] * 500 + ["R", "R"])
    assert shaped(f"{late} / R")[1] > 0.3
    for goals, prefix in ((0.5, 0.0), (0.0, 0.5), (0.1, 0.2), (0.3, 0.2), (0.07, 0.41)):
        assert shaped("R R / R", Shaping(goals, prefix)) == ("optimal", 1.0)


def test_shaping_changes_rewards_and_no_outcome_and_is_off_unless_asked_for() -> None:
    plain, credited = (
        MapfFrozenLake(MapfSettings(sizes=(3,))),
        MapfFrozenLake(MapfSettings(sizes=(3,), goal_credit=0.3, prefix_credit=0.2)),
    )
    rng, rewards = random.Random(3), set()
    for task in plain.generate(plain.default_knobs(), 4, 0, 200):
        words = [[rng.choice([*MOVES]) for _ in range(rng.randint(0, 3))] for _ in range(2)]
        text = "\n".join(f"{i}: {' '.join(plan)}" for i, plan in enumerate(words, 1))
        one, other = plain.score(task, text), credited.score(task, text)
        assert isinstance(one, Verdict) and isinstance(other, Verdict)
        assert (one.outcome, one.facts) == (other.outcome, other.facts)
        assert one.reward > 0 or other.reward <= 0.5
        rewards.add(other.reward)
    assert len(rewards) > 5


@pytest.mark.parametrize("credits", [(0.3, 0.3), (-0.1, 0.0), (0.0, 0.6), (float("nan"), 0.0)])
def test_credit_must_leave_half_of_the_reward_to_valid_plans(credits: tuple[float, float]) -> None:
    with pytest.raises(ValidationError, match="_credit"):
        MapfSettings(goal_credit=credits[0], prefix_credit=credits[1])


@pytest.mark.parametrize("payload", ["", "[]", "{}", '{"n":3,"holes":[0],"starts":[0,1],"goals":[2,3]}', "1" * 5000])
def test_a_task_that_is_no_board_is_a_data_failure(payload: str) -> None:
    found = MapfFrozenLake().score(Task("mapf_frozenlake", payload, "3x3", "train", 0), "1: UP\n2: UP")
    assert isinstance(found, Failure) and found.kind is FailureKind.DATA


def test_the_checker_and_the_solvers_validator_agree_on_every_plan() -> None:
    from solvers import validate_plan

    rng = random.Random(5)
    kinds = set()
    for _ in range(4_000):
        n, agents = rng.randint(3, 5), rng.randint(2, 4)
        cells = list(range(n * n))
        holes = tuple(sorted(rng.sample(cells, rng.randint(0, 3))))
        free = [c for c in cells if c not in holes]
        starts, goals = rng.sample(free, agents), rng.sample(free, agents)
        if any(s == g for s, g in zip(starts, goals)):
            continue
        some = Board(n, holes, tuple(starts), tuple(goals))
        plan = [tuple(rng.choice([*MOVES]) for _ in range(rng.randint(0, 4))) for _ in starts]
        if rng.random() < 0.5:  # random walks rarely arrive: make their ends the goals
            ends = execute(some, plan).states[-1]
            if all(s != e for s, e in zip(starts, ends)) and len(set(ends)) == agents:
                some = Board(n, holes, some.starts, ends)
        grid = np.zeros(n * n, dtype=np.bool_)
        grid[list(holes)] = True
        run, check = execute(some, plan), validate_plan(grid.reshape(n, n), some.starts, some.goals, plan)
        assert (run.violation is None) == check.valid
        if run.violation is None:
            assert (run.makespan, run.sum_of_costs) == (check.makespan, check.sum_of_costs)
            kinds.add("valid")
        else:
            assert check.violation is not None
            kind, step = check.violation[:2]
            assert (run.violation.outcome, run.violation.step) == (kind, step)
            kinds.add(kind)
    assert len(kinds) >= 6, kinds


def test_the_oracle_is_optimal_for_either_objective() -> None:
    for objective in ("makespan", "sum_of_costs"):
        environment = MapfFrozenLake(MapfSettings(objective=objective, sizes=(3, 5, 8)))
        for task in environment.generate(environment.default_knobs(), 11, 0, 200):
            found = environment.score(task, environment.answer(task))
            assert isinstance(found, Verdict) and (found.outcome, found.reward) == ("optimal", 1.0)


def test_a_rendering_shows_the_board_the_paths_and_the_verdict() -> None:
    data = board(SWAP).payload() | {
        "makespan": 3,
        "sum_of_costs": 6,
        "wait_makespan": True,
        "wait_sum_of_costs": False,
    }
    task = Task("mapf_frozenlake", canonical_json(data), "3x3", "train", 0)
    shown = MapfFrozenLake().render(task, "1: DOWN RIGHT UP\n2: WAIT WAIT LEFT")
    assert " 0  1b 2a ." in shown
    assert "agent 1: r0c0 r1c0 r1c1 r0c1" in shown
    assert shown.splitlines()[-1].startswith("optimal, reward 1.000: makespan 3")
    crash = MapfFrozenLake().render(task, "1: RIGHT\n2: LEFT")
    assert crash.splitlines()[-1] == "edge_conflict, reward 0.000: step 1, agents [1, 2], cell [0, 1], optimum 3"
