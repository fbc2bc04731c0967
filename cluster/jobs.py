"""Runs as Ray jobs: submit, follow, stop and list them through the cluster's dashboard address."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.session import auth_environment, environment, reread_environment, runtime_env

# What a job does not need. Patterns are those of a .gitignore, relative to the working directory.
EXCLUDES = (
    *(".venv/", "venv/", ".git/", "runs/", "models/", "build/", "dist/", "*.egg-info/", "__pycache__/"),
    *(
        ".mypy_cache/",
        ".ruff_cache/",
        ".pytest_cache/",
        ".hypothesis/",
    ),
)
# Ray's 3 s between SIGTERM and SIGKILL are too few to write a checkpoint.
STOP_WAIT_S = 60
EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}


class JobError(RuntimeError):
    """A job could not be submitted, found or stopped."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One submitted run. ``started`` in seconds since the epoch, or None while it waits."""

    id: str
    status: str
    entrypoint: str
    started: float | None


def entrypoint(recipe: str, overrides: Sequence[str], working_dir: Path) -> str:
    """The shell command of a job. The recipe must lie inside ``working_dir``, which is all the cluster gets to see; the
    run's ``output`` must not."""
    path = (working_dir / recipe).resolve()
    root = working_dir.resolve()
    if not path.is_file():
        raise JobError(f"recipe {path} does not exist: give its path relative to {root}")
    if not path.is_relative_to(root):
        raise JobError(f"recipe {path} lies outside {root}, the folder that is uploaded: copy it there")
    if not _outlives_job(output := _output(path, overrides)):
        raise JobError(
            f"output = {output!r} is relative, and a job's folder is deleted after it: pass output=/A/SHARED/FOLDER "
            "that every node sees"
        )
    command = ["python", "-m", "orchestrator", "train", path.relative_to(root).as_posix(), *overrides]
    return shlex.join(command)


def _output(recipe: Path, overrides: Sequence[str]) -> str:
    for override in reversed(overrides):
        if override.startswith("output="):
            return override.removeprefix("output=")
    try:
        tree = yaml.safe_load(recipe.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError(f"recipe {recipe} is not readable YAML: {error}") from None
    return str(tree.get("output", "runs")) if isinstance(tree, dict) else "runs"


def _outlives_job(output: str) -> bool:
    return output.startswith("/") or "://" in output


def submit(recipe: str, overrides: Sequence[str], address: str | None = None, working_dir: str | Path = ".") -> str:
    """Upload ``working_dir`` and start a training run on the cluster; its job id."""
    folder = Path(working_dir)
    command = entrypoint(recipe, overrides, folder)
    shared = runtime_env(os.environ)
    # Where the driver runs here is no path of the cluster's nodes: the uploaded folder is importable instead.
    shared["env_vars"].pop("PYTHONPATH", None)
    shared["env_vars"].pop("XDG_CACHE_HOME", None)
    shared["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] = str(STOP_WAIT_S)
    shared |= {"working_dir": str(folder.resolve()), "excludes": list(EXCLUDES)}
    return str(_ask(address, lambda client: client.submit_job(entrypoint=command, runtime_env=shared)))


def status(job: str, address: str | None = None) -> str:
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    return str(_ask(address, lambda client: client.get_job_status(job)).value)


def logs(job: str, address: str | None = None) -> str:
    """All the job has printed so far."""
    return str(_ask(address, lambda client: client.get_job_logs(job)))


def follow(job: str, address: str | None = None, write: Callable[[str], object] = print) -> int:
    """Pass on what the job prints until it ends; its exit code (0 succeeded, 1 failed, 130 stopped)."""

    async def tail(client: Any) -> None:
        async for lines in client.tail_job_logs(job):
            write(str(lines).rstrip("\n"))

    _ask(address, lambda client: asyncio.run(tail(client)))
    # The log closes a moment before the status is final.
    deadline = time.monotonic() + 30.0
    while (final := status(job, address)) not in EXIT_CODES:
        if time.monotonic() > deadline:
            raise JobError(f"the log of job {job} ended, its status is still {final} after 30 s: ask again with status")
        time.sleep(0.5)
    return EXIT_CODES[final]


def stop(job: str, address: str | None = None) -> bool:
    """Ask the job to end (SIGTERM, then SIGKILL after ``STOP_WAIT_S``); whether it was running."""
    return bool(_ask(address, lambda client: client.stop_job(job)))


def list_jobs(address: str | None = None) -> list[JobRow]:
    """Submitted jobs, newest first."""
    details = [d for d in _ask(address, lambda client: client.list_jobs()) if d.submission_id]
    rows = [
        JobRow(d.submission_id, d.status.value, d.entrypoint, d.start_time / 1000 if d.start_time else None)
        for d in details
    ]
    return sorted(rows, key=lambda row: row.started or float("inf"), reverse=True)


def _ask(address: str | None, question: Callable[[Any], Any]) -> Any:
    where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    if not where:
        raise JobError("no cluster named: pass --address http://HEAD:8265 or set RAY_API_SERVER_ADDRESS")
    # Ray's clients read the authentication mode once and do not guess it.
    with environment(auth_environment(local=False, environ=os.environ)):
        import ray
        from ray.job_submission import JobSubmissionClient

        reread_environment(ray)
        try:
            return question(JobSubmissionClient(where))
        except Exception as error:  # ConnectionError, RuntimeError with the HTTP body, AuthenticationError
            raise JobError(
                f"the cluster at {where} refused or did not answer: {error} (is it the dashboard's address, and do "
                "RAY_AUTH_MODE and the token match the cluster's?)"
            ) from error
