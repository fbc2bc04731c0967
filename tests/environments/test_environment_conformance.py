"""The conformance suite finds each way of breaking the contract, and says in a sentence what is wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from environments.base import Knobs, Message, Outcomes, Problem, StratumKnobs, Task, Verdict, knob
from environments.conformance import CHECKS, ConformanceError, assert_conforms, run_checks
from environments.simple import SimpleEnvironment
from environments.subject import Subject

HERE = __name__
CALLS = iter(range(10**9))


class DoubleRow(StratumKnobs):
    top: int = knob(500, minimum=100, maximum=900, step=100, unit="", harder=1, description="largest number")


class SizedRow(StratumKnobs):
    top: int = knob(500, minimum=100, maximum=900, step=100, unit="units", harder=1, description="largest number")


class DoubleOutcome(Outcomes):
    WRONG = "wrong", "another number"
    RIGHT = "right", "twice the number"


class Doubles(SimpleEnvironment):
    """Double a number: keeps the contract."""

    name: ClassVar[str] = "doubles"
    Knobs: ClassVar[Any] = Knobs[SizedRow]
    Outcome: ClassVar[Any] = DoubleOutcome
    solved: ClassVar[frozenset[str]] = frozenset({"right"})

    def stratum_names(self) -> tuple[str, ...]:
        return ("even", "odd")

    def draw(self, stratum: str, row: Any, rng: random.Random) -> Mapping[str, Any] | None:
        number = rng.randrange(row.top)
        return {"number": number} if number % 2 == (stratum == "odd") else None

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": f"Double {task.data()['number']}"}]

    def answer(self, task: Task) -> str:
        return f"it is {2 * task.data()['number']}"

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        right = completion.strip() == self.answer(task)
        return Verdict(float(right), "right" if right else "wrong")


class NoUnit(Doubles):
    Knobs: ClassVar[Any] = Knobs[DoubleRow]


class TwoWords(Doubles):
    def stratum_names(self) -> tuple[str, ...]:
        return ("even", "very odd")


class Thawed(BaseModel):
    pass


class LooseSettings(Doubles):
    Settings: ClassVar[type[BaseModel]] = Thawed


class Undescribed(Doubles):
    class Outcome(Outcomes):
        WRONG = "wrong"
        RIGHT = "right", "twice the number"


class GlobalChance(Doubles):
    def draw(self, stratum: str, row: Any, rng: random.Random) -> Mapping[str, Any] | None:
        return super().draw(stratum, row, random.Random())


class BatchDependent(Doubles):
    def generate(self, knobs: Any, seed: int, start: int, count: int, **keys: Any) -> list[Task]:
        return super().generate(knobs, seed, 0, count, **keys)


class SeedIgnored(Doubles):
    def generate(self, knobs: Any, seed: int, start: int, count: int, **keys: Any) -> list[Task]:
        return super().generate(knobs, 1, start, count, **keys)


class HalfAnswers(Doubles):
    def answer(self, task: Task) -> str:
        return str(task.data()["number"])

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        right = completion == str(2 * task.data()["number"])
        return Verdict(float(right), "right" if right else "wrong")


class KindToEchoes(Doubles):
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        found = str(task.data()["number"]) in completion
        return Verdict(0.1 if found else 0.0, "wrong")


class KindToNothing(Doubles):
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        return super().score(task, completion) if completion else Verdict(1.0, "right")


class Brittle(Doubles):
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        return super().score(task, completion.encode().decode("ascii"))


class Moody(Doubles):
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        return Verdict(next(CALLS) % 2 / 2, "wrong")


class Generous(Doubles):
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        return Verdict(float(len(completion)), "wrong")


class Inventive(Doubles):
    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict:
        return Verdict(0.0, "odd")


class Leaky(Doubles):
    fixed_tasks: Mapping[str, int] = {"validation": 150, "held_out": 300}

    def split_of(self, data: Mapping[str, Any]) -> str:
        return "held_out" if data["number"] % 4 < 2 else "train"

    def fixed(self, name: str, stratum: str) -> list[Task]:
        return super().fixed("held_out", stratum)


class Trained(Doubles):
    def fixed(self, name: str, stratum: str) -> list[Task]:
        alone = self.reweight(self.default_knobs(), {stratum: 1.0})
        return list({t.id: t for t in self.generate(alone, 0, 0, 300)}.values())


class Reshaped(Doubles):
    def reweight(self, knobs: Any, weights: Mapping[str, float]) -> Any:
        rows = {name: row.model_copy(update={"top": 100}) for name, row in knobs.strata.items()}
        return super().reweight(knobs.model_copy(update={"strata": rows}), weights)


class Unmeetable(Doubles):
    def feasibility(self, knobs: Any) -> list[Problem]:
        return [Problem("odd", "top", 500, "too many", 400)]


class HashOrdered(Doubles):
    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": " ".join({"Double", "twice", "two", "times", str(task.data()["number"])})}]


BROKEN: list[tuple[type[Doubles], str, str]] = [
    (NoUnit, "knobs", "knob top lacks a unit"),
    (TwoWords, "knobs", "'very odd' is not one word"),
    (LooseSettings, "class", "must be frozen"),
    (Undescribed, "class", "outcome wrong has no description"),
    (GlobalChance, "stream", "another task the second time"),
    (BatchDependent, "stream", "begins in the middle"),
    (SeedIgnored, "stream", "another seed gives the very same tasks"),
    (HalfAnswers, "own answers", "wrong with reward 0; a best answer must earn 1"),
    (KindToEchoes, "floor", "the prompt itself gets wrong with reward 0.1"),
    (KindToNothing, "floor", "the text '' gets right with reward 1"),
    (Moody, "any text", "two different verdicts"),
    (Generous, "any text", "outside 0..1"),
    (Inventive, "any text", "'odd', which is no outcome"),
    (Leaky, "fixed sets", "tasks are in both fixed sets"),
    (Trained, "fixed sets", "were generated for training too"),
    (Reshaped, "weights", "reweight changed knobs of"),
    (Unmeetable, "feasibility", "the default knobs are infeasible: odd.top = 500: too many"),
    (HashOrdered, "fresh process", "prompts differ in a fresh process"),
]


@pytest.mark.parametrize(("broken", "check", "sentence"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_each_broken_clause_is_found_and_named(broken: type[Doubles], check: str, sentence: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        CHECKS[check](Subject(broken(), f"{HERE}:{broken.__name__}"))
    assert sentence in str(caught.value)


def test_an_environment_that_keeps_the_contract_passes_every_check() -> None:
    assert_conforms(Doubles())


def test_a_check_that_breaks_down_has_failed_and_the_others_still_run() -> None:
    results = {result.name: result for result in run_checks(Brittle(), count=10)}
    assert list(results) == list(CHECKS)
    assert not results["floor"].ok and "UnicodeEncodeError" in results["floor"].problem
    assert results["stream"].ok
    with pytest.raises(ConformanceError, match="floor: FAILED: UnicodeEncodeError"):
        assert_conforms(Brittle(), count=10)


def test_a_class_that_no_other_process_can_import_is_refused() -> None:
    with pytest.raises(ConformanceError, match="no_such_package"):
        CHECKS["fresh process"](Subject(Doubles(), "no_such_package:Doubles"))


def test_knobs_without_tasks_are_infeasible_and_the_nearest_value_mends_them() -> None:
    class Rare(Doubles):
        def draw(self, stratum: str, row: Any, rng: random.Random) -> Mapping[str, Any] | None:
            return super().draw(stratum, row, rng) if row.top <= 300 else None

    environment = Rare()
    found = environment.feasibility(environment.default_knobs())
    assert [(p.stratum, p.knob, p.value, p.nearest) for p in found] == [
        ("even", "top", 500, 300),
        ("odd", "top", 500, 300),
    ]
    for seed in range(5):
        assert environment.feasibility(environment.random_knobs(random.Random(seed))) == []


def test_fixed_tasks_are_reserved_by_what_they_are_not_by_how_they_look() -> None:
    class Unordered(Doubles):
        def draw(self, stratum: str, row: Any, rng: random.Random) -> Mapping[str, Any] | None:
            return {"number": 2 * rng.randrange(100) + (stratum == "odd"), "colour": rng.choice(["red", "blue"])}

        def identity(self, data: Mapping[str, Any]) -> Any:
            return data["number"]

    environment = Unordered()
    fixed = {t.data()["number"] for s in (environment.validation(), environment.held_out()) for t in s.tasks}
    trained = {t.data()["number"] for t in environment.generate(environment.default_knobs(), 0, 0, 500)}
    assert fixed and not fixed & trained
