"""Bad input: one clear error that names what is wrong and what to do, exit code 1, nothing half written."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments.base import Failure, FailureKind, Problem
from environments.mapf_frozenlake.labeller import LabelFailure
from environments.mapf_frozenlake.yields import InfeasibleKnobs
from environments.simple import NoTask
from orchestrator import train
from orchestrator.cli import main
from tests.run.conftest import RECIPE, SHORT, envwright

CASES = {
    "unknown key": (["learner.lerning_rate=1"], ["learner.lerning_rate"]),
    "near miss": (["rollout.worker=1"], ["unknown key rollout.worker", "did you mean workers?"]),
    "out of range": (["learner.lr=-1"], ["learner.lr", "greater than or equal to 0", "-1"]),
    "unknown environment": (["environment.name=mapf"], ["mapf", "mapf_frozenlake"]),
    "unknown outcome": (["algorithm.outcome_weights={holes: 2}"], ["outcome_weights", "holes", "vertex_conflict"]),
    "setting out of range": (["environment.settings.agents=9"], ["agents", "9"]),
    "missing model": (["model.path=/nowhere/model"], ["model.path", "/nowhere/model", "does not exist"]),
    "too few cores": (["rollout.workers=40", "rollout.cpus=8"], ["40 x 8.0", "cores", "rollout.workers"]),
    "not a pair": (["seed"], ["'seed'", "key.path=value"]),
    "uneven steps": (["curriculum.stages=[{instances: 33}]"], ["instances = 33", "prompts_per_step"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_setting_is_one_clear_error(case: str, cache: Path, tmp_path: Path) -> None:
    overrides, expected = CASES[case]
    done = envwright(cache, "train", str(RECIPE), f"output={tmp_path}", *SHORT, *overrides)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for word in expected:
        assert word in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_dashboard_port_in_use_is_named(cache: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = envwright(cache, "train", str(RECIPE), f"output={tmp_path}", f"cluster.dashboard_port={port}", *SHORT)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_recipe_names_its_neighbour(cache: Path, tmp_path: Path) -> None:
    done = envwright(cache, "train", str(RECIPE.with_name("laptopp.yaml")), f"output={tmp_path}")
    assert done.returncode == 1
    assert "laptop.yaml" in done.stderr


def test_resume_of_nothing_is_one_clear_error(cache: Path, tmp_path: Path) -> None:
    done = envwright(cache, "resume", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "holds no run" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "failure",
    [
        LabelFailure(Failure(FailureKind.TIMEOUT, "solver-0 had no labels")),
        InfeasibleKnobs([Problem("3x3", "hole_ratio", 50, "no board among 300000 candidates", 40)]),
        NoTask("no task of stratum easy"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_stream_of_tasks_that_breaks_off_ends_the_run_with_one_line(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def broken(*arguments: object) -> object:
        raise failure
        yield

    monkeypatch.setattr(train, "open_run", broken)
    monkeypatch.setattr(sys, "argv", ["envwright", "train", str(RECIPE), f"output={tmp_path}", *SHORT, "name=broken"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {failure}\n"
    status = json.loads((tmp_path / "broken" / "status.json").read_text())
    assert (status["state"], status["message"]) == ("failed", str(failure))
