"""Metrics reach TensorBoard, Weights & Biases and MLflow, and none of them can stop a run."""

from __future__ import annotations

import importlib.util
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.config import ConfigError, LoggingConfig, MlflowConfig, WandbConfig, load
from orchestrator.loggers import QUEUE, Background, Logger, check_loggers, flat, open_loggers
from orchestrator.store import RunStore

RECIPE = Path(__file__).parents[2] / "recipes" / "laptop.yaml"
WANDB = LoggingConfig(tensorboard=False, wandb=WandbConfig(mode="offline"))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty run directory."""
    return RunStore.create(tmp_path / "run", "name: run\n")


def test_tensorboard_is_what_a_run_logs_to_if_nothing_is_said(store: RunStore) -> None:
    session(open_loggers(LoggingConfig(), store, "run"), {0: {"reward/mean": 0.5}})
    (events,) = Path(store.path("events")).iterdir()
    assert b"reward/mean" in events.read_bytes() and struct.pack("<f", 0.5) in events.read_bytes()
    assert not open_loggers(LoggingConfig(tensorboard=False), store, "run")


def test_events_of_a_run_in_a_bucket_are_uploaded_whole() -> None:
    from pyarrow import fs

    store = RunStore.create("bucket/run", "name: run\n", fs._MockFileSystem())
    session(open_loggers(LoggingConfig(), store, "run"), {0: {"reward/mean": 0.5}})
    assert len(store._list("events")) == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_error_that_names_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"logging\.{name} is set .* pip install 'envwright\[{name}\]'"):
        check_loggers(LoggingConfig.model_validate({name: {}}))
    check_loggers(LoggingConfig())


def test_a_folder_of_the_same_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert importlib.util.find_spec("mlflow") is not None
    with pytest.raises(ConfigError, match="mlflow is not installed"):
        check_loggers(LoggingConfig(mlflow=MlflowConfig()))


def test_a_run_that_cannot_log_as_asked_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.train import start

    config = load(RECIPE, [f"output={tmp_path}", "logging.mlflow={}"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match="mlflow is not installed"):
        start(config, Console())
    assert not list(tmp_path.iterdir())


def test_a_service_that_a_recipe_switched_off_is_switched_on_by_one_key(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: run\nlogging: {wandb: null}\n")
    config = load(recipe, ["logging.wandb.mode=offline"])
    assert config.logging.wandb == WandbConfig(mode="offline")
    assert load(recipe).logging.wandb is None


def test_a_local_database_needs_more_than_the_client_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    client = types.SimpleNamespace(origin="mlflow/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: client if package == "mlflow" else None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    check_loggers(LoggingConfig(mlflow=MlflowConfig(tracking_uri="http://127.0.0.1:5000")))
    for uri in (None, "sqlite:///mlflow.db"):
        with pytest.raises(ConfigError, match="pip install mlflow"):
            check_loggers(LoggingConfig(mlflow=MlflowConfig(tracking_uri=uri)))


def test_a_service_gets_every_step_in_order_and_its_id_is_kept() -> None:
    service, kept, warned = FakeService(), list[str](), list[str]()
    session([Background("fake", lambda: service, kept.append, 5.0, warned.append)], {s: {"a": s} for s in range(50)})
    assert service.seen == [*((s, {"a": s}) for s in range(50)), "ended"]
    assert (kept, warned) == (["id-7"], [])


def test_values_are_those_of_the_call_whatever_becomes_of_the_mapping() -> None:
    opened = threading.Event()
    service = FakeService()
    logger = Background("fake", lambda: opened.wait(5) and service, lambda _: None, 5.0, lambda _: None)
    values = {"a": 1.0}
    logger.log(0, values)
    values["a"] = 2.0
    opened.set()
    logger.close(failed=True)
    assert service.seen == [(0, {"a": 1.0}), "failed"]


def test_a_failing_service_warns_once_and_the_others_steps_still_arrive() -> None:
    service, warned = FakeService(fails_at=(1, 3)), list[str]()
    session([Background("fake", lambda: service, lambda _: None, 5.0, warned.append)], {s: {"a": s} for s in range(5)})
    assert service.seen == [(0, {"a": 0}), (2, {"a": 2}), (4, {"a": 4}), "ended"]
    assert warned == [
        "fake misses metrics (ConnectionError: no route to host); training goes on",
        "fake did not get 2 entries; the run directory has them all",
    ]


def test_a_service_that_cannot_be_opened_costs_one_warning() -> None:
    def opener() -> FakeService:
        raise ConnectionError("no route to host")

    warned = list[str]()
    session([Background("fake", opener, lambda _: None, 5.0, warned.append)], {s: {"a": s} for s in range(3)})
    assert warned[0].startswith("fake misses metrics (it could not be opened: ConnectionError: no route to host)")
    assert warned[1:] == ["fake did not get 3 entries; the run directory has them all"]


def test_a_service_that_hangs_holds_up_neither_a_step_nor_the_end() -> None:
    released, warned = threading.Event(), list[str]()
    service = FakeService(before=lambda: released.wait(30))
    logger = Background("fake", lambda: service, lambda _: None, 0.2, warned.append)
    for step in range(QUEUE + 10):
        logger.log(step, {"a": 0.0})
    started = time.monotonic()
    logger.close(failed=False)
    assert time.monotonic() - started < 10  # deadline_s is 0.2; the service would hang for 30 s
    released.set()
    assert len(warned) == 2 and "fake misses metrics" in warned[0]


def test_settings_are_shown_as_dotted_keys() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": 1, "a.c": {}, "d": [1, 2]}


def test_wandb_offline_keeps_a_resumed_run_one_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    check_loggers(WANDB)
    warned = list[str]()
    for step in (0, 1):
        loggers = open_loggers(WANDB, store, "run", settings={"seed": 5}, warn=warned.append)
        session(loggers, {step: {"reward/mean": 0.5}})
    assert warned == []
    folders = sorted(Path(store.path("wandb")).glob("offline-run-*"))
    identifier = store.read_loggers()["wandb"]
    assert len(folders) == 2 and {folder.name.rpartition("-")[2] for folder in folders} == {identifier}
    records = [(folder / f"run-{identifier}.wandb").read_bytes() for folder in folders]
    assert all(b"reward/mean" in record for record in records)


def test_wandb_online_without_a_key_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="no API key"):
        check_loggers(LoggingConfig(wandb=WandbConfig()))


def test_mlflow_keeps_a_resumed_run_one_run(store: RunStore, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    config = LoggingConfig(tensorboard=False, mlflow=MlflowConfig(tracking_uri=uri, experiment="boards"), deadline_s=60)
    check_loggers(config)
    warned, client = list[str](), MlflowClient(tracking_uri=uri)
    settings = {"seed": 5, "rollout": {"workers": 2}}
    session(open_loggers(config, store, "run", settings=settings, warn=warned.append), {0: {"reward/mean": 0.5}})
    loggers = open_loggers(config, store, "run", settings=settings, warn=warned.append)
    session(loggers, {1: {"reward/mean": 0.75, "env/outcome/hole": 0.1}}, failed=True)
    assert warned == []
    run = client.get_run(store.read_loggers()["mlflow"])
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(m.step, m.value) for m in history] == [(0, 0.5), (1, 0.75)]
    assert run.data.params == {"seed": "5", "rollout.workers": "2"}
    assert (run.info.status, run.info.run_name) == ("FAILED", "run")
    assert len(client.search_runs([run.info.experiment_id])) == 1


def session(loggers: list[Logger], steps: Mapping[int, Mapping[str, float]], *, failed: bool = False) -> None:
    """Log all steps and close."""
    for step, values in steps.items():
        for logger in loggers:
            logger.log(step, values)
    for logger in loggers:
        logger.close(failed=failed)


class FakeService:
    """Keeps what it is told; steps in ``fails_at`` meet a lost network, ``before`` runs ahead of each."""

    id = "id-7"

    def __init__(self, fails_at: tuple[int, ...] = (), before: Callable[[], Any] = lambda: None) -> None:
        self.seen: list[Any] = []
        self._fails_at, self._before = fails_at, before

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._before()
        if step in self._fails_at:
            raise ConnectionError("no route to host")
        self.seen.append((step, dict(values)))

    def close(self, *, failed: bool) -> None:
        self.seen.append("failed" if failed else "ended")
