"""A run's connection to Ray: the cluster it is told to use or runs inside, or a local one it starts and ends."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from cluster import machine
from cluster.config import ClusterConfig

log = logging.getLogger(__name__)

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# What actors on other nodes need from the driver's environment. No secrets: the dashboard shows a runtime_env. No
# RAY_AUTH_*: a worker takes those from its own node, and a mode that differs from its node's would lock it out.
FORWARDED = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "VLLM_LOGGING_LEVEL")
FIXED = {
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class SessionError(RuntimeError):
    """No Ray cluster could be reached or started."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `ray job stop` sends it: unwinds like Ctrl-C."""


class Session:
    """One connection. ``local``: the cluster was started here and ends with the session."""

    def __init__(self, run: str, address: str, local: bool, dashboard: str, logs: str, job: str | None) -> None:
        self.run = run
        self.address = address
        self.local = local
        self.dashboard = dashboard
        self.logs = logs
        self.job = job

    def __str__(self) -> str:
        kind = "local Ray cluster" if self.local else f"Ray cluster {self.address}"
        page = f", dashboard {self.dashboard}" if self.dashboard else ""
        return f"{kind}{page}, worker logs {self.logs}"


@contextmanager
def connect(config: ClusterConfig, run: str) -> Iterator[Session]:
    """Join a cluster for the length of a ``with`` block: ``config.address``, else ``RAY_ADDRESS`` (which Ray sets for
    submitted jobs), else a local cluster of this machine.

    ``run`` becomes the namespace. SIGTERM raises :class:`Terminated` in the main thread. On the way out the connection
    is closed, and of a local cluster no process is left.
    """
    address = cluster_address(config, os.environ)
    _refuse_client_address(address)
    with environment(_driver_environment(address is None, os.environ)), _sigterm_raises() as rearm:
        import ray

        reread_environment(ray)
        if ray.is_initialized():
            raise SessionError("this process already has a Ray connection: leave its session before starting another")
        before = machine.descendants(os.getpid())
        started: dict[int, str] | None = None
        try:
            session = _start(ray, config, address, run)
            started = _new_processes(before)
            rearm()
            yield session
        finally:
            with _deaf_to_signals():
                processes = _family(_new_processes(before) if started is None else started)
                ray.shutdown()
                if address is None:
                    _end_processes(processes)


def cluster_address(config: ClusterConfig, environ: Mapping[str, str]) -> str | None:
    """The cluster to join, or None for a local one. ``local`` in either place asks for a local one."""
    address = config.address or environ.get("RAY_ADDRESS") or None
    return None if address == "local" else address


def runtime_env(environ: Mapping[str, str], root: Path | None = None) -> dict[str, Any]:
    """The Ray ``runtime_env`` all actors of a run share.

    ``root`` is the folder the packages import from. An installed wheel needs no path; nor does a submitted job, where
    Ray puts the working directory on it, and keys the job set already must not be repeated (Ray refuses both).
    """
    root = root or Path(__file__).resolve().parent.parent
    variables = FIXED | {name: environ[name] for name in FORWARDED if name in environ}
    job = json.loads(environ.get(JOB_CONFIG) or "{}").get("runtime_env", {})
    if "working_dir" not in job and root.name not in {"site-packages", "dist-packages"}:
        paths = [str(root), *environ.get("PYTHONPATH", "").split(os.pathsep)]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in paths if path))
    taken = job.get("env_vars", {})
    return {"env_vars": {name: value for name, value in variables.items() if name not in taken}}


def auth_environment(local: bool, environ: Mapping[str, str], home: Path | None = None) -> dict[str, str]:
    """The authentication variables to add, so that the mode never depends on Ray's changing default.

    A local cluster uses tokens: it executes whatever reaches its ports, also from other users of the machine. Ray
    keeps the token in ``~/.ray/auth_token`` (`ray get-auth-token` shows it for the dashboard); where the home folder
    is read-only, the token lives in this session's memory alone. On an existing cluster a token is used if there is
    one (an open cluster ignores it), else none.
    """
    home = home or Path.home()
    stored = (home / ".ray" / "auth_token").is_file()
    given = any(name in environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    mode = environ.get("RAY_AUTH_MODE") or ("token" if local or given or stored else "disabled")
    added = {"RAY_AUTH_MODE": mode}
    if local and mode == "token" and not given and not stored and not os.access(home, os.W_OK):
        added["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return added


def _start(ray: Any, config: ClusterConfig, address: str | None, run: str) -> Session:
    shared = {"namespace": run, "log_to_driver": False, "configure_logging": False}
    try:
        if address is not None:
            context = ray.init(address=address, runtime_env=runtime_env(os.environ), **shared)
        else:
            # Without "local", Ray would join whatever cluster `ray start` last left running on this machine.
            context = ray.init(
                address="local",
                num_cpus=machine.cores(),
                include_dashboard=config.dashboard,
                dashboard_port=config.dashboard_port if config.dashboard else None,
                object_store_memory=config.object_store_mib * machine.MIB,
                **shared,
            )
    except Exception as error:  # Ray raises many kinds here, RuntimeError to its own AuthenticationError.
        where = f"the Ray cluster at {address}" if address else "a local Ray cluster"
        hint = "is it up, and do RAY_AUTH_MODE and its token match?" if address else "`envwright doctor` may say why"
        raise SessionError(f"could not {'join' if address else 'start'} {where}: {error} ({hint})") from error
    page = context.address_info.get("webui_url") or ""
    return Session(
        run=run,
        address=context.address_info["gcs_address"],
        local=address is None,
        dashboard=f"http://{page}" if page else "",
        logs=str(Path(context.address_info["session_dir"]) / "logs"),
        job=_job_id(os.environ),
    )


def _job_id(environ: Mapping[str, str]) -> str | None:
    found = json.loads(environ.get(JOB_CONFIG) or "{}").get("metadata", {}).get("job_submission_id")
    return str(found) if found else None


def _driver_environment(local: bool, environ: Mapping[str, str]) -> dict[str, str]:
    # A local cluster's workers inherit this. As a runtime_env the same would cost seconds for every actor.
    shared = runtime_env(environ)["env_vars"] if local else FIXED
    return {**shared, **auth_environment(local, environ)}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the length of a ``with`` block."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def reread_environment(ray: Any) -> None:
    """Make an already imported Ray see the authentication mode of now."""
    # Ray reads RAY_AUTH_MODE once, at import, which may lie before this session. Private, hence the guard.
    refresh = getattr(getattr(ray, "_raylet", None), "Config", None)
    if refresh is not None:
        refresh.initialize("")


def _refuse_client_address(address: str | None) -> None:
    scheme = (address or "").partition("://")
    if scheme[1] and scheme[0] in {"ray", "http", "https"}:
        raise SessionError(
            f"cluster address {address}: a run must be inside the cluster. Submit it there "
            "(`envwright submit RECIPE --address http://HEAD:8265`) or give HOST:6379 on one of its nodes"
        )


def _in_main_thread() -> bool:
    # Python lets the main thread alone set signal handlers.
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _sigterm_raises() -> Iterator[Callable[[], None]]:
    """Yields a function that puts the handler in place again: Ray sets its own while it starts."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise Terminated("SIGTERM")

    def arm() -> None:
        if _in_main_thread():
            signal.signal(signal.SIGTERM, end)

    previous = signal.getsignal(signal.SIGTERM)
    arm()
    try:
        yield arm
    finally:
        if _in_main_thread():
            signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)


@contextmanager
def _deaf_to_signals() -> Iterator[None]:
    # A second Ctrl-C must not interrupt the shutdown half-way: what it leaves would outlive the run.
    if not _in_main_thread():
        yield
        return
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _new_processes(before: Mapping[int, str]) -> dict[int, str]:
    return {pid: at for pid, at in machine.descendants(os.getpid()).items() if before.get(pid) != at}


def _family(roots: Mapping[int, str]) -> dict[int, str]:
    """Ray's processes and all below them, taken before the shutdown: an orphan cannot be told from a stranger."""
    family = {pid: at for pid, at in roots.items() if machine.is_running(pid, at)}
    for pid in list(family):
        family.update(machine.descendants(pid))
    return family


def _end_processes(processes: Mapping[int, str], patience_s: float = 5.0) -> None:
    """Wait for a local cluster's processes, then kill what is left of them."""
    deadline = time.monotonic() + patience_s
    while any(machine.is_running(pid, at) for pid, at in processes.items()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, at in processes.items():
        if machine.is_running(pid, at):
            log.warning("killing process %d, which outlived its Ray cluster", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
