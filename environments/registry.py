"""Finding an environment by name, entry point or dotted path, and building it from plain settings."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from pydantic import ValidationError

from environments.base import Environment, Labeller

GROUP = "envwright.environments"
BUILT_IN = {
    "jsonl": "environments.jsonl:JsonlEnvironment",
    "mapf_frozenlake": "environments.mapf_frozenlake:MapfFrozenLake",
}
_MEMBERS = ("name", "version", "Settings", "Knobs", "Outcome", "solved", "generate", "prompt", "answer", "score")


class UnknownEnvironment(ValueError):
    """No environment goes by this name."""


class BadEnvironment(ValueError):
    """Something was found under the name that isn't an environment, or it refuses its settings."""


def known_environments() -> dict[str, str]:
    """Name -> ``package.module:Class`` of everything that can be loaded by name; built-in names win."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN


def environment_class(name_or_path: str) -> type[Environment]:
    """The class behind a name or a ``package.module:Class`` path."""
    known = known_environments()
    path = known.get(name_or_path, name_or_path)
    module_name, colon, attribute = path.partition(":")
    if not colon:
        nearest = difflib.get_close_matches(name_or_path, known, n=1, cutoff=0.4)
        hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
        raise UnknownEnvironment(
            f"there is no environment `{name_or_path}`.{hint} Known: {', '.join(sorted(known))}. Your own is found by "
            f"an entry point in the group `{GROUP}` or as `package.module:Class`."
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UnknownEnvironment(
            f"environment `{name_or_path}`: cannot import `{module_name}` ({error}). Is its package installed on this "
            "machine and on every worker?"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        nearest = difflib.get_close_matches(attribute, classes, n=1)
        hint = f" Did you mean `{module_name}:{nearest[0]}`?" if nearest else ""
        raise UnknownEnvironment(f"environment `{name_or_path}`: `{module_name}` has no `{attribute}`.{hint}")
    missing = [member for member in _MEMBERS if not hasattr(found, member)]
    if not isinstance(found, type) or missing:
        raise BadEnvironment(
            f"`{path}` is not an environment class: it lacks {', '.join(missing) or 'a constructor'} "
            "(see environments/base.py)"
        )
    return cast("type[Environment]", found)


def load_environment(
    name_or_path: str, settings: Mapping[str, Any] | None = None, labeller: Labeller | None = None
) -> Environment:
    """Build an environment from plain settings. Raises UnknownEnvironment or BadEnvironment with what to change."""
    cls = environment_class(name_or_path)
    try:
        model = cls.Settings.model_validate(dict(settings or {}))
    except ValidationError as error:
        lines = []
        for detail in error.errors():
            key = ".".join(map(str, detail["loc"]))
            nearest = difflib.get_close_matches(key, cls.Settings.model_fields, n=1)
            hint = f" (did you mean `{nearest[0]}`?)" if detail["type"] == "extra_forbidden" and nearest else ""
            got = "" if detail["type"] == "missing" else f" (got {detail['input']!r})"
            lines.append(f"`{key}`: {detail['msg']}{got}{hint}")
        raise BadEnvironment(f"settings of environment `{name_or_path}`: {'; '.join(lines)}") from error
    return cls(model, labeller)
