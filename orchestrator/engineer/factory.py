"""Engineers by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from environments.base import Environment
from orchestrator.engineer.base import Engineer
from orchestrator.engineer.controller import ControllerEngineer
from orchestrator.engineer.fixed import FixedEngineer
from orchestrator.engineer.policy import Generate, PolicyEngineer
from orchestrator.engineer.random import RandomEngineer
from orchestrator.evidence import DEFAULT_MODULES, Modules, Style, check_modules, describe


@dataclass(frozen=True, slots=True)
class _Setup:
    environment: Environment
    seed: int
    style: Style
    modules: Modules
    generate: Generate | None
    temperature: float
    max_tokens: int | None

    def language_model(self, source: Literal["policy", "base"]) -> Engineer:
        if self.generate is None:
            raise ValueError(f"engineer {source!r} needs a model: pass generate=..., bound to {source} weights")
        return PolicyEngineer(
            self.generate,
            describe(self.environment),
            style=self.style,
            modules=self.modules,
            source=source,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
        )


_KINDS: dict[str, Callable[[_Setup], Engineer]] = {
    "policy": lambda setup: setup.language_model("policy"),
    "base": lambda setup: setup.language_model("base"),
    "controller": lambda setup: ControllerEngineer(describe(setup.environment), setup.modules),
    "random": lambda setup: RandomEngineer(setup.environment, setup.seed),
    "fixed": lambda setup: FixedEngineer(),
}

KINDS = tuple(_KINDS)


def build(
    kind: str,
    environment: Environment,
    *,
    seed: int,
    style: Style = "full",
    modules: Iterable[str] = DEFAULT_MODULES,
    generate: Generate | None = None,
    temperature: float = 0.0,
    max_tokens: int | None = None,
) -> Engineer:
    """The engineer called ``kind``. Raises ValueError naming the allowed kinds, or what the kind still needs."""
    if kind not in _KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.0)
        raise ValueError(f"unknown engineer {kind!r}: allowed are {', '.join(KINDS)}; did you mean {near[0]!r}?")
    setup = _Setup(environment, seed, style, check_modules(modules), generate, temperature, max_tokens)
    return _KINDS[kind](setup)
