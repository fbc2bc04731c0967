"""The engineer's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.records import Evidence, Proposal


class Engineer(Protocol):
    """Writes the next environment configuration. Total: a reply that cannot be read is a Proposal without knobs."""

    def propose(self, evidence: Evidence) -> Proposal:
        """The configuration for the stage after ``evidence.stage``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state; what it restores proposes the same from the same evidence."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers worth plotting."""
        ...


class Stateless:
    """For engineers whose proposal depends on nothing but evidence and their settings."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore; a state from another kind of engineer is refused."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, got one with {', '.join(sorted(state))}")

    def metrics(self) -> dict[str, float]:
        """Nothing to plot."""
        return {}
