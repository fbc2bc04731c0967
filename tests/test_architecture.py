"""The rules of docs/design.md that a machine can check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("solvers", "environments", "actors", "orchestrator", "cluster")
MAY_IMPORT = {
    "solvers": set(),
    "environments": {"solvers"},
    "actors": {"solvers", "environments"},
    "orchestrator": {"solvers", "environments", "actors", "cluster"},
    "cluster": set(),
}
HEAVY = ("torch", "vllm", "deepspeed", "ray")
ENTRIES = {"base", "config", "records", "driver", "cli", "placement", "session", "preflight", "jobs", "machine"}
FILE_LINES, FUNCTION_LINES, DRIVER_LINES = 400, 60, 150
BANNED_NAMES = {"utils", "util", "helpers", "helper", "misc", "manager"}
# numba inlines and optimises per function: a search loop cut into pieces passes its state through memory instead.
LONG_FUNCTIONS_ALLOWED_IN = ROOT / "solvers" / "kernels"


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


ALL_SOURCES = [path for package in PACKAGES for path in sources(package)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_packages(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    wrong = {
        name_of(path): found
        for path in sources(package)
        if (found := imported_packages(ast.parse(path.read_text())) & set(PACKAGES) - {package} - MAY_IMPORT[package])
    }
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_heavy_one(package):
    # Modules that are nothing but torch code may import it; these are what a command imports before it knows its work.
    modules = [package] + [
        f"{package}.{path.stem}" for path in sources(package) if path.stem in ENTRIES and path.parent == ROOT / package
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "    assert not loaded, f'importing {name} loads {loaded}'\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr.splitlines()[-1]


def test_files_are_short():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in ALL_SOURCES}
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES}


def test_functions_are_short():
    long = {}
    for path in ALL_SOURCES:
        if path.is_relative_to(LONG_FUNCTIONS_ALLOWED_IN):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{name_of(path)}:{node.name}"] = lines
    assert not long


def test_the_driver_reads_in_one_sitting():
    assert len((ROOT / "orchestrator" / "driver.py").read_text().splitlines()) <= DRIVER_LINES


def test_modules_are_named_after_what_they_hold():
    parts = {part.removesuffix(".py") for path in ALL_SOURCES for part in path.relative_to(ROOT).parts}
    assert not parts & BANNED_NAMES


def test_no_file_names_a_package_registry_or_a_path_of_one_machine():
    # Written in pieces, so that this file does not match itself. PyTorch's own CPU index is the one address allowed.
    patterns = (
        r"https?://[^\s'\"]*/simple\b",
        r"(?:pypi|pythonhosted)\." + "org",
        r"(?:--(?:extra-)?index-url|--find-links)[ =]\S*(?:file:|/opt/)",
        "/(?:home|Users)" + r"/\w+/",
        "/root" + "/",
    )
    foreign = re.compile("|".join(patterns))
    found = {}
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if match := foreign.search(text):
            found[name_of(path)] = match.group()
    assert not found


def tracked_files() -> list[Path]:
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for line in listing.splitlines() if (path := ROOT / line).is_file()]
