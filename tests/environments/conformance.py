"""What every environment must keep, as one function: run it on your own with ``assert_conforms(environment)``."""

from __future__ import annotations

import enum
import json
import random
from typing import Any

from environments.base import Environment, Failure, FrozenSet, StratumKnobs, Task, Verdict

HOSTILE = (
    "",
    " \n\t ",
    "I do not know.",
    "\x00\ud800\U0001f600" * 3,
    "<think>never closed",
    "</think></think>",
    "{" * 500,
    "1: " + "UP " * 5_000,
    "9" * 6_000 + ": UP",
)


def assert_conforms(environment: Environment, *, count: int = 40) -> None:
    """Every clause of the contract on a small stream."""
    _assert_class(environment)
    knobs = environment.default_knobs()
    _assert_knobs(environment, knobs)
    tasks = environment.generate(knobs, 7, 0, count)
    _assert_stream(environment, knobs, tasks)
    for task in tasks:
        _assert_task(environment, task)


def _assert_class(environment: Environment) -> None:
    cls = type(environment)
    assert cls.name and cls.version
    outcomes = [member.value for member in cls.Outcome]
    assert issubclass(cls.Outcome, enum.StrEnum) and len(outcomes) == len(set(outcomes))
    assert all(getattr(member, "description", "") for member in cls.Outcome)
    assert cls.solved and cls.solved <= set(outcomes)
    assert cls.Settings.model_config.get("frozen") and cls.Settings.model_config.get("extra") == "forbid"
    assert json.dumps(cls.Settings.model_json_schema()) and json.dumps(cls.Knobs.model_json_schema())


def _assert_knobs(environment: Environment, knobs: Any) -> None:
    names = environment.stratum_names()
    assert names and len(set(names)) == len(names)
    assert tuple(knobs.strata) == names
    assert environment.feasibility(knobs) == []
    weights = environment.strata(knobs)
    assert set(weights) == set(names) and abs(sum(weights.values()) - 1) < 1e-9
    for row in knobs.strata.values():
        assert isinstance(row, StratumKnobs)
        for spec in row.specs():
            assert getattr(row, spec.name) in spec.grid and spec.description and spec.harder in (-1, 0, 1)
    again = type(knobs).model_validate_json(knobs.model_dump_json())
    assert again == knobs and again.digest() == knobs.digest()
    focused = environment.reweight(knobs, {names[0]: 1.0})
    assert environment.strata(focused)[names[0]] == 1.0
    for seed in range(3):
        drawn = environment.random_knobs(random.Random(seed))
        assert environment.feasibility(drawn) == []
        assert drawn == environment.random_knobs(random.Random(seed))


def _assert_stream(environment: Environment, knobs: Any, tasks: list[Task]) -> None:
    count = len(tasks)
    assert [task.index for task in tasks] == list(range(count))
    assert {task.environment for task in tasks} == {type(environment).name}
    assert {task.stratum for task in tasks} <= set(environment.stratum_names())
    assert environment.generate(knobs, 7, 0, count) == tasks, "the same position gives the same task"
    assert environment.generate(knobs, 7, count // 2, count - count // 2) == tasks[count // 2 :], "seeks anywhere"
    assert environment.generate(knobs, 7, count - 1, 1) == tasks[-1:], "alone as in company"
    others = [
        environment.generate(knobs, 8, 0, count),
        environment.generate(knobs, 7, 0, count, split="other"),
        environment.generate(knobs, 7, 0, count, stage=1),
    ]
    for other in others:
        assert [t.payload for t in other] != [t.payload for t in tasks], "seed, split and stage change the stream"


def _assert_task(environment: Environment, task: Task) -> None:
    outcomes = {member.value for member in type(environment).Outcome}
    assert json.loads(task.payload) == task.data()
    messages = environment.prompt(task)
    assert messages and messages[-1]["role"] == "user"
    assert all(set(m) == {"role", "content"} and m["content"] for m in messages)
    best = environment.answer(task)
    verdict = environment.score(task, best)
    assert isinstance(verdict, Verdict) and verdict.reward == 1.0 and verdict.outcome in type(environment).solved
    echo = "\n".join(message["content"] for message in messages)
    for text in (*HOSTILE, echo):
        for truncated in (False, True):
            judged = environment.score(task, text, truncated=truncated)
            assert isinstance(judged, Verdict) and judged.reward == 0.0, text[:80]
            assert judged.outcome in outcomes - type(environment).solved
            json.dumps(judged.facts)
    assert environment.score(task, best) == verdict, "scoring has no memory"
    assert environment.render(task) and environment.render(task, best) and environment.render(task, "?")


def assert_frozen_set(environment: Environment, frozen: FrozenSet) -> None:
    """A fixed set repeats, its tasks differ, and its oracle answers are right."""
    assert not isinstance(frozen, Failure) and frozen.tasks and frozen.checksum
    ids = [task.id for task in frozen.tasks]
    assert len(set(ids)) == len(ids)
    assert {task.stratum for task in frozen.tasks} == set(environment.stratum_names())
    for task in frozen.tasks[:: max(1, len(frozen.tasks) // 20)]:
        verdict = environment.score(task, environment.answer(task))
        assert isinstance(verdict, Verdict) and verdict.reward == 1.0
