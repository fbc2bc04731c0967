"""What docs/how-to/own-environment.md promises: its example is complete, short, conforms and can be trained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.store import RunStore
from tests.run.conftest import RECIPE, ROOT, SHORT, command, environment

PAGE = ROOT / "docs" / "how-to" / "own-environment.md"
NAME = "mine.digits:Digits"

FEW_STEPS = [
    *[override for override in SHORT if not override.startswith(("environment.", "curriculum.stages", "engineer."))],
    f"environment.name={NAME}",
    "environment.settings={}",
    "model.new.dialogues_per_step=0",
    "model.new.lr=1e-2",
    "rollout.max_new_tokens=16",
    "curriculum.stages=[{instances: 24}]",
    "engineer.kind=fixed",
    "engineer.replay_per_step=0",
    "evaluation.validation_per_stratum=4",
    "evaluation.held_out_per_stratum=4",
    "cluster.dashboard=false",
]


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def example() -> str:
    """The block that holds the class."""
    (found,) = [block for block in python_blocks() if "class Digits" in block]
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a package ``mine`` that holds the page's code, as a user would have it."""
    package = tmp_path / "project" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "digits.py").write_text(example())
    (rewards,) = [block for block in python_blocks() if "def correct" in block]
    (package / "rewards.py").write_text(rewards)
    return package.parent


def run(project: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(project), str(ROOT)])
    return subprocess.run(
        command(*arguments),
        cwd=project,
        env=environment(cache) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_the_example_fits_in_forty_lines_and_is_formatted(tmp_path: Path) -> None:
    assert len(example().splitlines()) <= 40
    (tmp_path / "digits.py").write_text(example())
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout


def test_the_check_command_passes_the_example_and_fails_a_broken_one(project: Path, cache: Path) -> None:
    done = run(project, cache, "env", "check", NAME)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 13 checks passed" in done.stdout and "fresh process: ok" in done.stdout
    source = project / "mine" / "digits.py"
    source.write_text(source.read_text().replace('" ".join(["ANSWER:"', '" ".join(["ANSWER"'))
    broken = run(project, cache, "env", "check", NAME)
    assert broken.returncode == 1
    assert "own answers: FAILED: its own answer" in broken.stdout and "checks failed" in broken.stdout


def test_the_check_command_passes_the_pages_rows_and_reward(project: Path, cache: Path) -> None:
    rows = [f'{{"prompt": "{i} + 1 =", "level": {1 + i % 2}, "answer": "{i + 1}"}}\n' for i in range(200)]
    (project / "sums.jsonl").write_text("".join(rows + rows[:7]))
    settings = ("path=sums.jsonl", "reward=mine.rewards:correct", "stratum_key=level", "answer_key=answer")
    pairs = [word for setting in settings for word in ("--settings", setting)]
    done = run(project, cache, "env", "check", "jsonl", *pairs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 duplicate rows left out; checksum" in done.stdout and "all 13 checks passed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.digits:Digit"], "`mine.digits` has no `Digit`. Did you mean `mine.digits:Digits`?"),
        (["no.such:Class"], "cannot import `no.such`"),
        (["jsonl"], "`path`: Field required"),
        (["jsonl", "--settings", "path"], "setting 'path' must look like key=value"),
        (["jsonl", "--settings", "path=x.jsonl", "--settings", "reward=mine.rewards:correct"], "cannot read x.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_check_command_names_what_is_wrong(project: Path, cache: Path, arguments: list[str], message: str) -> None:
    done = run(project, cache, "env", "check", *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert message in done.stderr


def test_a_class_in_a_users_package_is_trained_with_engines_that_load_it_by_name(project: Path, cache: Path) -> None:
    done = run(project, cache, "train", str(RECIPE), f"output={project}", "name=own", *FEW_STEPS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    store = RunStore.open(project / "own")
    rows = store.read_rollouts()
    assert len(rows) == 3 * 8 * 4
    assert {row["outcome"] for row in rows} <= {"no_answer", "wrong", "right"}
    assert not [row for row in rows if row["failure_kind"]]
    assert sum(row["reward"] for row in rows) > 0, "the warm start did not teach the form of an answer"
    assert {step["values"]["policy/weight_version"] for step in store.read_metrics(0)} == {1, 2, 3}


def test_rows_without_answers_cannot_warm_start_a_model_and_nothing_is_written(project: Path, cache: Path) -> None:
    rows = [f'{{"prompt": "{i} + 1 =", "answer": "{i + 1}"}}\n' for i in range(200)]
    (project / "sums.jsonl").write_text("".join(rows))
    settings = "environment.settings={path: sums.jsonl, reward: 'mine.rewards:correct'}"
    done = run(project, cache, "train", str(RECIPE), "output=runs", "environment.name=jsonl", settings)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "environment.settings.answer_key is not set" in done.stderr and "model.new.steps=0" in done.stderr
    assert not (project / "runs").exists()
