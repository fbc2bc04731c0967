"""MAPF-FrozenLake for Gymnasium: one controller moves all agents. Importing this registers ``MapfFrozenLake-v0``.

import gymnasium
import environments.mapf_frozenlake.gymnasium_view
env = gymnasium.make("envwright/MapfFrozenLake-v0", settings={"agents": 2, "sizes": [4]})
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from environments.mapf_frozenlake.stepping import ACTIONS, Planes, View

ID = "envwright/MapfFrozenLake-v0"


class MapfFrozenLakeEnv(View, gymnasium.Env[Planes, NDArray[np.int64]]):
    """Action: one of UP, DOWN, LEFT, RIGHT, WAIT (0..4) per agent. Observation: int8 planes (``Episode.planes``).

    Reward is 0 until the last step. It terminates when all agents are on their goals at once, with optimum / cost of
    the steps taken (1 if optimal), or at the first broken rule, with 0; it is truncated after ``horizon`` steps
    (2 n² if not given), with 0. The last ``info`` holds the outcome.
    """

    def _define_spaces(self) -> None:
        self.action_space = spaces.MultiDiscrete([len(ACTIONS)] * self._deck.agents)
        self.observation_space = spaces.Box(0, 1, self._deck.shape(), np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Planes, dict[str, Any]]:
        """A new board: the same for the same seed. ``options={"index": i}`` names one."""
        super().reset(seed=seed)
        episode = self._deal(self.np_random, options)
        return episode.planes(self._deck.size), episode.info()

    def step(self, action: NDArray[np.int64]) -> tuple[Planes, float, bool, bool, dict[str, Any]]:
        """All agents act at once."""
        episode = self._episode
        episode.step([int(a) for a in action])
        seen = episode.planes(self._deck.size)
        return seen, episode.reward, episode.terminated, episode.truncated, episode.info()


gymnasium.register(ID, entry_point=f"{__name__}:{MapfFrozenLakeEnv.__name__}")
