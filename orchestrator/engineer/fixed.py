"""The arm without redesign: every stage trains on the configuration of stage 0."""

from __future__ import annotations

from orchestrator.engineer.base import Stateless
from orchestrator.records import Evidence, Proposal


class FixedEngineer(Stateless):
    """Proposes the configuration that was just used. Each stage hands it on, so it stays that of stage 0."""

    def propose(self, evidence: Evidence) -> Proposal:
        """The same knobs again; the gate takes an unchanged configuration as it is."""
        return Proposal(source="fixed", knobs=evidence.knobs, rationale="kept")
