"""What passes between the stage loop, the engineer and the gate. Frozen, JSON-ready, each with a schema version."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from environments.base import SCHEMA_VERSION, Message

ProposalSource = Literal["policy", "base", "controller", "random", "fixed", "initial"]
DecisionStatus = Literal["accepted", "repaired", "replaced"]


@dataclass(frozen=True, slots=True)
class StratumResult:
    """Counts of outcomes on one stratum. ``outcomes`` holds every member of the environment's enumeration."""

    stratum: str
    outcomes: dict[str, int]

    @property
    def total(self) -> int:
        """How many completions were judged."""
        return sum(self.outcomes.values())

    def rate(self, names: frozenset[str]) -> float:
        """Share of the outcomes in ``names``; 0 for an empty stratum."""
        return sum(self.outcomes.get(n, 0) for n in names) / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An earlier configuration and what validation said after its stage."""

    stage: int
    knobs: dict[str, Any]
    results: tuple[StratumResult, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Raw facts for the engineer: counts by stratum now, earlier (configuration, result) pairs, and the round.

    ``stage`` is the stage that just ended (0-based); ``stages`` how many there are. ``knobs`` is the configuration
    that stage used. History never holds the random stage 0.
    """

    stage: int
    stages: int
    strata: tuple[str, ...]
    results: tuple[StratumResult, ...]
    knobs: dict[str, Any]
    history: tuple[HistoryEntry, ...] = ()
    rationale: str = ""
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an engineer wrote. ``knobs`` is None when the reply could not be parsed; ``reply`` is kept verbatim."""

    source: ProposalSource
    knobs: dict[str, Any] | None
    rationale: str = ""
    reply: str = ""
    prompt: tuple[Message, ...] = ()
    expected: dict[str, int] = field(default_factory=dict)
    """Predicted direction of the solved rate per stratum (+1 up, -1 down); compared with what happened."""
    error: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """One gate check: passed, or why not."""

    name: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate did with a proposal, and the configuration that the next stage will use."""

    status: DecisionStatus
    proposal: Proposal
    knobs: dict[str, Any]
    checks: tuple[Check, ...]
    changes: tuple[str, ...] = ()
    fallback: Proposal | None = None
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return asdict(self)
