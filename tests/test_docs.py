"""The documentation names only what exists."""

import ast
import re
import typing
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from environments.registry import BUILT_IN, environment_class
from orchestrator.cli import app, plan_text
from orchestrator.config import RunConfig, load, validate
from orchestrator.metrics import EXPORTS
from orchestrator.reference import reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:envwright|.*-m orchestrator) ([a-z]\w*)(?: ([a-z]\w*))?", re.MULTILINE)
FILE_ENDINGS = ("json", "yaml", "yml", "py", "md", "html", "parquet")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """Fenced blocks in one of ``languages``; the empty one means commands."""
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def code(page: Path) -> list[str]:
    """Command blocks and inline code: where the text speaks of commands and settings."""
    return blocks(page, "") + re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))


def without_code(page: Path) -> str:
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_resolves(page):
    targets = re.findall(r"(?<=\]\()[^)\s]+(?=\))|(?<=src=\")[^\"]+", without_code(page))
    for target in (t for t in targets if "://" not in t):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and file.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(file), target


def commands() -> set[str]:
    names = {c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands}
    for group in app.registered_groups:
        names |= {f"{group.name} {c.name}" for c in group.typer_instance.registered_commands}
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_exists(page):
    known = commands()
    groups = {name.split()[0] for name in known if " " in name}
    for text in code(page):
        for first, second in COMMAND.findall(text):
            assert (f"{first} {second}" if first in groups else first) in known, text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_exists(page):
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in code(page):
        assert set(re.findall(r"^make ([a-z][a-z-]*)", text, re.MULTILINE)) <= known, text


def section(annotation: object) -> type[BaseModel] | None:
    """The model of a section, or of one that may be null."""
    parts = typing.get_args(annotation)
    kind = parts[0] if type(None) in parts else annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def is_setting(key: str) -> bool:
    """Whether a dotted key leads to a value or a section of the configuration."""
    model: type[BaseModel] | None = RunConfig
    for i, part in enumerate(parts := key.split(".")):
        if model is None or part not in model.model_fields:
            return False
        model = section(model.model_fields[part].annotation)
        if parts[: i + 1] == ["environment", "settings"]:
            known = {name for cls in map(environment_class, BUILT_IN) for name in cls.Settings.model_fields}
            return set(parts[i + 1 :]) <= known
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_exists(page):
    sections = "|".join(name for name, field in RunConfig.model_fields.items() if section(field.annotation))
    dotted = re.compile(rf"(?<![\w./])(?:{sections})(?:\.[a-z]\w*)+(?![\w(/-])")
    assigned = re.compile(r"(?<!\S)([a-z][\w.]*)=\S")
    for text in code(page):
        keys = [key for key in dotted.findall(text) if not key.endswith(FILE_ENDINGS)]
        if re.search(r"^(envwright|ray job)", text):
            keys += assigned.findall(re.sub(r"--settings \S+", "", text))  # those are of whatever environment
        assert not [key for key in keys if not is_setting(key)], text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_snippet_of_a_recipe_is_valid(page):
    for text in blocks(page, "yaml"):
        validate({"name": "snippet", **yaml.safe_load(text)}, name_of(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_override_of_an_example_is_accepted(page):
    for text in blocks(page, ""):
        for line in text.replace("\\\n", " ").splitlines():
            words = line.split()
            if recipe := next((w for w in words if re.fullmatch(r"recipes/.+\.yaml", w)), None):
                load(ROOT / recipe, [w for w in words if re.fullmatch(r"[a-z][\w.]*=\S+", w)])


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_every_recipe_resolves_to_a_placement_and_an_estimate(recipe):
    config = load(recipe)
    plan = plan_text(config)
    assert "# placement plan" in plan and f"learner-{config.learner.ranks - 1}" in plan
    assert "unknown" not in plan.partition("# memory estimate")[2]


def test_the_eight_gpu_recipe_places_eight_gpus():
    config = load(ROOT / "recipes" / "qwen3-4b-8gpu.yaml")
    assert config.rollout.workers * config.rollout.gpus + config.learner.ranks * config.learner.gpus == 8


def test_the_reference_is_current():
    assert (ROOT / "docs" / "reference.md").read_text() == reference(), (
        "run: python -m orchestrator.reference > docs/reference.md"
    )


def test_the_reference_names_every_setting():
    named = set(re.findall(r"^\| `([\w.]+)`", reference(), re.MULTILINE))
    assert set(leaves("", RunConfig)) <= named


def leaves(path: str, model: type[BaseModel]) -> typing.Iterator[str]:
    for name, field in model.model_fields.items():
        where = f"{path}.{name}".lstrip(".")
        inner = section(field.annotation)
        if inner:
            yield from leaves(where, inner)
        else:
            yield where


def test_the_readme_names_every_exported_metric():
    named = re.findall(r"^\| `(envwright_\w+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert named == [export.name for export in EXPORTS]


def spoken() -> str:
    """Every string of the code, with a null byte where a value goes."""
    out = []
    for package in ("actors", "cluster", "environments", "orchestrator"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    out.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    out.append(node.value)
    return "\n".join(out)


def test_every_message_of_the_troubleshooting_page_is_said_by_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"\*\*`([^`\n]+)`\*\*", page)
    known = spoken()
    assert len(messages) > 40
    # Capitals, numbers, quotes and dots stand for values; most other neighbouring words must be the code's own.
    value = re.compile(r"\b[A-Z]+\b|\d|'|\.\.\.")
    for message in messages:
        pairs = [f"{a} {b}" for a, b in pairwise(message.split()) if not value.search(f"{a} {b}")]
        assert pairs and sum(pair in known for pair in pairs) >= 0.5 * len(pairs), message
