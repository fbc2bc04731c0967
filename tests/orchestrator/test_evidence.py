"""Claims about evidence. Holds the toy environment that the engineer's, gate's and dialogues' tests share."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from environments.base import Knobs as KnobsModel
from environments.base import Labeller, Message, Problem, StratumKnobs, knob, random_knobs
from orchestrator.evidence import EnvInfo, bucket, collect, compact, describe, full, remember, swap, vocabulary
from orchestrator.records import Evidence, HistoryEntry


class Grade(enum.StrEnum):
    """Worst first, as the contract asks."""

    description: str

    def __new__(cls, value: str, description: str) -> Grade:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    LOST = "lost", "gave no answer"
    WRONG = "wrong", "answered wrongly"
    FAIR = "fair", "a right answer"
    BEST = "best", "the shortest right answer"


class Row(StratumKnobs):
    walls: int = knob(20, minimum=0, maximum=50, step=10, unit="%", harder=1, description="part of the cells walled")
    hints: int = knob(4, minimum=0, maximum=8, step=2, unit="hints", harder=-1, description="hints in the prompt")


class Table(KnobsModel[Row]):
    pass


class Nothing(BaseModel):
    pass


class Toy:
    """Two strata; walls above 40 on the small one cannot be generated, walls 0 on the large one cannot be mended."""

    name: ClassVar[str] = "toy"
    version: ClassVar[str] = "1"
    Settings: ClassVar[type[BaseModel]] = Nothing
    Knobs: ClassVar[type[KnobsModel[Any]]] = Table
    Outcome: ClassVar[type[enum.StrEnum]] = Grade
    solved: ClassVar[frozenset[str]] = frozenset({"fair", "best"})

    def __init__(self, settings: BaseModel | None = None, labeller: Labeller | None = None) -> None:
        pass

    def stratum_names(self) -> tuple[str, ...]:
        return ("small", "large")

    def default_knobs(self) -> KnobsModel[Any]:
        return Table(strata={name: Row() for name in self.stratum_names()})

    def random_knobs(self, rng: random.Random) -> KnobsModel[Any]:
        return random_knobs(Table, Row, self.stratum_names(), rng)

    def strata(self, knobs: KnobsModel[Any]) -> dict[str, float]:
        return knobs.weights()

    def reweight(self, knobs: KnobsModel[Any], weights: Mapping[str, float]) -> KnobsModel[Any]:
        return knobs.reweighted(weights)

    def feasibility(self, knobs: KnobsModel[Any]) -> list[Problem]:
        small, large = knobs.strata["small"].walls, knobs.strata["large"].walls
        tight = [Problem("small", "walls", small, "no room", 40)] if small > 40 else []
        return tight + ([Problem("large", "walls", large, "too plain")] if large == 0 else [])

    def __getattr__(self, name: str) -> Any:
        # Tasks, prompts and sets are not the engineer's business: a test that touches them has gone wrong.
        raise AttributeError(f"the toy environment has no {name}")


def toy() -> Any:
    return Toy()


INFO = describe(toy())


def table(small: Sequence[int] = (50, 20, 4), large: Sequence[int] = (50, 20, 4)) -> Table:
    rows = {"small": small, "large": large}
    return Table(strata={name: Row(share=r[0], walls=r[1], hints=r[2]) for name, r in rows.items()})


def pairs(**counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(stratum, outcome) for stratum, row in counts.items() for outcome, n in row.items() for _ in range(n)]


def evidence(
    stage: int = 1,
    small: Mapping[str, int] | None = None,
    large: Mapping[str, int] | None = None,
    knobs: Table | None = None,
    history: Sequence[HistoryEntry] = (),
    rationale: str = "",
    info: EnvInfo = INFO,
) -> Evidence:
    small = {"best": 12, "fair": 3, "wrong": 5} if small is None else small
    large = {"best": 1, "wrong": 18, "lost": 1} if large is None else large
    return collect(
        pairs(small=small, large=large),
        info,
        stage=stage,
        stages=4,
        knobs=knobs or table((20, 30, 2), (80, 50, 6)),
        history=history,
        rationale=rationale,
    )


def long_evidence() -> Evidence:
    """Evidence after stage 2, with stages 0 and 1 remembered as a driver would."""
    first = evidence(0, knobs=table((100, 0, 0), (10, 0, 0)))
    second = evidence(1, history=remember(first), small={"best": 4, "wrong": 6})
    return evidence(
        2, history=remember(second), knobs=table((40, 40, 4), (60, 40, 8)), rationale="small hard large hard"
    )


def text(messages: Sequence[Message]) -> str:
    return "\n".join(message["content"] for message in messages)


def test_description_puts_solved_outcomes_first_and_best_before_worst() -> None:
    assert INFO.words == ("best", "fair", "wrong", "lost")
    assert [spec.name for spec in INFO.knobs] == ["share", "walls", "hints"]


def test_counts_hold_every_outcome_and_unknown_ones_are_refused() -> None:
    made = evidence(small={"best": 2})
    assert made.results[0].outcomes == {"best": 2, "fair": 0, "wrong": 0, "lost": 0}
    with pytest.raises(ValueError, match="has no outcome 'melted'"):
        evidence(small={"melted": 1})


def test_history_never_holds_the_random_stage_0() -> None:
    made = long_evidence()
    assert [entry.stage for entry in made.history] == [1]
    for messages in (full(made, INFO), compact(made, INFO)):
        assert "share 100" not in text(messages)
    at_first_redesign = evidence(0, knobs=table((100, 0, 0), (10, 0, 0)))
    assert "History" not in text(full(at_first_redesign, INFO))
    assert "share" not in text(compact(at_first_redesign, INFO))


def test_compact_text_is_one_line_per_stratum_of_configuration_then_result() -> None:
    assert text(compact(long_evidence(), INFO)) == (
        "engineer guide round 3 of 3\n"
        "small share 40 walls 40 hints 4 best c6 fair c2 wrong c3 past 20 30 2 c4\n"
        "large share 60 walls 40 hints 8 best c1 fair c0 wrong c9 lost c1 past 80 50 6 c1"
    )


def test_full_text_gives_raw_counts_knob_table_and_reply_shape() -> None:
    written = text(full(long_evidence(), INFO))
    assert "small: best 12, fair 3, wrong 5 (of 20)" in written
    assert "- walls: 0 to 50 in steps of 10 %; part of the cells walled; a larger value is harder" in written
    assert "- hints: 0 to 8 in steps of 2 hints; hints in the prompt; a larger value is easier" in written
    assert "Round 1\n- small: share 20 %, walls 30 %, hints 2 hints → best 4, fair 0, wrong 6 (of 10)" in written
    assert "Round 3 of 3." in written
    assert written.index("Knobs of each stratum") < written.index('"rationale"')


@pytest.mark.parametrize(
    ("letter", "in_full", "in_compact"),
    [
        ("F", "best 12, fair 3, wrong 5 (of 20)", "best c6"),
        ("G", "Guideline", "guide"),
        ("H", "share 40 %, walls 40 %", "share 40"),
        ("S", "small hard large hard", "said small hard large hard"),
        ("T", "Round 3 of 3", "round 3 of 3"),
    ],
)
def test_each_module_changes_both_renderings_and_only_its_own_part(letter: str, in_full: str, in_compact: str) -> None:
    every = frozenset("FGHST")
    made = long_evidence()
    for render, words in ((full, in_full), (compact, in_compact)):
        assert words in text(render(made, INFO, every))
        assert words not in text(render(made, INFO, every - {letter}))
        assert words in text(render(made, INFO, frozenset({letter})))


def test_every_compact_word_is_in_the_vocabulary() -> None:
    words = set(vocabulary(INFO))
    assert len(words) == len(vocabulary(INFO))
    for made in (long_evidence(), evidence(small={})):
        assert set(text(compact(made, INFO, frozenset("FGHST"))).split()) <= words


def test_buckets_are_tenths_rounded_half_up() -> None:
    assert [bucket(n, 20) for n in (0, 1, 2, 3, 19, 20)] == [0, 1, 1, 2, 10, 10]
    assert bucket(1, 150) == 0
    assert bucket(0, 0) == 0


def test_swap_exchanges_results_and_leaves_the_configuration() -> None:
    made = long_evidence()
    swapped = swap(made, "small", "large")
    assert swapped.results[0].outcomes == made.results[1].outcomes
    assert swapped.history[0].results[1].outcomes == made.history[0].results[0].outcomes
    assert swapped.knobs == made.knobs
    assert swap(swapped, "small", "large") == made
