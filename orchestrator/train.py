"""Train or resume as a command does: one clear error, an honest status, the right exit code."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from actors.waiting import ActorFailure
from actors.weight_sync import SyncError
from cluster.placement import PlacementError
from cluster.preflight import PreflightError
from cluster.session import SessionError
from environments.mapf_frozenlake.frozen import FrozenSetCorrupt
from environments.mapf_frozenlake.labeller import LabelFailure
from environments.mapf_frozenlake.yields import InfeasibleKnobs
from environments.simple import NoTask
from orchestrator.config import ConfigError, RunConfig, dump, validate
from orchestrator.driver import drive
from orchestrator.evaluation import EvaluationFailed
from orchestrator.evidence import describe
from orchestrator.loggers import check_loggers
from orchestrator.progress import TrainProgress, closing
from orchestrator.report import write_report
from orchestrator.run import (
    check_model_path,
    check_outcomes,
    check_warm_start,
    make_environment,
    open_run,
    placement,
)
from orchestrator.stage import TrainingFailed
from orchestrator.store import RunStore, State, StoreError

EXPECTED = (
    ActorFailure,
    ConfigError,
    EvaluationFailed,
    FrozenSetCorrupt,
    InfeasibleKnobs,
    LabelFailure,
    NoTask,
    PlacementError,
    PreflightError,
    SessionError,
    StoreError,
    SyncError,
    TrainingFailed,
)
"""Errors whose message is all a user needs; anything else is a bug and keeps its traceback."""

INTERRUPTED = 130


def start(config: RunConfig, console: Console) -> int:
    """A new run. Nothing is written if the configuration cannot work here."""
    from cluster.preflight import preflight

    environment = make_environment(config)
    check_warm_start(config, environment)
    check_outcomes(config, environment)
    if config.model.path:
        check_model_path(config.model.path)
    if len(config.curriculum.stages) > 1:
        describe(environment)
    check_loggers(config.logging)
    preflight(placement(config), config.cluster)
    store = RunStore.create(config.directory, dump(config))
    return _supervise(config, store, console)


def resume(directory: str | Path, console: Console) -> int:
    """Continue a stopped run from its latest checkpoint, or from the beginning if it stopped before the first."""
    store = RunStore.open(directory)
    status = store.read_status() or {}
    if status.get("state") == "finished":
        raise StoreError(f"{directory} is finished; its report is {store.path('report.html')}")
    config = validate(store.read_config(), f"{directory}/run.yaml")
    check_loggers(config.logging)
    return _supervise(config, store, console)


def _supervise(config: RunConfig, store: RunStore, console: Console) -> int:
    """Run with a status file that always tells the truth, and a report of however far it got."""
    info = describe(make_environment(config))
    progress = TrainProgress(solved=info.solved, best=info.words[0], console=console)
    store.write_status("running", time.time())
    try:
        with progress, open_run(config, store, progress) as run:
            drive(run)
    except KeyboardInterrupt:
        hint = f"continue with: envwright resume {store.directory}"
        _end(store, "interrupted", INTERRUPTED, hint)
        console.print(f"Interrupted; {hint}", soft_wrap=True)
        return INTERRUPTED
    except EXPECTED as error:
        _end(store, "failed", 1, str(error))
        raise
    except BaseException as error:
        _end(store, "failed", 1, f"{type(error).__name__}: {error}")
        raise
    _end(store, "finished", 0, "")
    summary = store.read_summary() or {}
    console.print(closing(summary["before_after"], summary["redesigns"], store.path("report.html")))
    return 0


def _end(store: RunStore, state: State, code: int, message: str) -> None:
    """Report of what there is (it shows how the run ended), then the status, which is written last."""
    try:
        store.write_status(state, time.time(), exit_code=code, message=message)
        write_report(store.directory)
    finally:
        store.write_status(state, time.time(), exit_code=code, message=message)
