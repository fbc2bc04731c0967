"""Reading a completion: the last complete plan in it, generous about dress, strict about content.

- ``lines``: one line per agent, ``1: RIGHT DOWN``, with anything a chat model likes to put around it: ``Agent 1:``,
  bullets, bold, lower case, commas or arrows between actions. Whatever else stands on such a line is an unknown action.
- ``coordinates``: the same lines with the cells of a path, the start first: ``1: (0, 0) (0, 1)`` or ``1: r0c0 r0c1``.
- ``json``: an object such as ``{"1": ["RIGHT", "DOWN"], "2": []}``, anywhere in the text, also inside another object.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1), "WAIT": (0, 0)}
"""(row, column) step of each action."""

# One character class per gap and no nested repetition: linear on any text.
_AGENT_LINE = re.compile(r"[\s\-*>•#_`]*(?:agent[\s_#]*)?([0-9]+)[\s*_`]*:(.*)", re.IGNORECASE)
_AGENT_KEY = re.compile(r"\s*(?:agent[\s_#]*)?([0-9]+)\s*", re.IGNORECASE)
_GAP = re.compile(r"[\s,;.|\[\]()\"'`*→⇒⟶>=\-]+")
_NUMBER = r"(-?[0-9]{1,4})"
_CELL = re.compile(rf"[(\[]\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[)\]]|r{_NUMBER}c{_NUMBER}", re.IGNORECASE)
# A plan nests no braces, so the innermost pairs are all that can be one, and no character is looked at twice.
_INNERMOST = re.compile(r"\{[^{}]*\}")
_OPENING, _CLOSING = (re.compile(r"<think>", re.IGNORECASE), re.compile(r".*</think>", re.IGNORECASE | re.DOTALL))

PlanFormat = Literal["lines", "json", "coordinates"]
Place: TypeAlias = tuple[int, int]
"""(row, column), perhaps off the board."""
Actions: TypeAlias = tuple[str, ...]
Path: TypeAlias = tuple[Place, ...]
"""Where an agent is after 0, 1, 2, ... steps: its start comes first."""


class PlanFault(enum.StrEnum):
    """Why a completion holds no complete plan."""

    TRUNCATED = "truncated"
    PARSE_ERROR = "parse_error"
    MISSING_AGENT = "missing_agent"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the text."""

    kind: PlanFault
    reason: str


@dataclass(slots=True)
class _Block:
    """What may be a plan: (agent, actions as written) in order."""

    lines: list[tuple[int, Any]] = field(default_factory=list)

    def agents(self) -> set[int]:
        return {agent for agent, _ in self.lines}

    def complete(self, agents: int) -> bool:
        return self.agents() >= set(range(1, agents + 1))


def parse_plan(
    text: str, agents: int, *, truncated: bool = False, plan_format: PlanFormat = "lines"
) -> tuple[Actions | Path, ...] | Fault:
    """The actions (or, with ``coordinates``, the path) of each agent, or what is wrong. Total over any string.

    An agent may have no actions. Linear in the length of the text.
    """
    parsed = _parse(text, agents, plan_format)
    if truncated and isinstance(parsed, Fault):
        return Fault(PlanFault.TRUNCATED, f"cut off at the token limit: {parsed.reason}")
    return parsed


def _parse(text: str, agents: int, plan_format: PlanFormat) -> tuple[Actions | Path, ...] | Fault:
    answer = _without_reasoning(text)
    as_json = plan_format == "json"
    blocks = _objects(answer) if as_json else _line_blocks(answer, agents)
    if not blocks:
        return Fault(PlanFault.PARSE_ERROR, f"no {'JSON object with agents' if as_json else 'agent line'} found")
    block = next((b for b in reversed(blocks) if b.complete(agents)), blocks[-1])
    plans: dict[int, Actions | Path] = {}
    for agent, written in block.lines:
        if not 1 <= agent <= agents:
            return Fault(PlanFault.PARSE_ERROR, f"there is no agent {agent}")
        if agent in plans:
            return Fault(PlanFault.PARSE_ERROR, f"agent {agent} has two {'lists' if as_json else 'lines'}")
        plan, wrong = _READERS[plan_format](written)
        if wrong is not None:
            return Fault(PlanFault.PARSE_ERROR, f"{wrong} of agent {agent}")
        plans[agent] = plan
    missing = [agent for agent in range(1, agents + 1) if agent not in plans]
    if missing:
        return Fault(PlanFault.MISSING_AGENT, f"no {'list' if as_json else 'line'} for agent {missing[0]}")
    return tuple(plans[agent] for agent in range(1, agents + 1))


def _without_reasoning(text: str) -> str:
    """What follows the last closed reasoning block, up to one that is opened and never closed."""
    closing = _CLOSING.match(text)
    answer = text[closing.end() :] if closing else text
    opening = _OPENING.search(answer)
    return answer[: opening.start()] if opening else answer


def _line_blocks(text: str, agents: int) -> list[_Block]:
    """Runs of agent lines. Other text ends a run; so does a blank line once complete, if an agent comes again."""
    blocks: list[_Block] = []
    current: _Block | None = None
    blank = False
    for line in text.splitlines():
        match = _AGENT_LINE.fullmatch(line)
        if match is None:
            blank = not line.strip()
            current = current if blank else None
            continue
        agent = _agent(match[1])
        if current is not None and blank and current.complete(agents) and agent in current.agents():
            current = None
        if current is None:
            current = _Block()
            blocks.append(current)
        current.lines.append((agent, match[2]))
        blank = False
    return blocks


def _objects(text: str) -> list[_Block]:
    """JSON objects with the key of an agent. Any other key in one of them is an agent that does not exist, 0."""
    blocks = []
    for match in _INNERMOST.finditer(text):
        try:
            pairs = json.loads(match[0], object_pairs_hook=list)
        except (ValueError, RecursionError):
            continue
        keys = [_AGENT_KEY.fullmatch(key) for key, _ in pairs]
        if any(keys):
            lines = [(_agent(key[1]) if key else 0, value) for key, (_, value) in zip(keys, pairs, strict=True)]
            blocks.append(_Block(lines))
    return blocks


def _agent(digits: str) -> int:
    significant = digits.lstrip("0")
    return int(significant or 0) if len(significant) < 4 else 10_000


_Read: TypeAlias = tuple[Actions | Path, str | None]
"""What an agent does, and what is wrong with it."""


def _read_actions(words: Sequence[str]) -> _Read:
    # Only ASCII is folded: a look-alike such as a dotless i must not become one of ours.
    actions = tuple(word.upper() if word.isascii() else word for word in words)
    unknown = next((action for action in actions if action not in MOVES), None)
    return actions, None if unknown is None else f"unknown action {unknown[:40]!r}"


def _read_line(written: str) -> _Read:
    return _read_actions([word for word in _GAP.split(written) if word])


def _read_list(written: Any) -> _Read:
    if not isinstance(written, list) or not all(isinstance(word, str) for word in written):
        return (), "no list of action names"
    return _read_actions(written)


def _read_path(written: str) -> _Read:
    cells = tuple((int(a or c), int(b or d)) for a, b, c, d in _CELL.findall(written))
    unknown = next((word for word in _GAP.split(_CELL.sub(" ", written)) if word), None)
    return cells, None if unknown is None else f"unknown cell {unknown[:40]!r}"


_READERS: dict[PlanFormat, Callable[[Any], _Read]] = {
    "lines": _read_line,
    "json": _read_list,
    "coordinates": _read_path,
}
