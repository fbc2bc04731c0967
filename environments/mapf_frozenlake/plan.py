"""Reading a completion: the last complete block of agent lines, generous about dress, strict about content.

An agent line is ``1: RIGHT DOWN`` with anything a chat model likes to put around it: ``Agent 1:``, bullets, bold,
lower case, commas or arrows between actions. Whatever else stands on such a line is an unknown action.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1), "WAIT": (0, 0)}
"""(row, column) step of each action."""

# One character class per gap and no nested repetition: linear on any text.
_AGENT_LINE = re.compile(r"[\s\-*>•#_`]*(?:agent[\s_#]*)?([0-9]+)[\s*_`]*:(.*)", re.IGNORECASE)
_GAP = re.compile(r"[\s,;.|\[\]()\"'`*→⇒⟶>=\-]+")
_OPENING, _CLOSING = (re.compile(r"<think>", re.IGNORECASE), re.compile(r".*</think>", re.IGNORECASE | re.DOTALL))

Actions = tuple[str, ...]


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
    """A run of agent lines: (agent, actions as written) in order."""

    lines: list[tuple[int, str]] = field(default_factory=list)

    def agents(self) -> set[int]:
        return {agent for agent, _ in self.lines}

    def complete(self, agents: int) -> bool:
        return self.agents() >= set(range(1, agents + 1))


def parse_plan(text: str, agents: int, *, truncated: bool = False) -> tuple[Actions, ...] | Fault:
    """The actions of each agent, or what is wrong. Total over any string; an agent may have no actions."""
    parsed = _parse(text, agents)
    if truncated and isinstance(parsed, Fault):
        return Fault(PlanFault.TRUNCATED, f"cut off at the token limit: {parsed.reason}")
    return parsed


def _parse(text: str, agents: int) -> tuple[Actions, ...] | Fault:
    blocks = _blocks(_without_reasoning(text), agents)
    if not blocks:
        return Fault(PlanFault.PARSE_ERROR, "no agent line found")
    block = next((b for b in reversed(blocks) if b.complete(agents)), blocks[-1])
    plans: dict[int, Actions] = {}
    for agent, written in block.lines:
        if not 1 <= agent <= agents:
            return Fault(PlanFault.PARSE_ERROR, f"there is no agent {agent}")
        if agent in plans:
            return Fault(PlanFault.PARSE_ERROR, f"agent {agent} has two lines")
        words = tuple(word.upper() if word.isascii() else word for word in _GAP.split(written) if word)
        unknown = next((word for word in words if word not in MOVES), None)
        if unknown is not None:
            return Fault(PlanFault.PARSE_ERROR, f"unknown action {unknown[:40]!r} of agent {agent}")
        plans[agent] = words
    missing = [agent for agent in range(1, agents + 1) if agent not in plans]
    if missing:
        return Fault(PlanFault.MISSING_AGENT, f"no line for agent {missing[0]}")
    return tuple(plans[agent] for agent in range(1, agents + 1))


def _without_reasoning(text: str) -> str:
    """What follows the last closed reasoning block, up to one that is opened and never closed."""
    closing = _CLOSING.match(text)
    answer = text[closing.end() :] if closing else text
    opening = _OPENING.search(answer)
    return answer[: opening.start()] if opening else answer


def _blocks(text: str, agents: int) -> list[_Block]:
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
        digits = match[1].lstrip("0")
        agent = int(digits or 0) if len(digits) < 4 else 10_000
        if current is not None and blank and current.complete(agents) and agent in current.agents():
            current = None
        if current is None:
            current = _Block()
            blocks.append(current)
        current.lines.append((agent, match[2]))
        blank = False
    return blocks
