"""``docs/reference.md`` from the configuration models: ``python -m orchestrator.reference > docs/reference.md``."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from environments.registry import BUILT_IN, environment_class
from orchestrator.config import RunConfig

HEAD = """\
# Reference: every setting

Generated from the configuration models by `python -m orchestrator.reference`; a test keeps it current. Set a value in
the recipe, or on the command line as `section.key=value`. `envwright train RECIPE --dry-run` prints all of them
resolved. Unknown keys are refused."""

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of", "min_length": "length ≥"}


def reference() -> str:
    """The whole page."""
    parts = [HEAD, *_section("", RunConfig, "Run")]
    for name in sorted(BUILT_IN):
        cls = environment_class(name)
        title = f"`environment.settings` of `{name}`"
        parts += _section("environment.settings", cls.Settings, title)
        row = typing.cast("type[BaseModel]", typing.get_args(cls.Knobs.model_fields["strata"].annotation)[1])
        title = f"Knobs of `{name}`, one row per stratum"
        parts += _section("", row, title, "What the engineer may turn; not set in a recipe.")
    return "\n\n".join(parts) + "\n"


def _section(path: str, model: type[BaseModel], title: str, note: str = "") -> Iterator[str]:
    """Heading, description and table of a model, then the sections inside it."""
    text = note or " ".join((model.__doc__ or "").split())
    inner = {name: info.annotation for name, info in model.model_fields.items() if _is_section(info.annotation)}
    listed = {name: typing.get_args(info.annotation)[:1] for name, info in model.model_fields.items()}
    rows = [_row(f"{path}.{name}".lstrip("."), info) for name, info in model.model_fields.items() if name not in inner]
    table = "\n".join(["| setting | type | default | allowed | meaning |", "|---|---|---|---|---|", *rows])
    yield f"## {title}\n\n{text}" + (f"\n\n{table}" if rows else "")
    for name, section in inner.items():
        where = f"{path}.{name}".lstrip(".")
        yield from _section(where, section, f"`{where}`")
    for name, element in listed.items():
        if element and _is_section(element[0]):
            optional = _is_optional(model.model_fields[name].annotation)
            where = f"{path}.{name}" if optional else f"{path}.{name}[]"
            yield from _section(where, element[0], f"`{where}`")


def _is_section(annotation: Any) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_optional(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _row(name: str, info: FieldInfo) -> str:
    default = "required" if info.is_required() else f"`{_plain(info.get_default(call_default_factory=True))}`"
    cells = (f"`{name}`", _type(info.annotation), default, _allowed(info), info.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(annotation))
    if element := [part for part in typing.get_args(annotation) if _is_section(part)]:
        return "section or null" if _is_optional(annotation) else f"list of {element[0].__name__}"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=lambda section: section.model_dump())


def _allowed(info: FieldInfo) -> str:
    limits = [(key, getattr(m, key, None)) for m in info.metadata for key in (*SIGNS, "pattern")]
    return ", ".join(f"`{v}`" if k == "pattern" else f"{SIGNS[k]} {v:g}" for k, v in limits if v is not None)


if __name__ == "__main__":
    print(reference(), end="")
