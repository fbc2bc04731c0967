"""The step-by-step views pass their libraries' own checks and agree with the judge of whole plans."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.base import Task, Verdict
from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.plan import Actions, parse_plan
from environments.mapf_frozenlake.prompt import format_answer
from environments.mapf_frozenlake.settings import MapfSettings
from environments.mapf_frozenlake.stepping import ACTIONS, Deck, Episode

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")


def environment(**settings: Any) -> MapfFrozenLake:
    return MapfFrozenLake(MapfSettings(**settings))


def joint(plans: tuple[Actions, ...]) -> list[list[int]]:
    """The steps of a plan; an agent whose list has ended waits."""
    steps = max(map(len, plans))
    return [[ACTIONS.index(plan[t] if t < len(plan) else "WAIT") for plan in plans] for t in range(steps)]


def oracle(env: MapfFrozenLake, task: Task) -> tuple[Actions, ...]:
    plans = parse_plan(env.answer(task), env.settings.agents)
    assert isinstance(plans, tuple)
    return plans


def make(**arguments: Any) -> Any:
    import environments.mapf_frozenlake.gymnasium_view  # noqa: F401

    return gymnasium.make("envwright/MapfFrozenLake-v0", **arguments)


def parallel(**arguments: Any) -> Any:
    from environments.mapf_frozenlake.pettingzoo_view import MapfFrozenLakeParallelEnv

    return MapfFrozenLakeParallelEnv(**arguments)


@pytest.mark.parametrize("settings", [{"sizes": [3, 5]}, {"sizes": [4], "agents": 3}], ids=str)
def test_gymnasium_finds_nothing_wrong(settings: dict[str, Any]) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(settings=settings).unwrapped)


@pytest.mark.parametrize("settings", [{"sizes": [3, 5]}, {"sizes": [4], "agents": 3}], ids=str)
def test_pettingzoo_finds_nothing_wrong(settings: dict[str, Any]) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel(settings=settings), num_cycles=200)
        parallel_seed_test(lambda: parallel(settings=settings), num_cycles=50)


def test_the_optimal_plan_earns_one_in_both_views() -> None:
    for objective in ("makespan", "sum_of_costs"):
        settings = {"sizes": [3, 4], "objective": objective}
        env = environment(**settings)
        tasks = env.generate(env.default_knobs(), 5, 0, 10)
        single, many = make(settings=settings, tasks=tasks), parallel(settings=settings, tasks=tasks)
        for i, task in enumerate(tasks):
            seen, info = single.reset(options={"index": i})
            others, _ = many.reset(options={"index": i})
            assert info["task"] == task.id
            assert (seen == others["agent_1"]).all()
            steps = joint(oracle(env, task))
            for number, actions in enumerate(steps, 1):
                _, reward, terminated, truncated, info = single.step(np.array(actions))
                _, rewards, ends, _, infos = many.step(dict(zip(many.possible_agents, actions, strict=True)))
                last = number == len(steps)
                assert (reward, terminated, truncated) == (float(last), last, False)
                assert set(rewards.values()) == {reward} and set(ends.values()) == {terminated}
            assert info["outcome"] == infos["agent_2"]["outcome"] == "optimal"
            assert many.agents == []


def noisy_plans(env: MapfFrozenLake, count: int) -> list[tuple[Task, tuple[Actions, ...]]]:
    """Optimal plans with some steps changed or waits put in, and plans at random."""
    rng = random.Random(11)
    out = []
    for task in env.generate(env.default_knobs(), 9, 0, count):
        lists = [list(plan) for plan in oracle(env, task)]
        for actions in lists:
            for _ in range(rng.choice((0, 0, 1, 2))):
                actions.insert(rng.randrange(len(actions) + 1), rng.choice((*ACTIONS, "WAIT")))
            if rng.random() < 0.2:
                actions[:] = rng.choices(ACTIONS, k=6)
            if rng.random() < 0.2:
                del actions[-1:]
        out.append((task, tuple(map(tuple, lists))))
    return out


def test_stepping_says_what_the_judge_says_of_the_same_plan() -> None:
    outcomes: Counter[str] = Counter()
    for objective, agents in (("makespan", 2), ("sum_of_costs", 3)):
        env = environment(sizes=[3, 4, 5], objective=objective, agents=agents)
        for task, plans in noisy_plans(env, 100):
            steps = joint(plans)
            episode = Episode(task, objective, horizon=len(steps))
            for actions in steps:
                episode.step(actions)
                if episode.verdict is not None:
                    break
            taken = tuple(plan[: len(episode.states)] for plan in plans)
            if episode.verdict is not None and episode.verdict.reward > 0:
                taken = tuple(plan[: len(episode.states) - 1] for plan in plans)
            judged = env.score(task, format_answer(taken))
            assert isinstance(judged, Verdict)
            assert episode.verdict == judged
            assert episode.truncated == (judged.outcome == "goal_not_reached")
            outcomes[judged.outcome] += 1
    expected = {"optimal", "valid", "goal_not_reached", "hole", "out_of_bounds", "vertex_conflict", "edge_conflict"}
    assert set(outcomes) == expected, outcomes


def test_an_illegal_step_ends_the_episode_with_its_outcome() -> None:
    env = make(settings={"sizes": [3]})
    env.reset(seed=1)
    for _ in range(3):
        _, reward, terminated, truncated, info = env.step(np.array([0, 0]))
        if terminated:
            break
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["outcome"] in {"out_of_bounds", "hole", "vertex_conflict"} and info["step"] <= 3
    with pytest.raises(RuntimeError, match="reset first"):
        env.unwrapped.step(np.array([4, 4]))


def test_waiting_ends_at_the_horizon_without_a_reward() -> None:
    env = make(settings={"sizes": [3]}, horizon=4)
    env.reset(seed=2)
    ends = [env.step(np.array([4, 4]))[1:] for _ in range(4)]
    assert [(reward, terminated, truncated) for reward, terminated, truncated, _ in ends] == [
        *[(0.0, False, False)] * 3,
        (0.0, False, True),
    ]
    assert ends[-1][3]["outcome"] == "goal_not_reached"


def test_the_default_horizon_lets_every_fixed_board_be_solved() -> None:
    env = environment()
    for frozen in (env.validation(), env.held_out()):
        assert all(task.data()["makespan"] <= Episode(task, "makespan").horizon for task in frozen.tasks)


def test_a_seed_names_a_board_and_seeds_differ() -> None:
    env = make(settings={"sizes": [4]})
    boards = [env.reset(seed=seed)[1]["task"] for seed in (*range(8), *range(8))]
    assert boards[:8] == boards[8:] and len(set(boards)) == 8
    env.reset(seed=0)
    following = [env.reset()[1]["task"] for _ in range(3)]
    assert len(set(following)) == 3


def test_planes_show_what_blocks_where_agents_are_and_where_they_go() -> None:
    task = environment(sizes=[3]).generate(environment(sizes=[3]).default_knobs(), 0, 0, 1)[0]
    episode = Episode(task, "makespan")
    planes = episode.planes(4, first=1)
    blocked = {episode.board.coordinates(cell) for cell in episode.board.holes}
    outside = {(r, c) for r in range(4) for c in range(4) if max(r, c) == 3}
    assert {tuple(cell) for cell in np.argwhere(planes[0]).tolist()} == blocked | outside
    cells = [episode.board.coordinates(c) for c in (*episode.board.starts[::-1], *episode.board.goals[::-1])]
    assert [tuple(cell) for plane in planes[1:] for cell in np.argwhere(plane).tolist()] == cells


def test_ansi_shows_the_agents_where_they_are_now() -> None:
    env = make(settings={"sizes": [3]}, render_mode="ansi")
    env.reset(seed=3)
    before = env.render()
    assert before == env.unwrapped._episode.board.ascii()
    while env.render() == before:
        *_, terminated, _, _ = env.step(np.array(env.action_space.sample()))
        if terminated:
            env.reset(seed=3)
    assert {"1", "2", "a", "b"} <= set(env.render())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": ()}, "there must be tasks"),
        ({"horizon": 0}, "horizon=0"),
        ({"settings": {"sizes": [2]}}, "from 3 to 10"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Deck(**arguments)


def test_a_task_that_does_not_fit_the_view_is_refused() -> None:
    env = environment(sizes=[5])
    with pytest.raises(ValueError, match="boards up to 4x4"):
        Deck({"sizes": [4]}, tasks=env.generate(env.default_knobs(), 0, 0, 1))


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "gymnasium.md").read_text()
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, "gymnasium.md", "exec"), names)
    assert len(blocks) == 3 and names["env"].unwrapped._episode.task == names["held_out"][12]


def test_the_environment_itself_needs_neither_library() -> None:
    code = "import sys, environments.mapf_frozenlake; print({'gymnasium', 'pettingzoo'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
