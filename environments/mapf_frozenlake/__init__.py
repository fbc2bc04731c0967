"""MAPF-FrozenLake, the first task family: ``MapfFrozenLake`` is the environment class."""

from environments.mapf_frozenlake.environment import MapfFrozenLake

__all__ = ["MapfFrozenLake"]
