"""The smallest run that has every real part: two stages of four steps on 3x3 boards with a model of 30 000 weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "laptop.yaml"

SHORT = [
    "environment.settings.sizes=[3]",
    "model.new.hidden=32",
    "model.new.layers=2",
    "model.new.heads=1",
    "model.new.steps=40",
    "model.new.tasks_per_step=16",
    "model.new.dialogues_per_step=8",
    "rollout.workers=1",
    "rollout.max_prompt_tokens=96",
    "learner.threads=1",
    "ground_truth.workers=1",
    "curriculum.stages=[{instances: 32}, {instances: 32}]",
    "curriculum.prompts_per_step=8",
    "curriculum.group_size=4",
    "engineer.replay_per_step=2",
    "evaluation.validation_per_stratum=16",
    "evaluation.held_out_per_stratum=16",
    "checkpoint.every_steps=1",
]
"""Overrides of the laptop recipe."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for models that all runs of the session share (``ENVWRIGHT_MODELS``, else a new one); the compiled
    solver stays where it is."""
    given = os.environ.get("ENVWRIGHT_MODELS")
    return Path(given) if given else tmp_path_factory.mktemp("cache")


def command(*arguments: str) -> list[str]:
    """The ``envwright`` command line."""
    return [sys.executable, "-m", "orchestrator", *arguments]


def environment(cache: Path) -> dict[str, str]:
    """Environment variables of a run."""
    return {**os.environ, "ENVWRIGHT_MODELS": str(cache), "PYTHONUNBUFFERED": "1"}


def envwright(cache: Path, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(cache), capture_output=True, text=True, timeout=timeout
    )
