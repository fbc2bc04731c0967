"""Which boards an evaluation asks: the environment's fixed sets, or a file of boards, by (agents, size)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from environments.base import Task, canonical_json, digest
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.cases import CaseError, labelled
from environments.mapf_frozenlake.environment import MapfFrozenLake
from environments.mapf_frozenlake.settings import MapfSettings, stratum_name
from orchestrator.config import ConfigError
from orchestrator.eval.records import Cell
from solvers.boards import BoardError, Instance, read_json_lines

BENCHMARK = "benchmark"
EDITIONS: Mapping[str, Literal["benchmark", "held_out"]] = {BENCHMARK: "benchmark", "benchmark_held_out": "held_out"}
FIXED = (*EDITIONS, "validation", "held_out")
AGENTS = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class EvalSet:
    """Boards by cell, cells in ascending order."""

    name: str
    cells: Mapping[Cell, tuple[Task, ...]]

    @property
    def tasks(self) -> list[Task]:
        """Every task, cell by cell."""
        return [task for tasks in self.cells.values() for task in tasks]

    def only(self, agents: Collection[int] | None, sizes: Collection[int] | None) -> EvalSet:
        """The cells with these agent counts and sizes; None takes all. Raises :class:`ConfigError` if none is left."""
        chosen = {
            (k, n): tasks
            for (k, n), tasks in self.cells.items()
            if (agents is None or k in agents) and (sizes is None or n in sizes)
        }
        if not chosen:
            cells = ", ".join(f"{k} agents {stratum_name(n)}" for k, n in self.cells)
            raise ConfigError(f"--agents and --sizes leave no cell of {self.name}: it has {cells}")
        return EvalSet(self.name, chosen)

    @property
    def checksum(self) -> str:
        """Over boards and labels."""
        return digest([task.payload for task in self.tasks])

    def first(self, per_cell: int | None) -> EvalSet:
        """The first boards of each cell; the same set if None."""
        if per_cell is None:
            return self
        return EvalSet(self.name, {cell: tasks[:per_cell] for cell, tasks in self.cells.items()})


def cell_of(task: Task) -> Cell:
    """Agents and size of a task's board."""
    data = task.data()
    return len(data["starts"]), int(data["n"])


def make_environment(settings: Mapping[str, Any]) -> MapfFrozenLake:
    """The environment with its own settings. Raises :class:`ConfigError` naming the first that is wrong."""
    try:
        return MapfFrozenLake(MapfSettings.model_validate(dict(settings)))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "settings"
        raise ConfigError(
            f"{name}: {first['msg']} (got {first['input']!r}); settings are {', '.join(MapfSettings.model_fields)}"
        ) from None


def load_set(name: str, agents: Collection[int] | None = None, sizes: Collection[int] | None = None) -> EvalSet:
    """A fixed set by its name, or the boards of a file, a JSON object per line; only these agent counts and sizes.

    Raises :class:`ConfigError`.
    """
    return _read(name, agents or AGENTS).only(agents, sizes)


def _read(name: str, agents: Collection[int]) -> EvalSet:
    if name in FIXED:
        return _by_cell(name, _fixed(name, agents))
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"--set {name!r} is neither a file of boards nor one of {', '.join(FIXED)}: give one of these"
        )
    return _by_cell(path.name, _boards(path))


def _by_cell(name: str, tasks: Iterable[Task]) -> EvalSet:
    cells: defaultdict[Cell, dict[str, Task]] = defaultdict(dict)
    for task in tasks:
        cells[cell_of(task)].setdefault(task.id, task)
    return EvalSet(name, {cell: tuple(cells[cell].values()) for cell in sorted(cells)})


def _boards(path: Path) -> list[Task]:
    """Labelled tasks of a file's boards; the labels are solved for."""
    tasks = []
    try:
        with path.open("rb") as file:
            for number, found in read_json_lines(file):
                try:
                    tasks.append(_task(found))
                except (BoardError, CaseError, ValueError) as error:
                    raise ConfigError(f"--set {path}: line {number}: {error}") from None
    except OSError as error:
        raise ConfigError(f"--set {path} cannot be read: {error}") from None
    if not tasks:
        raise ConfigError(f"--set {path} has no board: give one JSON object with n, holes, starts and goals per line")
    return tasks


def _task(found: Instance | BoardError) -> Task:
    if isinstance(found, BoardError):
        raise found
    n = len(found.holes)
    holes = tuple(row * n + column for row in range(n) for column in range(n) if found.holes[row][column])
    board = Board(n, holes, found.starts, found.goals)
    board.check()
    if len(board.starts) < 2:
        raise BoardError("starts: 1 agent is not allowed here; give 2..5")
    return Task(MapfFrozenLake.name, canonical_json(labelled(board)), stratum_name(n), "file", 0)


def _fixed(name: str, agents: Collection[int]) -> Iterator[Task]:
    """The boards of a set; of those that are stored by agent count, only the counts wanted."""
    if name in EDITIONS:
        for cell in MapfFrozenLake().benchmark(EDITIONS[name]).cells:
            yield from cell.tasks
        return
    for count in agents:
        environment = make_environment({"agents": count})
        yield from (environment.validation() if name == "validation" else environment.held_out()).tasks
