"""The two reply formats: what decoding is constrained to, how a reply is read, and how one is written.

``compact``: one line per stratum, rationale class before numbers, e.g. ``3x3 mastered share 20 hole_ratio 30``.
``full``: ``{"rationale": str, "strata": {stratum: {knob: int}}, "expected": {stratum: 1 | 0 | -1}}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.evidence import CLASSES, EnvInfo, Style

Constraint = tuple[Literal["json"], dict[str, Any]] | tuple[Literal["regex"], str]
"""For vLLM's ``StructuredOutputsParams(json=...)`` or ``(regex=...)``."""

EXPECTED = {"mastered": 0, "learnable": 1, "hard": 1, "unknown": 0}
"""Prediction of the solved rate that goes with a class: solved strata have no room, the others are to rise."""

RATIONALE_LENGTH = 1200
"""Characters. A bound keeps a constrained model from spending its whole budget before the numbers."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply taken apart. ``knobs`` (shape ``{"strata": {stratum: {knob: value}}}``) is None if ``error`` is set.

    Values are as written: bounds and grid are the gate's business.
    """

    knobs: dict[str, Any] | None = None
    rationale: str = ""
    expected: dict[str, int] = field(default_factory=dict)
    error: str = ""


def reply_constraint(info: EnvInfo, style: Style) -> Constraint:
    """What decoding must be held to: a JSON schema (full) or a regular expression (compact)."""
    return ("json", _schema(info)) if style == "full" else ("regex", _regex(info))


def reply_tokens(info: EnvInfo, style: Style) -> int:
    """Upper bound on a constrained reply, in tokens: words and newlines (compact), 2 characters a token (full)."""
    cells = len(info.strata) * len(info.knobs)
    if style == "compact":
        return 3 * len(info.strata) + 2 * cells + 1
    return (RATIONALE_LENGTH + 40 * len(info.strata) + 30 * cells) // 2


def parse_reply(text: str, info: EnvInfo, style: Style) -> Parsed:
    """Read a reply; total over any string."""
    return _parse_json(text, info) if style == "full" else _parse_lines(text, info)


def write_reply(knobs: Mapping[str, Any], classes: Mapping[str, str], info: EnvInfo, style: Style) -> str:
    """The reply that proposes ``knobs`` (shape as in :class:`Parsed`) with one rationale class per stratum."""
    rows = knobs["strata"]
    if style == "compact":
        lines = [
            " ".join([name, classes[name], *(f"{spec.name} {rows[name][spec.name]}" for spec in info.knobs)])
            for name in info.strata
        ]
        return "\n".join(lines)
    reply = {
        "rationale": spoken(classes, info),
        "strata": {name: {spec.name: rows[name][spec.name] for spec in info.knobs} for name in info.strata},
        "expected": expectation(classes, info),
    }
    return json.dumps(reply)


def spoken(classes: Mapping[str, str], info: EnvInfo) -> str:
    """Classes as a rationale that module S can show again: ``3x3 mastered 4x4 hard``."""
    return " ".join(f"{name} {classes[name]}" for name in info.strata)


def expectation(classes: Mapping[str, str], info: EnvInfo) -> dict[str, int]:
    """The prediction that goes with the classes."""
    return {name: EXPECTED[classes[name]] for name in info.strata}


# ---------------------------------------------------------------------------------------------------------- constraint


def _schema(info: EnvInfo) -> dict[str, Any]:
    def closed(properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    row = closed({spec.name: {"type": "integer", "enum": list(spec.grid)} for spec in info.knobs})
    return closed(
        {
            "rationale": {"type": "string", "maxLength": RATIONALE_LENGTH},
            "strata": closed(dict.fromkeys(info.strata, row)),
            "expected": closed({name: {"type": "integer", "enum": [-1, 0, 1]} for name in info.strata}),
        }
    )


def _regex(info: EnvInfo) -> str:
    # Names are escaped by hand: re.escape also escapes characters that other regex dialects refuse to see escaped.
    def literal(name: str) -> str:
        return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", name)

    knobs = "".join(f" {literal(s.name)} ({'|'.join(map(str, s.grid))})" for s in info.knobs)
    return "\n".join(f"{literal(name)} ({'|'.join(CLASSES)}){knobs}" for name in info.strata)


# --------------------------------------------------------------------------------------------------------------- parse


def _parse_lines(text: str, info: EnvInfo) -> Parsed:
    words = iter(text.split())
    rows: dict[str, dict[str, int]] = {}
    classes: dict[str, str] = {}
    try:
        for name in info.strata:
            _expect(words, (name,))
            classes[name] = _expect(words, CLASSES)
            rows[name] = {}
            for spec in info.knobs:
                _expect(words, (spec.name,))
                rows[name][spec.name] = _integer(words, f"{name} {spec.name}")
        if (extra := next(words, None)) is not None:
            raise ValueError(f"wanted the end of the reply, got {extra!r}")
    except ValueError as error:
        return Parsed(error=str(error))
    return Parsed({"strata": rows}, spoken(classes, info), expectation(classes, info))


def _expect(words: Iterator[str], allowed: tuple[str, ...]) -> str:
    word = next(words, None)
    if word not in allowed:
        got = "the reply ended" if word is None else f"got {word[:40]!r}"
        raise ValueError(f"wanted {' or '.join(map(repr, allowed))}, {got}")
    return word


def _integer(words: Iterator[str], what: str) -> int:
    word = next(words, "")
    # int() would also take other scripts' digits, underscores and thousands of digits.
    if not re.fullmatch(r"-?[0-9]{1,9}", word):
        raise ValueError(f"wanted an integer for {what}, got {word[:40]!r}")
    return int(word)


def _parse_json(text: str, info: EnvInfo) -> Parsed:
    reply = _json_object(text)
    rows = reply.get("strata")
    if not isinstance(rows, dict):
        return Parsed(error='the reply has no complete JSON object under "strata"')
    table: dict[str, dict[str, Any]] = {}
    for name in info.strata:
        row = rows.get(name)
        if not isinstance(row, dict):
            return Parsed(error=f"strata has no object for {name!r}")
        for spec in info.knobs:
            value = row.get(spec.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return Parsed(error=f"{name}.{spec.name} is not a number: {value!r:.40}")
        table[name] = {str(key): value for key, value in row.items()}
    table |= {str(name): row for name, row in rows.items() if name not in table}
    expected = reply.get("expected")
    known = expected.items() if isinstance(expected, dict) else ()
    directions = {k: v for k, v in known if k in info.strata and type(v) is int and v in (-1, 0, 1)}
    return Parsed({"strata": table}, str(reply.get("rationale") or ""), directions)


def _json_object(text: str) -> dict[str, Any]:
    """The first object with a ``strata`` key, or, from a truncated one, those members that are complete.

    A cut-off table is never completed by guessing: half a number is still a number.
    """
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        value = _decoded(decoder, text, match.start())
        if isinstance(value, dict) and "strata" in value:
            return value
    members = {}
    for key in ("rationale", "strata", "expected"):
        if match_key := re.search(rf'"{key}"\s*:\s*', text):
            members[key] = _decoded(decoder, text, match_key.end())
    return members


def _decoded(decoder: json.JSONDecoder, text: str, at: int) -> Any:
    # RecursionError: a reply of ten thousand opening brackets. ValueError covers JSONDecodeError and huge integers.
    try:
        return decoder.raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None
