"""Environments are found by name, entry point or dotted path, and a mistake names what was meant."""

from __future__ import annotations

import importlib.metadata

import pytest

from environments import registry
from environments.mapf_frozenlake import MapfFrozenLake
from environments.registry import BadEnvironment, UnknownEnvironment, load_environment


def test_a_built_in_environment_loads_by_name_with_plain_settings() -> None:
    environment = load_environment("mapf_frozenlake", {"sizes": [5, 3], "agents": 3})
    assert isinstance(environment, MapfFrozenLake)
    assert environment.stratum_names() == ("3x3", "5x5")


def test_a_dotted_path_loads_the_same_class() -> None:
    assert type(load_environment("environments.mapf_frozenlake:MapfFrozenLake", {})) is MapfFrozenLake


def test_an_entry_point_of_another_package_loads_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("mine", "environments.mapf_frozenlake:MapfFrozenLake", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])
    assert type(load_environment("mine", {})) is MapfFrozenLake


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("mapf_frozen_lake", {}, UnknownEnvironment, "Did you mean `mapf_frozenlake`?"),
        ("sokoban", {}, UnknownEnvironment, "Known: jsonl, mapf_frozenlake"),
        ("no_such_package.inside:Thing", {}, UnknownEnvironment, "cannot import `no_such_package.inside`"),
        ("environments.mapf_frozenlake:MapfFrozen", {}, UnknownEnvironment, "MapfFrozenLake`?"),
        ("environments.base:Task", {}, BadEnvironment, "not an environment class"),
        ("mapf_frozenlake", {"agent": 3}, BadEnvironment, "did you mean `agents`?"),
        ("mapf_frozenlake", {"agents": 6}, BadEnvironment, "`agents`"),
        ("mapf_frozenlake", {"sizes": [3, 11]}, BadEnvironment, "from 3 to 10"),
        ("mapf_frozenlake", {"sizes": []}, BadEnvironment, "`sizes`"),
    ],
)
def test_a_mistake_names_what_was_meant(name: str, settings: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        load_environment(name, settings)
    assert message in str(caught.value)
