"""Two checkpoints on the same board: what each answers, whether it is valid and optimal, and pictures of it.

A checkpoint answers as it does in an evaluation: greedily, one completion, in the prompt template it was trained on.
Optimal here always means the least makespan, T*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.base import Task
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.cases import CaseError, load_case
from environments.mapf_frozenlake.environment import MapfFrozenLake
from environments.mapf_frozenlake.pictures import WRITERS, PictureError, save
from environments.mapf_frozenlake.plan import PlanFormat
from environments.mapf_frozenlake.render import legend, paths
from environments.mapf_frozenlake.settings import MapfSettings
from environments.mapf_frozenlake.trajectory import Trajectory, follow, frames_text
from environments.mapf_frozenlake.verdict import SOLVED, MapfOutcome
from orchestrator.ask import Reader
from orchestrator.config import ConfigError, validate
from orchestrator.store import RunStore

ORACLE = "oracle"
TEMPLATE, MAX_NEW_TOKENS = "text", 1024
"""Of a model directory, about which no run says how it was asked."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who answers: a model in ``directory``, or the solver if that is None. ``prompt`` holds environment settings."""

    name: str
    directory: Path | None
    prompt: Mapping[str, Any]
    max_new_tokens: int = MAX_NEW_TOKENS
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it; ``tokens`` is None for the solver, which generates none."""

    name: str
    completion: str
    tokens: int | None
    trajectory: Trajectory
    plan_format: PlanFormat = "lines"


def compare(
    names: Sequence[str],
    board: str,
    console: Console,
    *,
    out: Path | None = None,
    frames: bool = False,
    template: str | None = None,
    max_new_tokens: int | None = None,
) -> None:
    """Ask each of ``names``, print the table, the board and the paths, and write pictures into ``out``.

    Raises :class:`ConfigError` for whatever does not exist or does not fit together, before anything is written.
    """
    contestants = [contestant(name, template, max_new_tokens) for name in names]
    try:
        task = load_case(board)
        answers = [answer(one, task) for one in contestants]
        console.print(table(answers))
        console.print(story(task, answers, frames), markup=False, highlight=False, soft_wrap=True)
        if out is not None:
            write_pictures(answers, out)
            console.print(f"pictures in {out}", markup=False, highlight=False, soft_wrap=True)
    except (CaseError, PictureError) as error:
        raise ConfigError(str(error)) from None


def contestant(name: str, template: str | None, max_new_tokens: int | None) -> Contestant:
    """``oracle``, a finished run (its stored configuration says how to ask), or a model directory."""
    if name == ORACLE:
        return Contestant(name, None, {})
    folder = Path(name)
    if (folder / "run.yaml").is_file():
        store = RunStore.open(folder)
        config = validate(store.read_config(), f"{name}/run.yaml")
        if config.environment.name != MapfFrozenLake.name:
            raise ConfigError(f"{name} was trained on {config.environment.name}: cases exist for {MapfFrozenLake.name}")
        model = Path(store.path("model"))
        if not (model / "config.json").is_file():
            raise ConfigError(f"{name} has no exported model: give a finished run")
        settings = MapfSettings.model_validate(config.environment.settings)
        prompt = settings.model_dump(include={"template", "objective", "board_view", "plan_format"})
        return Contestant(name, model, prompt, config.rollout.max_new_tokens, config.rollout.thinking)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{name!r} is no checkpoint: give a finished run, a Hugging Face model directory or {ORACLE}")
    return Contestant(name, folder, {"template": template or TEMPLATE}, max_new_tokens or MAX_NEW_TOKENS)


def answer(one: Contestant, task: Task) -> Answer:
    """Let a contestant answer, and carry that out. Raises :class:`ConfigError` if it cannot read the board."""
    data = task.data()
    board = Board.from_payload(data)
    settings = MapfSettings.model_validate({"agents": len(board.starts), "sizes": (board.n,), **one.prompt})
    environment = MapfFrozenLake(settings)
    if one.directory is None:
        completion = environment.answer(task)
        return Answer(one.name, completion, None, follow(board, data, completion))
    reader = _reader(one)
    if settings.template == "compact":
        check_words(one.name, reader.tokenizer, environment.vocabulary(), task.stratum, settings.agents)
    ids = reader.tokenize(environment.prompt(task))
    room = reader.context - len(ids)
    if room < 1:
        raise ConfigError(f"{one.name}: the prompt has {len(ids)} tokens, the model reads {reader.context}")
    said = reader.complete(ids, min(one.max_new_tokens, room))
    trajectory = follow(board, data, said.text, truncated=said.truncated, plan_format=settings.plan_format)
    return Answer(one.name, said.text, said.tokens, trajectory, settings.plan_format)


def _reader(one: Contestant) -> Reader:
    try:
        reader = Reader(one.directory or "", thinking=one.thinking)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{one.name}: the model in {one.directory} cannot be loaded: {reason}") from None
    if not reader.tokenizer.chat_template:
        raise ConfigError(f"{one.name}: the tokenizer in {one.directory} has no chat template to ask with")
    return reader


def check_words(name: str, tokenizer: Any, words: Sequence[str], stratum: str, agents: int) -> None:
    """A word tokenizer has one token for each word that the model was trained on: others it would read as bytes.

    Raises :class:`ConfigError` that names the ``words`` of such boards that it lacks.
    """

    def known(word: str) -> bool:
        return len(tokenizer.encode(word, add_special_tokens=False)) == 1

    missing = [word for word in words if not known(word)]
    if missing and known("r0c0"):  # a tokenizer of natural language spells coordinates out, and that is all right
        some = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
        raise ConfigError(
            f"{name} cannot read a {stratum} board with {agents} agents: its vocabulary lacks {some}; "
            "give a model that was trained on such boards, or another board"
        )


def table(answers: Sequence[Answer]) -> Table:
    """One row per contestant."""
    shown = Table(box=box.SIMPLE)
    for name in ("", "checkpoint", "tokens", "outcome", "valid", "optimal", "makespan", "T*"):
        number = name in ("tokens", "makespan", "T*")
        shown.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=name != "checkpoint")
    for letter, one in zip("AB", answers, strict=True):
        trajectory = one.trajectory
        cells = (
            letter,
            one.name,
            "-" if one.tokens is None else str(one.tokens),
            trajectory.outcome.value,
            "yes" if trajectory.outcome.value in SOLVED else "no",
            "yes" if trajectory.outcome is MapfOutcome.OPTIMAL else "no",
            str(trajectory.facts.get("makespan", "-")),
            str(trajectory.optimum),
        )
        shown.add_row(*map(Text, cells))
    return shown


def story(task: Task, answers: Sequence[Answer], frames: bool) -> str:
    """The board, then for each contestant its paths and its first violation, or every step."""
    board = Board.from_payload(task.data())
    parts = [board.ascii(), legend(board)]
    for letter, one in zip("AB", answers, strict=True):
        walked = frames_text(one.trajectory).rstrip() if frames else paths(board, one.completion, one.plan_format)
        heading = f"{letter}: {one.name}, {one.trajectory.headline()}"
        explanation = "" if frames else one.trajectory.explanation()
        parts.append("\n" + "\n".join(filter(None, (heading, walked, explanation))))
    return "\n".join(parts)


def write_pictures(answers: Sequence[Answer], out: Path) -> None:
    """``A.svg``, ``A.moving.svg``, ``A.png``, ``A.gif``, ``A.txt`` and the same of B."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PictureError(f"{out} cannot be a folder for pictures: {error}") from None
    for letter, one in zip("AB", answers, strict=True):
        for ending in WRITERS:
            save(one.trajectory, out / f"{letter}{ending}")
