"""MAPF-FrozenLake: plan collision-free paths for several agents on a board with holes, in one answer."""

from __future__ import annotations

import enum
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import BaseModel

from environments import base
from environments.base import Failure, FailureKind, FrozenSet, Labeller, Message, Problem, Task, Verdict, Yield
from environments.mapf_frozenlake import prompt, render, yields
from environments.mapf_frozenlake.board import Board, canonical_form
from environments.mapf_frozenlake.generator import LABELS, Items, draft_items, generate
from environments.mapf_frozenlake.item_cache import ItemCache
from environments.mapf_frozenlake.labeller import InProcessLabeller
from environments.mapf_frozenlake.plan import Actions
from environments.mapf_frozenlake.settings import MapfKnobs, MapfRow, MapfSettings, stratum_name
from environments.mapf_frozenlake.verdict import SOLVED, ActionOutcome, MapfOutcome, Shaping, execute, judge


class MapfFrozenLake:
    """The environment. A task payload holds n, holes, starts, goals and LABELS; labellers see the first four."""

    name: ClassVar[str] = "mapf_frozenlake"
    version: ClassVar[str] = "1"
    Settings: ClassVar[type[BaseModel]] = MapfSettings
    Knobs: ClassVar[type[base.AnyKnobs]] = MapfKnobs
    Outcome: ClassVar[type[enum.StrEnum]] = ActionOutcome
    solved: ClassVar[frozenset[str]] = SOLVED

    def __new__(cls, settings: BaseModel | None = None, labeller: Labeller | None = None) -> Self:
        """Runs on paths have one outcome more than others, whose engineers must not learn another word for it."""
        on_paths = isinstance(settings, MapfSettings) and settings.plan_format == "coordinates"
        return super().__new__(cast("type[Self]", MapfPaths) if on_paths and cls is MapfFrozenLake else cls)

    def __init__(self, settings: BaseModel | None = None, labeller: Labeller | None = None) -> None:
        if settings is None:
            settings = MapfSettings()
        if not isinstance(settings, MapfSettings):
            raise TypeError(f"mapf_frozenlake takes MapfSettings, not {type(settings).__name__}")
        self.settings = settings
        self.labeller: Labeller = labeller or InProcessLabeller()
        self.cache = ItemCache.from_environment()
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
        knobs = self._own(knobs)
        knobs_digest = knobs.digest()
        return [
            Task(self.name, payload, stratum, split, index, stage, knobs_digest)
            for items in self._items(knobs, seed, start, count, split, stage)
            for index, (payload, stratum) in enumerate(zip(items.payloads, items.strata, strict=True), items.first)
        ]

    def generation_report(
        self, knobs: base.AnyKnobs, seed: int, start: int, count: int, *, split: str = "train", stage: int = 0
    ) -> dict[str, Yield]:
        """What it took to generate these items, by stratum: candidates drawn, boards kept, distinct among the kept."""
        drawn: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        forms: defaultdict[str, set[Any]] = defaultdict(set)
        for items in self._items(self._own(knobs), seed, start, count, split, stage):
            for stratum, payload, candidates in zip(items.strata, items.payloads, items.drawn, strict=True):
                drawn[stratum] += candidates
                kept[stratum] += 1
                forms[stratum].add(self.identity(json.loads(payload)))
        return {name: Yield(drawn[name], kept[name], len(forms[name])) for name in self.stratum_names()}

    def _items(self, knobs: MapfKnobs, seed: int, start: int, count: int, split: str, stage: int) -> Iterator[Items]:
        """The items in order, by ranges: from the cache what it has, the others worked out and kept."""
        settings, end = self.settings, start + count
        position = (seed, split, stage, knobs.digest())
        stream = (*position, settings.agents, settings.objective)
        for kept in (*(self.cache.read(stream, start, count) if self.cache else ()), Items(end, [], [], [])):
            if start < kept.first:
                if problems := self.feasibility(knobs):
                    raise yields.InfeasibleKnobs(problems)
                drafts = draft_items(knobs, position, start, kept.first - start)
                items = generate(drafts, knobs, settings.agents, settings.objective, self.labeller, self._yields)
                if self.cache:
                    self.cache.write(stream, items)
                yield items
            yield kept
            start = kept.first + len(kept.payloads)

    def prompt(self, task: Task) -> list[Message]:
        """One user turn in the run's template."""
        board = Board.from_payload(task.data())
        if self.settings.template == "compact":
            return prompt.compact_prompt(board, self.settings.board_view)
        return prompt.text_prompt(board, self.settings.objective, self.settings.board_view, self.settings.plan_format)

    def answer(self, task: Task) -> str:
        """An optimal plan, solved for again: payloads carry labels, not plans."""
        board, plan = self._optimal(task)
        return prompt.write_answer(board, plan, self.settings.plan_format, compact=self.settings.template == "compact")

    def features(self, task: Task) -> dict[str, int]:
        """What the task is like: steps of an optimal plan, and the waits of all agents in it before they arrive."""
        board, plan = self._optimal(task)
        run = execute(board, plan)
        waits = sum(actions[:arrival].count("WAIT") for actions, arrival in zip(plan, run.arrivals, strict=True))
        return {"plan length": run.makespan, "waits": waits}

    def identity(self, data: Mapping[str, Any]) -> Any:
        """Equal for boards that differ only by a symmetry or by the names of the agents."""
        return canonical_form(Board.from_payload(data))

    def _optimal(self, task: Task) -> tuple[Board, tuple[Actions, ...]]:
        import numpy as np

        import solvers

        board = Board.from_payload(task.data())
        holes = np.zeros(board.n * board.n, dtype=np.bool_)
        holes[list(board.holes)] = True
        labels = solvers.solve(holes.reshape(board.n, board.n), board.starts, board.goals)
        plan = labels.plan_makespan if self.settings.objective == "makespan" else labels.plan_sum_of_costs
        if plan is None:
            raise ValueError(f"no plan for task {task.id} (status {labels.status}): {board}")
        return board, plan

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
        shaping = Shaping(self.settings.goal_credit, self.settings.prefix_credit)
        return judge(board, optima, self.settings.objective, completion, truncated, self.settings.plan_format, shaping)

    # ----------------------------------------------------------------------------------------------------- fixed sets

    def validation(self) -> FrozenSet:
        """150 boards per size, for steering."""
        from environments.mapf_frozenlake import frozen

        return frozen.frozen_set("validation", self.name, self.settings.sizes, self.settings.agents)

    def held_out(self) -> FrozenSet:
        """150 boards per size, for claims; with two agents 334 for each of 3x3 to 5x5."""
        from environments.mapf_frozenlake import frozen

        return frozen.frozen_set("held_out", self.name, self.settings.sizes, self.settings.agents)

    def benchmark(self, edition: str = "benchmark") -> Benchmark:
        """The 21 cells with three to five agents, whatever the settings; ``held_out`` is a second, disjoint edition."""
        from environments.mapf_frozenlake import frozen

        return frozen.benchmark(self.name, edition)

    # --------------------------------------------------------------------------------------------------------- people

    def render(self, task: Task, completion: str | None = None) -> str:
        """The board with its labels and, given an answer, the paths and the verdict."""
        data = task.data()
        board = Board.from_payload(data)
        labels = ", ".join(f"{label} {json.dumps(data.get(label))}" for label in LABELS)
        parts = [f"{task.stratum}, optimum: {labels}", board.ascii(), render.legend(board)]
        if completion is not None:
            parts.append(render.paths(board, completion, self.settings.plan_format))
            parts.append(render.verdict_line(self.score(task, completion)))
        return "\n".join(part for part in parts if part)

    def vocabulary(self) -> tuple[str, ...]:
        """Every word of compact prompts and answers of this run; newline comes with the tokenizer."""
        return prompt.compact_vocabulary(self.settings.sizes, self.settings.agents, self.settings.plan_format)


class MapfPaths(MapfFrozenLake):
    """What MapfFrozenLake is where plans are paths, which can jump."""

    Outcome: ClassVar[type[enum.StrEnum]] = MapfOutcome


if TYPE_CHECKING:
    from environments.mapf_frozenlake.frozen import Benchmark

    _contract: type[base.Environment] = MapfFrozenLake
