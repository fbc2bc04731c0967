"""A language model as the engineer: the policy that is being trained, or its frozen base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from environments.base import Message, stream
from orchestrator import evidence as rendering
from orchestrator.engineer.replies import Constraint, parse_reply, reply_constraint, reply_tokens
from orchestrator.evidence import DEFAULT_MODULES, EnvInfo, Modules, Style
from orchestrator.records import Evidence, Proposal


class Generate(Protocol):
    """One constrained completion. The driver binds it to the rollout pool and to current or base weights."""

    def __call__(
        self, messages: list[Message], constraint: Constraint, *, max_tokens: int, temperature: float, seed: int
    ) -> str:
        """The completion's text, without the prompt."""
        ...


class PolicyEngineer:
    """Renders the evidence, asks once, reads the reply. What cannot be read is kept verbatim with the reason."""

    def __init__(
        self,
        generate: Generate,
        info: EnvInfo,
        *,
        style: Style,
        modules: Modules = DEFAULT_MODULES,
        source: Literal["policy", "base"] = "policy",
        temperature: float = 0.0,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        self._generate = generate
        self._info = info
        self._style: Style = style
        self._modules = modules
        self._source: Literal["policy", "base"] = source
        self._temperature = temperature
        self._max_tokens = max_tokens or reply_tokens(info, style)
        self._seed = seed
        self._proposals = 0
        self._unread = 0

    def propose(self, evidence: Evidence) -> Proposal:
        """One reply, sampled with a seed that is a pure function of (run seed, stage)."""
        render = rendering.full if self._style == "full" else rendering.compact
        prompt = render(evidence, self._info, self._modules)
        reply = self._generate(
            prompt,
            reply_constraint(self._info, self._style),
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=stream(self._seed, "engineer", evidence.stage).getrandbits(31),
        )
        parsed = parse_reply(reply, self._info, self._style)
        self._proposals += 1
        self._unread += parsed.knobs is None
        return Proposal(
            source=self._source,
            knobs=parsed.knobs,
            rationale=parsed.rationale,
            reply=reply,
            prompt=tuple(prompt),
            expected=parsed.expected,
            error=parsed.error,
        )

    def state_dict(self) -> dict[str, Any]:
        """The counters; weights belong to the learner."""
        return {"proposals": self._proposals, "unread": self._unread}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue counting."""
        self._proposals, self._unread = int(state["proposals"]), int(state["unread"])

    def metrics(self) -> dict[str, float]:
        """How many replies were asked for, and the share that could not be read."""
        return {
            "engineer/proposals": float(self._proposals),
            "engineer/unread_share": self._unread / self._proposals if self._proposals else 0.0,
        }
