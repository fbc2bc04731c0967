"""The arm that changes the environment without looking: a new random configuration each stage."""

from __future__ import annotations

from environments.base import Environment, stream
from orchestrator.engineer.base import Stateless
from orchestrator.records import Evidence, Proposal


class RandomEngineer(Stateless):
    """Draws from the environment's own stage-0 distribution; the draw is a pure function of (run seed, stage)."""

    def __init__(self, environment: Environment, seed: int) -> None:
        self._environment = environment
        self._seed = seed

    def propose(self, evidence: Evidence) -> Proposal:
        """A feasible configuration that ignores the evidence but for its stage."""
        rng = stream(self._seed, "engineer", evidence.stage)
        knobs = self._environment.random_knobs(rng).model_dump(mode="json")
        return Proposal(source="random", knobs=knobs, rationale="drawn at random")
