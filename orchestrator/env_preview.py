"""``envwright env preview``: what a recipe's environment generates, and whether a run can learn from it.

Everything is measured on the first tasks of the stage: they are the ones that the run would train on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console

from environments.base import AnyKnobs, Environment, Failure, Message, NoAnswer, Task, digest, stream
from environments.conformance import HOSTILE, CheckResult
from orchestrator.config import ConfigError, RunConfig
from orchestrator.env_commands import load
from orchestrator.evidence import describe, vocabulary
from orchestrator.histograms import bars, strips

SHOWN = 3
"""Tasks rendered, of different strata where there are as many."""
WIDTH = 98
CHILD_DEADLINE_S = 600.0
STAGE_0, DEFAULT = "stage-0", "default"
FINISHED_ITEMS = "ENVWRIGHT_LABELS"
"""Names the folder of finished items, which a preview leaves alone: it measures how items are made."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Counts tokens. ``exact`` is false where words stand in for them: then counts are lower bounds."""

    name: str
    prompt: Callable[[list[Message]], int]
    text: Callable[[str], int]
    exact: bool = True
    context: int | None = None
    """Most tokens that the model reads, if known."""


@dataclass
class Subject:
    """A recipe's environment with its knobs and ``count`` tasks."""

    config: RunConfig
    environment: Environment
    knobs: AnyKnobs
    count: int

    @cached_property
    def tasks(self) -> list[Task]:
        """The first tasks of stage 0."""
        return self.environment.generate(self.knobs, self.config.seed, 0, self.count)

    @cached_property
    def prompts(self) -> list[list[Message]]:
        """What the policy is asked, by task."""
        return [self.environment.prompt(task) for task in self.tasks]

    @cached_property
    def answers(self) -> list[str] | None:
        """Best answers by task, if the environment knows any."""
        try:
            return [self.environment.answer(task) for task in self.tasks]
        except NoAnswer:
            return None

    def identity(self, task: Task) -> str:
        """Content hash that is equal for tasks which differ in looks only, where the environment can tell."""
        same: Callable[[Mapping[str, Any]], Any] = getattr(self.environment, "identity", lambda data: data)
        return digest(same(task.data()))


def preview(config: RunConfig, console: Console, *, count: int = 200, knobs: str = STAGE_0) -> int:
    """Print what the environment of a recipe generates; 1 if a property that a run needs does not hold, else 0.

    ``knobs`` is ``stage-0``, ``default`` or a file. Raises :class:`ConfigError` for whatever cannot be loaded.
    """
    os.environ.pop(FINISHED_ITEMS, None)
    environment = load(config.environment.name, config.environment.settings)
    subject = Subject(config, environment, choose_knobs(knobs, environment, config.seed), count)
    failed = 0
    for part in (heading, boards, tokens, shapes, yields, properties):
        for line in part(subject):
            failed += isinstance(line, CheckResult) and not line.ok
            console.print(str(line), soft_wrap=True, highlight=False, markup=False)
    return int(failed > 0)


def choose_knobs(name: str, environment: Environment, seed: int) -> AnyKnobs:
    """Knobs of stage 0 as a run draws them, the default ones, or those in a YAML or JSON file. Raises ConfigError."""
    if name == STAGE_0:
        return environment.random_knobs(stream(seed, "stage 0"))
    if name == DEFAULT:
        return environment.default_knobs()
    try:
        knobs = environment.Knobs.model_validate(yaml.safe_load(Path(name).read_text("utf-8")))
        problems = environment.feasibility(knobs)
    except FileNotFoundError:
        raise ConfigError(f"knobs {name!r} must be {STAGE_0}, {DEFAULT} or a file that exists") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"knobs in {name}: " + "\n  ".join(lines)) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"knobs in {name}: {error}") from None
    if problems:
        raise ConfigError(f"knobs in {name} cannot be met: {'; '.join(map(str, problems))}")
    return knobs


# ------------------------------------------------------------------------------------------------------------ the page

Line = str | CheckResult


def heading(subject: Subject) -> Iterator[Line]:
    """Environment, settings and the table of knobs."""
    environment, config = subject.environment, subject.config
    kept = getattr(environment, "settings", None)
    settings = kept.model_dump(mode="json") if kept is not None else config.environment.settings
    place = f"tasks 0 to {subject.count - 1} of stage 0, seed {config.seed}"
    yield f"{config.environment.name} {environment.version}, {place}"
    yield from _wrapped([f"{key}={json.dumps(value)}" for key, value in settings.items()])
    drawn = Counter(task.stratum for task in subject.tasks)
    specs = next(iter(subject.knobs.strata.values())).specs()
    rows = [["stratum", *(f"{spec.name} {spec.unit}" for spec in specs), "tasks"]]
    for name, row in subject.knobs.strata.items():
        rows.append([name, *(str(getattr(row, spec.name)) for spec in specs), str(drawn[name])])
    yield from ("", *_table(rows))


def boards(subject: Subject) -> Iterator[Line]:
    """A few tasks for the eye, and the whole prompt and answer of the first."""
    first = {task.stratum: task for task in reversed(subject.tasks)}
    chosen = [first[name] for name in subject.environment.stratum_names() if name in first]
    chosen += [task for task in subject.tasks if task not in chosen]
    for task in chosen[:SHOWN]:
        yield from ("", f"task {task.index}", subject.environment.render(task))
    index = chosen[0].index
    yield from ("", f"prompt of task {index}")
    yield from (_indented(f"{message['role']}: {message['content']}") for message in subject.prompts[index])
    if subject.answers is not None:
        yield from ("", f"best answer to task {index}", _indented(subject.answers[index]))


def tokens(subject: Subject) -> Iterator[Line]:
    """Lengths of prompts and best answers against the limits of the recipe."""
    meter, rollout = token_meter(subject), subject.config.rollout
    yield from ("", f"lengths are in {meter.name}")
    yield f"prompts, against rollout.max_prompt_tokens = {rollout.max_prompt_tokens}"
    asked = [meter.prompt(prompt) for prompt in subject.prompts]
    yield from bars(asked)
    yield _within("prompts", max(asked), "rollout.max_prompt_tokens", rollout.max_prompt_tokens, meter)
    if subject.answers is not None:
        yield ""
        yield f"best answers without reasoning, against rollout.max_new_tokens = {rollout.max_new_tokens}"
        said = [meter.text(answer) for answer in subject.answers]
        yield from bars(said)
        yield _within("answers", max(said), "rollout.max_new_tokens", rollout.max_new_tokens, meter)
    if meter.context is not None:
        yield _context(rollout.max_prompt_tokens + rollout.max_new_tokens, meter.context)


def _within(name: str, found: int, what: str, limit: int, meter: Meter) -> CheckResult:
    size = f"{'' if meter.exact else 'at least '}{found}"
    if found > limit:
        return CheckResult(name, problem=f"{size} tokens, over {what} = {limit}: raise it or ask for less")
    return CheckResult(name, f"up to {found} of {limit} {'tokens' if meter.exact else 'words'}")


def _context(both: int, context: int) -> CheckResult:
    what = f"a prompt and a completion at their limits have {both} tokens, the model reads {context}"
    if both > context:
        hint = "lower rollout.max_prompt_tokens or rollout.max_new_tokens"
        return CheckResult("context", problem=f"{what}: {hint}")
    return CheckResult("context", what)


def shapes(subject: Subject) -> Iterator[Line]:
    """Histograms by stratum of what the environment calls the features of a task."""
    features: Callable[[Task], dict[str, int]] | None = getattr(subject.environment, "features", None)
    if features is None:
        return
    table: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for task in subject.tasks:
        for name, value in features(task).items():
            table[name][task.stratum].append(value)
    order = subject.environment.stratum_names()
    for name, rows in table.items():
        yield from ("", f"{name} by stratum: how many tasks have 0, 1, 2, ...; least .. median .. greatest")
        yield from strips({stratum: rows[stratum] for stratum in order if stratum in rows})


def yields(subject: Subject) -> Iterator[Line]:
    """What each stratum costs to generate: each alone, once everything is warm."""
    environment, seed = subject.environment, subject.config.seed
    active = [name for name, weight in environment.strata(subject.knobs).items() if weight > 0]
    each = max(10, subject.count // len(active))
    rows = [["stratum", "drawn", "kept", "yield", "distinct", "ms per kept"]]
    report = getattr(environment, "generation_report", None)
    for name in active:
        alone = environment.reweight(subject.knobs, {name: 1.0})
        started = time.perf_counter()
        if report is None:
            made = environment.generate(alone, seed, 0, each)
            drawn, kept, distinct = "-", len(made), len(set(map(subject.identity, made)))
        else:
            found = report(alone, seed, 0, each)[name]
            drawn, kept, distinct = str(found.drawn), found.kept, found.distinct
        spent = 1000 * (time.perf_counter() - started) / kept
        share = "-" if drawn == "-" else f"{100 * kept / int(drawn):.2f} %"
        rows.append([name, drawn, str(kept), share, f"{100 * distinct / kept:.0f} %", f"{spent:.2f}"])
    yield from ("", *_table(rows), "")


# ------------------------------------------------------------------------------------------- properties that must hold


def properties(subject: Subject) -> Iterator[Line]:
    """Training tasks stay out of fixed sets, repeat in every process, and are judged as they should be."""
    yield _overlap(subject)
    yield _repeats(subject)
    yield from _scores(subject)


def _overlap(subject: Subject) -> CheckResult:
    trained = {subject.identity(task) for task in subject.tasks}
    try:
        sets = (subject.environment.validation(), subject.environment.held_out())
    except ValueError as error:
        return CheckResult("overlap", problem=f"there are no fixed sets, so no run can start: {error}")
    shared = {fixed.name: sum(subject.identity(task) in trained for task in fixed.tasks) for fixed in sets}
    if any(shared.values()):
        found = ", ".join(f"{count} of {name}" for name, count in shared.items())
        return CheckResult("overlap", problem=f"tasks of a fixed set are generated for training: {found}")
    note = f"{len(trained)} of {len(subject.tasks)} tasks are distinct, none is in {' or '.join(shared)}"
    return CheckResult("overlap", note)


def _repeats(subject: Subject) -> CheckResult:
    """Two fresh processes with hash seeds of their own must make the same of it."""
    config, knobs = subject.config, subject.knobs.model_dump(mode="json")
    chosen = config.environment
    request = json.dumps([chosen.name, chosen.settings, knobs, config.seed, subject.count])
    here = fingerprint(subject.tasks, subject.prompts)
    for hash_seed in ("1", "2"):
        there = _elsewhere(request, hash_seed)
        if there != here:
            return CheckResult(
                "repeats", problem=f"a fresh process with PYTHONHASHSEED={hash_seed} gives {there}, not {here}"
            )
    return CheckResult("repeats", f"the same tasks and prompts in two fresh processes, digest {here[:12]}")


def _elsewhere(request: str, hash_seed: str) -> str:
    folders = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", "from orchestrator.env_preview import answer_from_elsewhere as a; a()"],
            input=request,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": folders},
            capture_output=True,
            text=True,
            timeout=CHILD_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {CHILD_DEADLINE_S:g} s"
    if ran.returncode:
        return f"an error: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}"
    return ran.stdout.strip().splitlines()[-1]


def answer_from_elsewhere() -> None:
    """The fresh process's part: name, settings, knobs, seed and count come in as JSON, the digest goes out."""
    name, settings, knobs, seed, count = json.load(sys.stdin)
    environment = load(name, settings)
    tasks = environment.generate(environment.Knobs.model_validate(knobs), seed, 0, count)
    print(fingerprint(tasks, [environment.prompt(task) for task in tasks]))


def fingerprint(tasks: Sequence[Task], prompts: Sequence[list[Message]]) -> str:
    """Content hash of tasks and prompts."""
    return digest([[task.to_dict() for task in tasks], list(prompts)])


def _scores(subject: Subject) -> Iterator[CheckResult]:
    """The best answer earns 1 and is solved; nothing, garbage and the prompt itself earn 0 and are not."""
    echoes = ["\n".join(message["content"] for message in prompt) for prompt in subject.prompts]
    garbage = [HOSTILE[1 + i % (len(HOSTILE) - 1)] for i in range(len(echoes))]
    if subject.answers is None:
        yield CheckResult("best answer", "(the environment knows none)")
    else:
        yield _judged(subject, "best answer", subject.answers, 1.0)
    yield _judged(subject, "empty answer", [""] * len(echoes), 0.0)
    yield _judged(subject, "garbage", garbage, 0.0)
    yield _judged(subject, "prompt echo", echoes, 0.0)


def _judged(subject: Subject, name: str, texts: Sequence[str], wanted: float) -> CheckResult:
    """All rewards must be ``wanted``; outcomes must be solved if that is 1, and not solved if it is 0."""
    outcomes: Counter[str] = Counter()
    for task, text in zip(subject.tasks, texts, strict=True):
        found = subject.environment.score(task, text)
        if isinstance(found, Failure):
            return CheckResult(name, problem=f"task {task.index}: a failure ({found.kind}): {found.message:.200}")
        outcomes[found.outcome] += 1
        if found.reward != wanted or (found.outcome in subject.environment.solved) != (wanted == 1.0):
            return CheckResult(
                name, problem=f"task {task.index}: {found.outcome} with reward {found.reward:g}, not {wanted:g}"
            )
    return CheckResult(name, f"reward {wanted:g} ({', '.join(f'{count} {o}' for o, count in outcomes.most_common())})")


# ------------------------------------------------------------------------------------------------------------- lengths


def token_meter(subject: Subject) -> Meter:
    """The recipe's own tokenizer if it is at hand without a network, else words."""
    path = subject.config.model.path
    if path is None:
        from orchestrator.new_model import build_tokenizer

        words = (*subject.environment.vocabulary(), *vocabulary(describe(subject.environment)))
        tokenizer = build_tokenizer(list(dict.fromkeys(words)))
        name = f"tokens of the word tokenizer that model.new would make ({len(tokenizer)} of them)"
        return _meter(tokenizer, name, tokenizer.model_max_length, subject.config.rollout.thinking)
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        context = getattr(AutoConfig.from_pretrained(path, local_files_only=True), "max_position_embeddings", None)
    except (OSError, ValueError):
        return Meter(
            f"words: the tokenizer of {path} is not on this machine; it makes more tokens",
            lambda prompt: sum(len(message["content"].split()) for message in prompt),
            lambda text: len(text.split()),
            exact=False,
        )
    return _meter(tokenizer, f"tokens of {path}", context, subject.config.rollout.thinking)


def _meter(tokenizer: Any, name: str, context: int | None, thinking: bool) -> Meter:
    def prompt(messages: list[Message]) -> int:
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, enable_thinking=thinking
        )
        return len(encoded["input_ids"])

    def text(said: str) -> int:
        return len(tokenizer.encode(said, add_special_tokens=False)) + 1  # and the token that ends the turn

    return Meter(name, prompt, text, context=context)


# ---------------------------------------------------------------------------------------------------------------- text


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        numbers = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "  " + "  ".join([f"{first:<{widths[0]}}", *numbers])


def _wrapped(words: Sequence[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + len(word) + 4 > WIDTH:
            yield f"  {line}"
            line = ""
        line = f"{line}  {word}" if line else word
    yield f"  {line}"


def _indented(text: str) -> str:
    """Lines of at most ``WIDTH`` characters; what goes on in a further line stands further in."""
    wrap = TextWrapper(WIDTH, initial_indent="  ", subsequent_indent="      ", drop_whitespace=False)
    return "\n".join(part.rstrip() for line in text.splitlines() for part in wrap.wrap(line) or [""])
