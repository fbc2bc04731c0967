"""MAPF-FrozenLake for PettingZoo: each agent has its own controller, and all act at once (the parallel API)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from environments.mapf_frozenlake.stepping import ACTIONS, Episode, Planes, View

PerAgent = dict[str, Any]


class MapfFrozenLakeParallelEnv(View, ParallelEnv):
    """Agents ``agent_1``, ... act with UP, DOWN, LEFT, RIGHT, WAIT (0..4) and see the planes with their own first.

    Rewards and ends are those of the Gymnasium view and the same for every agent: they succeed or fail together.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "mapf_frozenlake_v0", **View.metadata}

    def _define_spaces(self) -> None:
        self._rng = np.random.default_rng()
        self.possible_agents = [f"agent_{i + 1}" for i in range(self._deck.agents)]
        self.agents: list[str] = []
        self.observation_spaces = {a: spaces.Box(0, 1, self._deck.shape(), np.int8) for a in self.possible_agents}
        self.action_spaces = {a: spaces.Discrete(len(ACTIONS)) for a in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Planes of 0 and 1."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The number of an action."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        """A new board: the same for the same seed. ``options={"index": i}`` names one."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        episode = self._deal(self._rng, options)
        self.agents = list(self.possible_agents)
        return self._observations(episode), self._each(episode.info())

    def step(self, actions: Mapping[str, int]) -> tuple[PerAgent, PerAgent, PerAgent, PerAgent, PerAgent]:
        """All agents act at once; when the episode is over no agent is left."""
        episode = self._episode
        episode.step([int(actions[agent]) for agent in self.possible_agents])
        values = (episode.reward, episode.terminated, episode.truncated, episode.info())
        rewards, terminated, truncated, infos = (self._each(value) for value in values)
        if episode.verdict is not None:
            self.agents = []
        return self._observations(episode), rewards, terminated, truncated, infos

    def _observations(self, episode: Episode) -> dict[str, Planes]:
        return {agent: episode.planes(self._deck.size, first=i) for i, agent in enumerate(self.possible_agents)}

    def _each(self, value: Any) -> PerAgent:
        return {agent: dict(value) if isinstance(value, dict) else value for agent in self.possible_agents}
