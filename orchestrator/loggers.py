"""Where metrics go besides the run's own records: TensorBoard files, Weights & Biases, MLflow.

Each is a :class:`Logger`. The two services are used from a thread of their own each: a lost network costs their curves
and one warning, never a step. What they call this run is kept in the run directory, so that a resumed run continues it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from orchestrator.config import ConfigError, LoggingConfig, MlflowConfig, WandbConfig
from orchestrator.store import RunStore

log = logging.getLogger(__name__)

QUEUE = 1000
"""Steps that may wait for a service; more are dropped, so that a run of weeks without network keeps its memory."""
BATCH = 1000
"""Metrics (and parameters: a tenth) that MLflow takes in one request."""


class Logger(Protocol):
    """Takes the metrics of a run. ``log`` may be called again for a step, with other names."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of one step, counted over the whole run."""

    def flush(self) -> None:
        """Make what was logged visible, as far as that needs no waiting."""

    def close(self, *, failed: bool) -> None:
        """No more will come; ``failed``: the run did not end well."""


class Service(Protocol):
    """What a service's client offers to the thread that uses it. ``id`` is the service's own name of the run."""

    id: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, *, failed: bool) -> None: ...


def check_loggers(config: LoggingConfig) -> None:
    """Raise :class:`ConfigError` if a service that is asked for cannot be used here; nothing is started."""
    for name, wanted in (("wandb", config.wandb), ("mlflow", config.mlflow)):
        if wanted is not None and not _installed(name):
            raise ConfigError(
                f"logging.{name} is set and the package {name} is not installed: "
                f"pip install 'envwright[{name}]', or switch it off with logging.{name}=null"
            )
    if config.mlflow is not None:
        uri = config.mlflow.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "a local database"
        if not uri.startswith(("http", "databricks")) and not _installed("sqlalchemy"):
            raise ConfigError(
                f"logging.mlflow.tracking_uri = {uri} is no server, and the client alone writes to servers only: "
                "pip install mlflow, or give the address of a tracking server"
            )
    if config.wandb is not None and config.wandb.mode == "online" and not _may_log_in():
        raise ConfigError(
            "logging.wandb.mode = online and there is no API key: run `wandb login`, set WANDB_API_KEY, "
            "or use logging.wandb.mode=offline"
        )


def _installed(package: str) -> bool:
    # A folder of that name, such as wandb makes where it runs, is found too, but has no file that it came from.
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _may_log_in() -> bool:
    import wandb

    try:
        return bool(wandb.login(prompt=False))
    except Exception:  # A key that cannot be verified now is the logger's to warn of.
        return True


def open_loggers(
    config: LoggingConfig,
    store: RunStore,
    run: str,
    *,
    first_step: int | None = None,
    settings: Mapping[str, Any] | None = None,
    warn: Callable[[str], None] = log.warning,
) -> list[Logger]:
    """The configured loggers of a run; ``settings`` is its configuration tree, shown beside its curves.

    ``first_step`` of a resumed run hides what an earlier session logged from there on, where the back-end can.
    """
    known = store.read_loggers()
    lock = threading.Lock()

    def remember(name: str, value: str) -> None:
        with lock:
            if known.get(name) != value:
                known[name] = value
                store.write_loggers(known)

    tree = dict(settings or {})
    loggers: list[Logger] = []
    if config.tensorboard:
        loggers.append(TensorBoard(store, first_step))
    services: dict[str, tuple[str, Callable[[], Service]]] = {}
    if config.wandb is not None:
        folder = store.path("").rstrip("/") if store.local else None
        opener = partial(WandbRun, config.wandb, run, known.get("wandb"), tree, folder, config.deadline_s)
        services["wandb"] = ("Weights & Biases", opener)
    if config.mlflow is not None:
        services["mlflow"] = ("MLflow", partial(MlflowRun, config.mlflow, run, known.get("mlflow"), tree))
    for key, (name, opened) in services.items():
        loggers.append(Background(name, opened, partial(remember, key), config.deadline_s, warn))
    return loggers


class TensorBoard:
    """Event files in the run directory."""

    def __init__(self, store: RunStore, first_step: int | None) -> None:
        from tensorboardX import SummaryWriter

        # Event files grow by appending, which buckets cannot: write them here and upload them whole on flush.
        self._store = store
        self._spool = None if store.local else tempfile.TemporaryDirectory(prefix="envwright-events-")
        self._folder = self._spool.name if self._spool else store.path("events")
        self._writer = SummaryWriter(self._folder, purge_step=first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar per name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write the files, to the bucket too."""
        self._writer.flush()
        if self._spool:
            self._store.upload(self._folder, "events")

    def close(self, *, failed: bool) -> None:
        """Write the files and stop."""
        self.flush()
        self._writer.close()
        if self._spool:
            self._spool.cleanup()


class Background:
    """A service behind a queue. One thread opens, uses and closes it; what goes wrong there is warned of once."""

    def __init__(
        self,
        name: str,
        opener: Callable[[], Service],
        remember: Callable[[str], None],
        deadline_s: float,
        warn: Callable[[str], None],
    ) -> None:
        self._name, self._deadline_s, self._warn = name, deadline_s, warn
        self._queue: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(QUEUE)
        self._failed = self._warned = False
        self._lost = 0
        self._thread = threading.Thread(target=self._work, args=(opener, remember), name=f"log to {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand the values over; never waits."""
        try:
            self._queue.put_nowait((step, dict(values)))
        except queue.Full:
            self._lost += 1
            self._complain(f"{QUEUE} of them wait for it")

    def flush(self) -> None:
        """Nothing to do: the thread sends as soon as it can."""

    def close(self, *, failed: bool) -> None:
        """Let the thread send what waits, for at most ``logging.deadline_s``, and say what was lost."""
        self._failed = failed
        ended = time.monotonic() + self._deadline_s
        with suppress(queue.Full):
            self._queue.put(None, timeout=self._deadline_s if self._thread.is_alive() else 0.001)
        self._thread.join(max(0.0, ended - time.monotonic()))
        if self._thread.is_alive():
            self._complain(f"they were not taken within logging.deadline_s = {self._deadline_s:g} s of the end")
        lost = self._lost + sum(item is not None for item in tuple(self._queue.queue))
        if lost:
            self._warn(f"{self._name} did not get {lost} entries; the run directory has them all")

    def _work(self, opener: Callable[[], Service], remember: Callable[[str], None]) -> None:
        try:
            service = opener()
            remember(service.id)
        except Exception as error:
            self._complain(f"it could not be opened: {type(error).__name__}: {error}")
            return
        while (item := self._queue.get()) is not None:
            try:
                service.log(*item)
            except Exception as error:
                self._lost += 1
                self._complain(f"{type(error).__name__}: {error}")
        try:
            service.close(failed=self._failed)
        except Exception as error:
            self._complain(f"it could not be closed: {type(error).__name__}: {error}")

    def _complain(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"{self._name} misses metrics ({why}); training goes on")


class WandbRun:
    """One run of Weights & Biases, new or continued under the id it had."""

    def __init__(
        self,
        config: WandbConfig,
        run: str,
        known: str | None,
        settings: Mapping[str, Any],
        folder: str | None,
        deadline_s: float,
    ) -> None:
        """``known`` is the id to continue; ``folder`` gets the package's own files."""
        import wandb

        # The package waits for its server in a hook at the interpreter's end too, so it must know the deadline.
        limits = {"init_timeout": deadline_s, "finish_timeout": deadline_s, "finish_timeout_raises": True}
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=run,
            id=known or secrets.token_hex(4),
            resume="allow",
            dir=folder,
            config=dict(settings),
            settings=wandb.Settings(mode=config.mode, silent=True, console="off", **limits),
        )
        self.id = str(self._run.id)
        self._next = int(self._run.step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Steps only grow there: one that an earlier session logged after its last checkpoint keeps what it has."""
        if step >= self._next:
            self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        """Upload what is left and mark the run as ended."""
        self._run.finish(exit_code=int(failed))


class MlflowRun:
    """One run of an MLflow experiment, new or continued under the id it had."""

    def __init__(self, config: MlflowConfig, run: str, known: str | None, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=config.tracking_uri)
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self.id = known
            return
        experiment = self._client.get_experiment_by_name(config.experiment)
        where = experiment.experiment_id if experiment else self._client.create_experiment(config.experiment)
        self.id = str(self._client.create_run(where, run_name=run).info.run_id)
        params = [Param(name, str(value)[:500]) for name, value in flat(settings).items()]
        for i in range(0, len(params), BATCH // 10):
            self._client.log_batch(self.id, params=params[i : i + BATCH // 10])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """All values of a step carry one time stamp (milliseconds)."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        for i in range(0, len(metrics), BATCH):
            self._client.log_batch(self.id, metrics=metrics[i : i + BATCH])

    def close(self, *, failed: bool) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration tree as dotted keys; lists stay values."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves
