"""What `envwright eval` and `envwright compare` do: options in, answers kept, tables and files out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from environments.base import canonical_json
from environments.mapf_frozenlake.environment import MapfFrozenLake
from orchestrator.config import ConfigError
from orchestrator.eval import tables
from orchestrator.eval.comparison import POOLED, Difference, differences
from orchestrator.eval.endpoint import Endpoint, EndpointConfig
from orchestrator.eval.engine import MAX_NEW_TOKENS, Checkpoint, Dtype, LocalModel, find_checkpoint
from orchestrator.eval.journal import SUMMARY, open_journal, read_answers, read_settings
from orchestrator.eval.loop import ask, questions_of
from orchestrator.eval.records import INTERRUPTED, Answer, Sampling, Solver
from orchestrator.eval.results import CellResult, Prices, cell_results, evidence, failures, means, summary, usage
from orchestrator.eval.scripted import SCRIPTS, Scripted
from orchestrator.eval.sets import BENCHMARK, EvalSet, load_set, make_environment
from orchestrator.evidence import EnvInfo, describe
from orchestrator.statistics import Interval


@dataclass(frozen=True, slots=True)
class Who:
    """Who answers; exactly one of ``checkpoint``, ``solver`` and ``endpoint`` is given."""

    checkpoint: str | None = None
    solver: str | None = None
    endpoint: EndpointConfig | None = None
    dtype: Dtype | None = None
    thinking: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the environment: how the boards are shown and answers written. What is not given here is as in the run."""
    temperature: float = 0.0
    max_new_tokens: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class What:
    """Which boards, and how often each is asked."""

    set: str = BENCHMARK
    agents: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None
    per_cell: int | None = None
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Where:
    """What is written besides the table on the terminal; ``prices`` make a cost of tokens."""

    out: Path | None = None
    csv: Path | None = None
    table: Path | None = None
    evidence: Path | None = None
    prices: Prices = field(default_factory=Prices)


def run(who: Who, what: What, where: Where, console: Console) -> int:
    """Evaluate, show the table, write the files; the exit code: 1 if questions failed, 130 after Ctrl-C.

    Raises :class:`ConfigError` for options that do not fit together, before anything is asked or written.
    """
    _check_files(where)
    environment, solver, sampling, settings = _prepared(who, where)
    _check_samples(solver, what.samples)
    chosen = load_set(what.set, what.agents, what.sizes).first(what.per_cell)
    settings |= {"set": chosen.name}
    questions = questions_of(chosen.tasks, what.samples, sampling.seed)
    settings = json.loads(canonical_json(settings | {"solver": solver.identity()}))
    with open_journal(where.out, settings) as journal:
        try:
            with _progress(console) as progress:
                bar = progress.add_task(
                    solver.name, total=len(questions), completed=sum(journal.done(q.key) for q in questions)
                )
                ask(solver, questions, environment, journal, lambda: progress.advance(bar))
        except KeyboardInterrupt:
            done = sum(journal.done(question.key) for question in questions)
            kept = f"kept in {where.out}; the same command continues" if where.out else "lost: give --out to keep them"
            console.print(f"interrupted; {done} of {len(questions)} answers are {kept}", soft_wrap=True, markup=False)
            return INTERRUPTED
        answers = [journal.answers[question.key] for question in questions if question.key in journal.answers]
    return _finish(chosen, settings, answers, describe(environment), where, console)


def _prepared(who: Who, where: Where) -> tuple[MapfFrozenLake, Solver, Sampling, dict[str, Any]]:
    """The environment, the solver, its sampling, and the settings that these make."""
    if sum(given is not None for given in (who.checkpoint, who.solver, who.endpoint)) != 1:
        raise ConfigError(
            "say who answers: a checkpoint, or --solver, or --endpoint with --model, and only one of them"
        )
    if who.solver is None and where.out is None:
        raise ConfigError(
            "answers of a model take time or money: give --out DIR, so that the evaluation can be continued"
        )
    if who.solver is not None and who.solver not in SCRIPTS:
        raise ConfigError(f"--solver {who.solver!r} is not allowed: give one of {', '.join(SCRIPTS)}")
    found = None if who.checkpoint is None else find_checkpoint(who.checkpoint, MapfFrozenLake.name)
    if found is not None:
        thinking = found.thinking if who.thinking is None else who.thinking
        found = replace(found, dtype=who.dtype or found.dtype, thinking=thinking)
    environment = make_environment({**(found.settings if found else {}), **who.settings})
    shown = environment.settings.model_dump(mode="json", exclude_defaults=True, exclude={"agents", "sizes"})
    if who.solver in ("greedy", "random") and environment.settings.plan_format != "lines":
        raise ConfigError(f"--solver {who.solver} writes plans as lines: leave plan_format as it is")
    limit = who.max_new_tokens or (found.max_new_tokens if found else MAX_NEW_TOKENS)
    sampling = Sampling(who.temperature, limit, who.seed)
    solver = _solver(who, found, environment, shown, sampling)
    drawn = {} if who.solver else {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens}
    settings = {"name": solver.name, "environment": environment.version, "prompt": shown}
    return environment, solver, sampling, settings | {"sampling": {**drawn, "seed": sampling.seed}}


def _solver(
    who: Who, found: Checkpoint | None, environment: MapfFrozenLake, shown: Mapping[str, Any], sampling: Sampling
) -> Solver:
    if who.endpoint is not None:
        return Endpoint(who.endpoint, environment, sampling, os.environ.get(who.endpoint.key_variable) or None)
    if found is not None:
        return LocalModel(found, environment, shown, sampling)
    return Scripted(str(who.solver), environment)


def _check_samples(solver: Solver, samples: int) -> None:
    if samples > 1 and solver.deterministic:
        raise ConfigError(
            f"--samples {samples}: {solver.name} gives the same answer every time: give --samples 1, or a "
            "--temperature above 0 for a model"
        )


def _check_files(where: Where) -> None:
    """A file that cannot be written is told before hours of work, not after."""
    for name, path in (("csv", where.csv), ("table", where.table), ("evidence", where.evidence)):
        if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
            raise ConfigError(f"--{name} {path} cannot be a file: give a path in a folder that exists")
    if where.table is not None and where.table.suffix not in tables.FORMATS:
        raise ConfigError(f"--table {where.table} must end in one of {', '.join(tables.FORMATS)}")


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _finish(
    chosen: EvalSet,
    settings: Mapping[str, Any],
    answers: Sequence[Answer],
    info: EnvInfo,
    where: Where,
    console: Console,
) -> int:
    """Table, files, and what went wrong."""
    cells = cell_results(answers, info.solved, info.words[0])
    rows = [tables.Row.of(str(settings["name"]), cells)]
    if chosen.name == BENCHMARK:
        rows = [*tables.published_rows(), *rows]
    for table in tables.text(rows):
        console.print(table)
    for line in _closing(answers, cells, where.prices):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if where.out is not None:
        record = summary(settings, answers, cells, where.prices) | {"boards_checksum": chosen.checksum}
        _write(where.out / SUMMARY, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if where.csv is not None:
        _write(where.csv, tables.cells_csv(cells))
    if where.table is not None:
        _write(where.table, tables.FORMATS[where.table.suffix](rows))
    if where.evidence is not None:
        _write(where.evidence, json.dumps(evidence(answers, info), indent=1) + "\n")
    if failed := failures(answers):
        kinds = ", ".join(f"{kind} {count}" for kind, count in failed.items())
        first = next(answer.failure["message"] for answer in answers if answer.failure)
        again = "the same command asks them again" if where.out else "give --out to keep the others and ask them again"
        console.print(
            f"{sum(failed.values())} of {len(answers)} questions failed ({kinds}) and count nowhere; {again}; "
            f"first: {first}", soft_wrap=True, markup=False, highlight=False,
        )  # fmt: skip
        return 1
    return 0


def _closing(answers: Sequence[Answer], cells: Sequence[CellResult], prices: Prices) -> list[str]:
    """pass@k, tokens, latency and cost, as far as there are any."""
    lines = []
    for k in sorted({k for cell in cells for k in cell.passed}):
        shares = means(cells, k).items()
        rates = ", ".join(f"{a} agents {100 * r.valid:.2f} valid, {100 * r.optimal:.2f} optimal" for a, r in shares)
        lines.append(f"pass@{k}: {rates}")
    used = usage(answers, prices)
    parts = [f"{used['answers']} answers"]
    if tokens := used["completion_tokens_per_answer"]:
        parts.append(f"tokens per answer mean {tokens['mean']:.0f}, median {tokens['median']:.0f}")
        parts.append(f"{used['truncated']} cut off by the token limit")
    if tokens and (latency := used["latency_s"]):
        parts.append(f"latency median {latency['median']:.3g} s, 95 % under {latency['p95']:.3g} s")
    if used["cost"] is not None:
        parts.append(f"cost {used['cost']:.2f}")
    return [*lines, "; ".join(parts)]


def compare(first: Path, second: Path, console: Console) -> int:
    """Both evaluations in one table, and the second minus the first with 95 % paired intervals."""
    settings = [read_settings(folder) for folder in (first, second)]
    if settings[0].get("environment") != settings[1].get("environment"):
        raise ConfigError(f"{first} and {second} were judged by different versions of the environment: evaluate again")
    objectives = [record["prompt"].get("objective") for record in settings]
    if objectives[0] != objectives[1]:
        raise ConfigError(f"{first} and {second} differ in the objective, so optimal means two things")
    info = describe(make_environment(settings[0]["prompt"]))
    ours, theirs = sides = (read_answers(first), read_answers(second))
    names = [f"{letter}: {record['name']}" for letter, record in zip("AB", settings, strict=True)]
    try:
        found = differences(ours, theirs, info.solved, info.words[0])
    except ValueError as error:
        raise ConfigError(f"{first} and {second} cannot be compared: {error}") from None
    shared = {task for task, _ in ours} & {task for task, _ in theirs}
    rows = []
    for name, side in zip(names, sides, strict=True):
        both = (answer for answer in side.values() if answer.task_id in shared)
        rows.append(tables.Row.of(name, cell_results(both, info.solved, info.words[0])))
    for table in tables.text(rows):
        console.print(table)
    console.print("B - A in points, 95 % paired bootstrap intervals over boards that both judged", highlight=False)
    for one in found:
        console.print(_difference_line(one), highlight=False, markup=False)
    return 0


def _difference_line(one: Difference) -> str:
    who = "all" if one.agents == POOLED else f"{one.agents} agents"

    def points(interval: Interval) -> str:
        return f"{100 * interval.mean:+.2f} [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"

    return f"{who}: valid {points(one.valid)}, optimal {points(one.optimal)}, {one.valid.n} boards"


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, "utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error}") from None


Numbers = tuple[int, ...] | None


def numbers(option: str, text: str | None) -> Numbers:
    """``3,4,5`` as numbers. Raises :class:`ConfigError` naming the option."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not allowed: give numbers apart by commas, like 3,4,5") from None


def json_object(option: str, text: str) -> dict[str, Any]:
    """A JSON object given as an option. Raises :class:`ConfigError` naming the option."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'{option} is not JSON ({error}): give an object like {{"top_p": 0.9}}') from None
    if not isinstance(value, dict):
        raise ConfigError(f'{option} is a {type(value).__name__}: give an object like {{"top_p": 0.9}}')
    return value
