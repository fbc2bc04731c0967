"""MAPF-FrozenLake: plan collision-free paths for several agents on a board with holes, in one answer."""

from __future__ import annotations

import enum
import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from environments import base
from environments.base import Failure, FailureKind, FrozenSet, Labeller, Message, Problem, Task, Verdict, Yield
from environments.mapf_frozenlake import prompt, render, yields
from environments.mapf_frozenlake.board import Board, canonical_form
from environments.mapf_frozenlake.generator import LabelledBoard, draft_item, generate
from environments.mapf_frozenlake.labeller import InProcessLabeller
from environments.mapf_frozenlake.settings import MapfKnobs, MapfRow, MapfSettings, stratum_name
from environments.mapf_frozenlake.verdict import SOLVED, MapfOutcome, judge

LABELS = ("makespan", "sum_of_costs", "wait_makespan", "wait_sum_of_costs")


class MapfFrozenLake:
    """The environment. A task payload holds n, holes, starts, goals and LABELS; labellers see the first four."""

    name: ClassVar[str] = "mapf_frozenlake"
    version: ClassVar[str] = "1"
    Settings: ClassVar[type[BaseModel]] = MapfSettings
    Knobs: ClassVar[type[base.AnyKnobs]] = MapfKnobs
    Outcome: ClassVar[type[enum.StrEnum]] = MapfOutcome
    solved: ClassVar[frozenset[str]] = SOLVED

    def __init__(self, settings: BaseModel | None = None, labeller: Labeller | None = None) -> None:
        if settings is None:
            settings = MapfSettings()
        if not isinstance(settings, MapfSettings):
            raise TypeError(f"mapf_frozenlake takes MapfSettings, not {type(settings).__name__}")
        self.settings = settings
        self.labeller: Labeller = labeller or InProcessLabeller()
        self._yields = yields.YieldTable(labeller) if labeller else yields.in_process_table()

    # ---------------------------------------------------------------------------------------------------------- knobs

    def stratum_names(self) -> tuple[str, ...]:
        """The map sizes of this run, smallest first."""
        return tuple(stratum_name(n) for n in self.settings.sizes)

    def default_knobs(self) -> MapfKnobs:
        """Equal shares, a few holes, and about the share of waits that chance gives on small boards."""
        return MapfKnobs(strata={name: MapfRow() for name in self.stratum_names()})

    def random_knobs(self, rng: random.Random) -> MapfKnobs:
        """Every knob uniform on its grid; rows that the generator can't meet get the nearest value that it can."""
        drawn = base.random_knobs(MapfKnobs, MapfRow, self.stratum_names(), rng)
        return self.repaired(MapfKnobs.model_validate(drawn.model_dump()))

    def repaired(self, knobs: MapfKnobs) -> MapfKnobs:
        """The same knobs with every infeasible value replaced by the nearest feasible one, idle rows included.

        A size on which these agents find no board at all loses its share. Raises InfeasibleKnobs if none is left.
        """
        knobs = self._own(knobs)
        for _ in range(3):  # a new hole ratio may need a new wait ratio; a third round finds nothing to do
            found = yields.problems(self._yields, knobs, self.settings.agents, self.settings.objective, idle_rows=True)
            rows = {name: row.model_dump() for name, row in knobs.strata.items()}
            for problem in found:
                rows[problem.stratum]["share" if problem.nearest is None else problem.knob] = problem.nearest or 0
            if not any(row["share"] for row in rows.values()):
                raise yields.InfeasibleKnobs(found)
            knobs = MapfKnobs.model_validate({"strata": rows})
        return knobs

    def strata(self, knobs: base.AnyKnobs) -> dict[str, float]:
        """Weight of each map size."""
        return self._own(knobs).weights()

    def reweight(self, knobs: base.AnyKnobs, weights: Mapping[str, float]) -> MapfKnobs:
        """The same boards in other proportions."""
        reweighted = self._own(knobs).reweighted(weights)
        return MapfKnobs.model_validate(reweighted.model_dump())

    def feasibility(self, knobs: base.AnyKnobs) -> list[Problem]:
        """Knobs that under 1 in 5 000 candidates can meet, with the nearest value that works."""
        return yields.problems(self._yields, self._own(knobs), self.settings.agents, self.settings.objective)

    def _own(self, knobs: base.AnyKnobs) -> MapfKnobs:
        if not isinstance(knobs, MapfKnobs):
            knobs = MapfKnobs.model_validate(knobs.model_dump())
        if set(knobs.strata) != set(self.stratum_names()):
            raise ValueError(f"knobs have rows {list(knobs.strata)}, this run has {list(self.stratum_names())}")
        # Rows in table order: the stream depends on the order, the digest of the knobs doesn't.
        return knobs.model_copy(update={"strata": {name: knobs.strata[name] for name in self.stratum_names()}})

    # ---------------------------------------------------------------------------------------------------------- tasks

    def generate(
        self, knobs: base.AnyKnobs, seed: int, start: int, count: int, *, split: str = "train", stage: int = 0
    ) -> list[Task]:
        """Items ``start`` .. ``start + count - 1``. Raises InfeasibleKnobs or LabelFailure, never skips an item."""
        return [task for task, _ in self._items(self._own(knobs), seed, start, count, split, stage)]

    def generation_report(
        self, knobs: base.AnyKnobs, seed: int, start: int, count: int, *, split: str = "train", stage: int = 0
    ) -> dict[str, Yield]:
        """What it took to generate these items, by stratum: candidates drawn, boards kept, distinct among the kept."""
        drawn: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        forms: defaultdict[str, set[Any]] = defaultdict(set)
        for task, labelled in self._items(self._own(knobs), seed, start, count, split, stage):
            drawn[task.stratum] += labelled.drawn
            kept[task.stratum] += 1
            forms[task.stratum].add(canonical_form(labelled.board))
        return {name: Yield(drawn[name], kept[name], len(forms[name])) for name in self.stratum_names()}

    def _items(
        self, knobs: MapfKnobs, seed: int, start: int, count: int, split: str, stage: int
    ) -> list[tuple[Task, LabelledBoard]]:
        settings, knobs_digest = self.settings, knobs.digest()
        if problems := self.feasibility(knobs):
            raise yields.InfeasibleKnobs(problems)
        drafts = [draft_item(knobs, knobs_digest, seed, split, stage, i) for i in range(start, start + count)]
        boards = generate(drafts, knobs, settings.agents, settings.objective, self.labeller, self._yields)
        items = []
        for draft in drafts:
            labelled = boards[draft.index]
            payload = labelled.board.payload() | {label: getattr(labelled, label) for label in LABELS}
            text = base.canonical_json(payload)
            items.append((Task(self.name, text, draft.stratum, split, draft.index, stage, knobs_digest), labelled))
        return items

    def prompt(self, task: Task) -> list[Message]:
        """One user turn in the run's template."""
        board = Board.from_payload(task.data())
        if self.settings.template == "compact":
            return prompt.compact_prompt(board)
        return prompt.text_prompt(board, self.settings.objective)

    def answer(self, task: Task) -> str:
        """An optimal plan, solved for again: payloads carry labels, not plans."""
        import numpy as np

        import solvers

        board = Board.from_payload(task.data())
        holes = np.zeros(board.n * board.n, dtype=np.bool_)
        holes[list(board.holes)] = True
        labels = solvers.solve(holes.reshape(board.n, board.n), board.starts, board.goals)
        plan = labels.plan_makespan if self.settings.objective == "makespan" else labels.plan_sum_of_costs
        if plan is None:
            raise ValueError(f"no plan for task {task.id} (status {labels.status}): {board}")
        return prompt.format_answer(plan)

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict | Failure:
        """Judge any string; a payload that is no labelled board is a data failure."""
        try:
            data = task.data()
            board = Board.from_payload(data)
            optima = {name: int(data[name]) for name in ("makespan", "sum_of_costs")}
            if min(optima.values()) < 1:
                raise ValueError(f"an optimum below 1: {optima}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return Failure(FailureKind.DATA, f"task {task.id} is no labelled board: {type(error).__name__}: {error}")
        return judge(board, optima, self.settings.objective, completion, truncated)

    # ----------------------------------------------------------------------------------------------------- fixed sets

    def validation(self) -> FrozenSet:
        """150 boards per size with two agents, for steering."""
        from environments.mapf_frozenlake import frozen

        return frozen.frozen_set("validation", self.name, self.settings.sizes, self.settings.agents)

    def held_out(self) -> FrozenSet:
        """334 boards for each of 3x3 to 5x5 and 150 for each larger size with two agents, for claims."""
        from environments.mapf_frozenlake import frozen

        return frozen.frozen_set("held_out", self.name, self.settings.sizes, self.settings.agents)

    # --------------------------------------------------------------------------------------------------------- people

    def render(self, task: Task, completion: str | None = None) -> str:
        """The board with its labels and, given an answer, the paths and the verdict."""
        data = task.data()
        board = Board.from_payload(data)
        labels = ", ".join(f"{label} {json.dumps(data.get(label))}" for label in LABELS)
        parts = [f"{task.stratum}, optimum: {labels}", board.ascii(), render.legend(board)]
        if completion is not None:
            parts += [render.paths(board, completion), render.verdict_line(self.score(task, completion))]
        return "\n".join(part for part in parts if part)

    def vocabulary(self) -> tuple[str, ...]:
        """Every word of compact prompts and answers of this run; newline comes with the tokenizer."""
        return prompt.compact_vocabulary(self.settings.sizes, self.settings.agents)


if TYPE_CHECKING:
    _contract: type[base.Environment] = MapfFrozenLake
