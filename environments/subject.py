"""An environment under examination: its tasks, and what another process makes of it when it loads it by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from environments.base import Environment, Failure, FrozenSet, NoAnswer, Task, Verdict, digest, stream
from environments.registry import load_environment

SEED, PROBED, CHILD_DEADLINE_S = 7, 12, 300.0


@dataclass
class Subject:
    """An environment under examination, with a stream of ``count`` tasks at its default knobs."""

    environment: Environment
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    count: int = 40

    @cached_property
    def knobs(self) -> Any:
        """The default knobs."""
        return self.environment.default_knobs()

    @cached_property
    def tasks(self) -> list[Task]:
        """Training tasks 0 .. count - 1."""
        return self.environment.generate(self.knobs, SEED, 0, self.count)

    @property
    def probed(self) -> list[Task]:
        """The tasks that costly checks look at."""
        return self.tasks[:PROBED]

    @cached_property
    def elsewhere(self) -> dict[str, str]:
        """What another process with another hash seed makes of the same environment, loaded by its name."""
        here = os.environ.get("PYTHONHASHSEED", "")
        request = json.dumps([self.name, dict(self.settings), self.count])
        folders = os.pathsep.join(path or os.getcwd() for path in sys.path)
        try:
            ran = subprocess.run(
                [sys.executable, "-c", "from environments.subject import answer_from_elsewhere as a; a()"],
                input=request,
                env={**os.environ, "PYTHONHASHSEED": "2" if here == "1" else "1", "PYTHONPATH": folders},
                capture_output=True,
                text=True,
                timeout=CHILD_DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no answer from a fresh process within {CHILD_DEADLINE_S:g} s"}
        if ran.returncode:
            return {"error": (ran.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
        answer: dict[str, str] = json.loads(ran.stdout.strip().splitlines()[-1])
        return answer


def fingerprint(subject: Subject) -> dict[str, str]:
    """Content hashes of what must not depend on the process."""
    environment, tasks = subject.environment, subject.tasks
    verdicts = [
        said(environment.score(task, text))
        for task in subject.probed
        for text in wrong_or_odd(subject.environment, task)
    ]
    return {
        "tasks": digest([[task.id, task.stratum, task.knobs_digest] for task in tasks]),
        "prompts": digest([environment.prompt(task) for task in tasks]),
        "verdicts": digest(verdicts),
        "fixed sets": digest([_checksum(environment.validation), _checksum(environment.held_out)]),
    }


def answer_from_elsewhere() -> None:
    """The other process's part: name, settings and count come in as JSON, the fingerprint goes out."""
    name, settings, count = json.load(sys.stdin)
    print(json.dumps(fingerprint(Subject(load_environment(name, settings), name, settings, count))))


def _checksum(fixed_set: Callable[[], FrozenSet]) -> str:
    # An environment without fixed sets fails the check of that name, not this one too.
    try:
        return fixed_set().checksum
    except ValueError:
        return ""


def wrong_or_odd(environment: Environment, task: Task) -> Iterator[str]:
    """Random text, and the best answer cut, doubled, reversed and sprinkled with other characters."""
    rng = stream("conformance", task.id)
    try:
        best = environment.answer(task)
    except NoAnswer:
        best = environment.prompt(task)[-1]["content"]
    yield best[: rng.randrange(len(best) + 1)]
    yield best + "\n" + best
    yield best[::-1]
    yield best.upper().replace(" ", "  ")
    for _ in range(4):
        letters = list(best)
        for _ in range(rng.randint(1, 5)):
            letters.insert(rng.randrange(len(letters) + 1), chr(rng.choice((rng.randrange(32, 127), 0x2028, 0x1F600))))
        yield "".join(letters)
    yield "".join(chr(rng.randrange(1, 0xD800)) for _ in range(200))


def said(found: Verdict | Failure) -> str:
    """A verdict in words."""
    if isinstance(found, Failure):
        return f"a failure ({found.kind}): {found.message:.200}"
    return f"{found.outcome} with reward {found.reward:g}"
