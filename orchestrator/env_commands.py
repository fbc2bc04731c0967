"""What the ``envwright env`` commands do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import yaml
from rich.console import Console

from environments.base import Environment
from environments.conformance import run_checks
from environments.registry import load_environment
from orchestrator.config import ConfigError

T = TypeVar("T")


def check(name: str, pairs: Iterable[str], console: Console) -> int:
    """Load an environment by name or dotted path and print one line per check; 1 if any failed, else 0."""
    settings = parse_settings(pairs)
    environment = load(name, settings)
    if (summary := getattr(environment, "summary", None)) is not None:
        console.print(_guarded(summary), soft_wrap=True, highlight=False, markup=False)
    results = run_checks(environment, name, settings)
    for result in results:
        console.print(str(result), soft_wrap=True, highlight=False, markup=False)
    failed = sum(not result.ok for result in results)
    console.print(f"{failed} of {len(results)} checks failed" if failed else f"all {len(results)} checks passed")
    return int(failed > 0)


def load(name: str, settings: dict[str, Any]) -> Environment:
    """The environment; a bad name or setting is a :class:`ConfigError`."""
    return _guarded(lambda: load_environment(name, settings))


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """``key=value`` pairs with YAML values. Raises :class:`ConfigError`."""
    settings = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"setting {pair!r} must look like key=value")
        try:
            settings[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"setting {pair!r}: the value is not YAML ({error})") from None
    return settings


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except ValueError as error:
        raise ConfigError(str(error)) from None
