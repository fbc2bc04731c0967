"""Answers on disk: one JSON line each, appended as they come, so that a stopped evaluation can be continued.

A folder holds one evaluation: ``settings.json`` (all that decides the answers), ``answers.jsonl``, and
``summary.json`` once a command has come to its end. A failed question is kept too, and asked again next time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from environments.base import SCHEMA_VERSION, canonical_json, digest
from orchestrator.config import ConfigError
from orchestrator.eval.records import Answer, Key

SETTINGS, ANSWERS, SUMMARY = "settings.json", "answers.jsonl", "summary.json"


class Journal:
    """The answers of one evaluation, by (task id, sample); ``append`` keeps one more."""

    def __init__(self, file: IO[bytes] | None = None, settings: str = "") -> None:
        """Without a file answers are kept in memory only. ``settings`` is the digest that goes into each line."""
        self.answers: dict[Key, Answer] = {}
        self._file, self._settings = file, settings

    def append(self, answer: Answer) -> None:
        """Keep an answer; it is in the file when this returns."""
        if self._file is not None:
            self._file.write(canonical_json({"settings": self._settings, **asdict(answer)}).encode() + b"\n")
            self._file.flush()
        self.answers[answer.key] = answer

    def done(self, key: Key) -> bool:
        """Whether this was answered and judged; what failed is not done."""
        return key in self.answers and self.answers[key].failure is None


@contextmanager
def open_journal(directory: Path | None, settings: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal of a folder, made if it does not exist; in memory if ``directory`` is None.

    A line cut short by a crash is dropped. Raises :class:`ConfigError` if the folder holds another evaluation or
    something else, or if another process is writing into it.
    """
    if directory is None:
        yield Journal()
        return
    _claim(directory, settings)
    try:
        file = (directory / ANSWERS).open("a+b")
    except OSError as error:
        raise ConfigError(f"--out {directory} cannot be written: {error}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another evaluation is writing into {directory}: wait for it, or give another --out"
            ) from None
        _drop_half_line(file)
        journal = Journal(file, digest(dict(settings)))
        journal.answers |= _parsed(directory / ANSWERS, journal._settings)
        yield journal


def read_settings(directory: Path) -> dict[str, Any]:
    """What an evaluation was made with. Raises :class:`ConfigError` if the folder holds none."""
    try:
        record = json.loads((directory / SETTINGS).read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{directory} holds no evaluation (no {SETTINGS} in it): make one with envwright eval --out {directory}"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / SETTINGS} cannot be read as JSON: {error}") from None
    if not isinstance(record, dict) or record.pop("schema_version", None) != SCHEMA_VERSION:
        raise ConfigError(f"{directory / SETTINGS} is not one that this envwright reads (schema {SCHEMA_VERSION})")
    return record


def read_answers(directory: Path) -> dict[Key, Answer]:
    """The answers of an evaluation, the last one of each (task id, sample)."""
    return _parsed(directory / ANSWERS, digest(read_settings(directory)))


def _claim(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a new evaluation, or compare with those that are there."""
    if directory.is_dir() and any(directory.iterdir()):
        if there := _differences(read_settings(directory), settings):
            raise ConfigError(
                f"{directory} holds an evaluation with other settings ({there}): give another --out, or the same "
                "settings to continue it"
            )
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f".{SETTINGS}.partial"
        record = {"schema_version": SCHEMA_VERSION, **settings}
        partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
        os.replace(partial, directory / SETTINGS)
    except OSError as error:
        raise ConfigError(f"--out {directory} cannot be a folder for an evaluation: {error}") from None


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> str:
    """``temperature 0.0 there, 1.0 here`` for every setting that differs."""
    parts = []
    for key in dict.fromkeys([*there, *here]):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            parts.append(_differences(old, new, f"{prefix}{key}."))
        elif old != new:
            parts.append(f"{prefix}{key} {old!r} there, {new!r} here")
    return "; ".join(filter(None, parts))


def _drop_half_line(file: IO[bytes]) -> None:
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    file.truncate(whole)
    file.seek(0, os.SEEK_END)


def _parsed(path: Path, settings: str) -> dict[Key, Answer]:
    if not path.exists():
        return {}
    answers = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            if record.pop("settings") != settings:
                raise ValueError("it belongs to an evaluation with other settings")
            answer = Answer(**record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}, line {number} is no answer of this evaluation ({error}): delete the line, it is asked again"
            ) from None
        # A later failure must not hide an answer: the question was answered.
        if answer.failure is None or answer.key not in answers:
            answers[answer.key] = answer
    return answers
