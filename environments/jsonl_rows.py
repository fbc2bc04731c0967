"""Reading a JSONL file of prompts: every line is checked, and an error names the line, the trouble and the way out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from environments.base import Message, canonical_json, digest

MOST_STRATA = 40
"""More than these are not a difficulty scale but an identifier."""
ROLES = ("system", "user", "assistant")


class DataError(ValueError):
    """The data set cannot be used; the message names the file, the line and what to do."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Which keys of a row hold what; the settings of the same name end in ``_key``."""

    prompt: str
    stratum: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class Rows:
    """The distinct rows as canonical JSON, by stratum. Neither order nor duplicates of the file matter."""

    strata: dict[str, list[str]]
    duplicates: int
    checksum: str

    def parsed(self, row: str) -> dict[str, Any]:
        """A row as an object of its own."""
        data: dict[str, Any] = json.loads(row)
        return data


def messages(prompt: Any) -> list[Message]:
    """A prompt of a row as a chat: a text is one user turn. Raises ValueError for anything else."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"must be a text or a list of messages, not {prompt!r:.60}")
    chat: list[Message] = []
    for message in prompt:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"has a message without a role of {', '.join(ROLES)}: {message!r:.60}")
        if not isinstance(message.get("content"), str) or not message["content"].strip():
            raise ValueError(f"has a message without text in `content`: {message!r:.60}")
        chat.append({"role": message["role"], "content": message["content"]})
    if chat[-1]["role"] != "user":
        raise ValueError("must end with a message of the user")
    return chat


def read_rows(path: str, keys: Keys) -> Rows:
    """All rows. Raises DataError for a file or a line that cannot be used."""
    strata: defaultdict[str, dict[str, str]] = defaultdict(dict)
    total = 0
    for number, row in _objects(Path(path).expanduser()):
        stratum = _checked(path, number, row, keys)
        text = canonical_json(row)
        strata[stratum][digest(text)] = text
        total += 1
        if len(strata) > MOST_STRATA:
            raise DataError(
                f"{path}: `stratum_key` = {keys.stratum!r} has more than {MOST_STRATA} values: take a key with few, "
                "such as a difficulty or a topic"
            )
    if not total:
        raise DataError(f"{path} holds no rows: write one JSON object a line")
    # By content hash: an order that is fair to "the first n" and the same for a shuffled file.
    ordered = {name: [strata[name][key] for key in sorted(strata[name])] for name in sorted(strata, key=_rank)}
    distinct = sum(map(len, ordered.values()))
    return Rows(ordered, total - distinct, digest(list(ordered.values())))


def _rank(stratum: str) -> tuple[bool, int, str]:
    number = stratum.isascii() and stratum.isdigit()
    return not number, int(stratum) if number else 0, stratum


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of every line that is not blank."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path} ({error.strerror}): set environment.settings.path to a JSONL file"
        ) from error
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield number, _object(path, number, line)


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
        # Half of a surrogate pair has no bytes: it could be neither hashed nor tokenised.
        canonical_json(value).encode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number} is not UTF-8 text (byte {error.start + 1} of the line): is the file compressed, "
            "binary or in another encoding? Convert it to JSONL in UTF-8"
        ) from error
    except UnicodeEncodeError as error:
        raise DataError(f"{path}, line {number} holds half of a surrogate pair (\\ud800..\\udfff): mend it") from error
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        array = " The file looks like one JSON array: write its elements one a line." if line[:1] == b"[" else ""
        raise DataError(
            f"{path}, line {number} is not JSON ({reason}): each line must be one object.{array}"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {number} is a JSON {type(value).__name__}: each line must be one object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _checked(path: str, number: int, row: dict[str, Any], keys: Keys) -> str:
    """The stratum of a row that has all it needs."""
    for setting, key in (("prompt_key", keys.prompt), ("stratum_key", keys.stratum), ("answer_key", keys.answer)):
        if key is not None and key not in row:
            found = ", ".join(sorted(row)) or "none"
            raise DataError(f"{path}, line {number} has no key {key!r} (it has: {found:.200}): change `{setting}`")
    try:
        messages(row[keys.prompt])
    except ValueError as error:
        raise DataError(f"{path}, line {number}: {keys.prompt!r} {error}") from error
    if keys.answer is not None and not str(row[keys.answer]).strip():
        raise DataError(f"{path}, line {number}: {keys.answer!r} is empty: give every row an answer")
    stratum = "all" if keys.stratum is None else row[keys.stratum]
    if not isinstance(stratum, str | int) or len(str(stratum).split()) != 1 or str(stratum) != str(stratum).strip():
        raise DataError(
            f"{path}, line {number}: {keys.stratum!r} is {stratum!r:.60}: a stratum is a number or one word, without "
            "spaces"
        )
    return str(stratum)
