"""As a cluster user: a head that is already there, `ray job submit`, and what the cluster shows of the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from solvers.compiling import cache_directory
from tests.run.conftest import ROOT, SHORT, environment, envwright

BIN = Path(sys.executable).parent
METRICS = (
    "ray_envwright_reward_mean",
    "ray_envwright_outcome_rate",
    "ray_envwright_rollout_tokens_per_second",
    "ray_envwright_learner_tokens_per_second",
    "ray_envwright_rollout_idle_ratio",
    "ray_envwright_learner_idle_ratio",
    "ray_envwright_queue_length",
    "ray_envwright_weight_version",
)


@dataclass(frozen=True)
class Head:
    """A running head node."""

    environment: dict[str, str]
    dashboard: str
    metrics: str

    def ray(self, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run Ray's own command line against this head."""
        return subprocess.run(
            [BIN / "ray", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for probe in sockets:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def head(cache: Path) -> Iterator[Head]:
    # All of them, so that another Ray node on this machine is in nobody's way.
    gcs, dashboard, metrics, agent, agent_grpc = free_ports(5)
    variables = {
        **environment(cache),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_metrics_report_interval_ms": "1000",
    }
    process = subprocess.Popen(
        [
            *(BIN / "ray", "start", "--head", "--block", "--num-cpus=2", "--include-dashboard=true"),
            *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--metrics-export-port={metrics}"),
            *(f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={agent_grpc}"),
            *("--object-store-memory=200000000", "--disable-usage-stats"),
        ],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{dashboard}"
        wait_for(lambda: fetch(f"{url}/api/version"), 120, "the dashboard of the head")
        yield Head({**variables, "RAY_ADDRESS": f"127.0.0.1:{gcs}"}, url, f"http://127.0.0.1:{metrics}/metrics")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_run_submitted_as_a_ray_job_is_seen_and_ends_well(head: Head, tmp_path: Path) -> None:
    compiled = sorted(cache_directory().glob("*"))
    job = "envwright-test"
    submitted = head.ray(
        *("job", "submit", f"--address={head.dashboard}", f"--submission-id={job}", "--no-wait", "--working-dir=."),
        *("--", "python", "-m", "orchestrator", "train", "recipes/laptop.yaml"),
        *(
            f"output={tmp_path}",
            "name=job",
            *SHORT,
            "curriculum.stages=[{instances: 640}, {instances: 640}]",
            "checkpoint.every_steps=100",
        ),
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr

    seen = ""

    def exported() -> bool:
        nonlocal seen
        assert '"FAILED"' not in fetch(f"{head.dashboard}/api/jobs/"), head.ray(
            "job", "logs", f"--address={head.dashboard}", job
        ).stdout[-3000:]
        seen = fetch(head.metrics)
        return all(name in seen for name in METRICS)

    wait_for(exported, 200, f"the run's metrics on the head ({METRICS})")
    names = {actor["name"] for actor in state(head, "actors") if actor["state"] == "ALIVE"}
    assert {"job/rollout-0", "job/learner-0", "job/solver-0"} <= names
    assert re.search(r'ray_envwright_outcome_rate\{[^}]*outcome="optimal"[^}]*run="job"', seen)

    log = head.ray("job", "logs", f"--address={head.dashboard}", "--follow", job)
    listed = head.ray("job", "list", f"--address={head.dashboard}")
    status = head.ray("job", "status", f"--address={head.dashboard}", job)
    assert "succeeded" in status.stdout + status.stderr, log.stdout[-3000:]
    assert job in listed.stdout + listed.stderr
    assert "Report:" in log.stdout
    assert json.loads((tmp_path / "job" / "status.json").read_text())["exit_code"] == 0
    assert sorted(cache_directory().glob("*")) == compiled, "the job compiled kernels again"


def test_a_failing_job_has_the_status_and_exit_code_of_a_failure(head: Head, tmp_path: Path) -> None:
    failed = head.ray(
        *("job", "submit", f"--address={head.dashboard}", "--working-dir=."),
        *("--", "python", "-m", "orchestrator", "train", "recipes/laptop.yaml"),
        *(f"output={tmp_path}", "learner.lr=-1"),
    )
    assert failed.returncode == 1
    assert "learner.lr" in failed.stdout + failed.stderr
    assert not list(tmp_path.iterdir())


def test_a_local_run_does_not_join_a_cluster_that_happens_to_run_here(head: Head, cache: Path, tmp_path: Path) -> None:
    done = envwright(
        cache,
        "train",
        "recipes/laptop.yaml",
        f"output={tmp_path}",
        "name=own",
        *SHORT,
        "curriculum.stages=[{instances: 8}]",
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.startswith("local Ray cluster") or "\nlocal Ray cluster" in done.stdout


def test_ray_address_is_honoured(head: Head, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "orchestrator", "train", "recipes/laptop.yaml", f"output={tmp_path}"),
            *("name=joined", *SHORT, "curriculum.stages=[{instances: 8}]"),
        ],
        cwd=ROOT,
        env=head.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    port = head.environment["RAY_ADDRESS"].rpartition(":")[2]
    assert re.search(rf"^Ray cluster \S+:{port},", done.stdout, re.MULTILINE)
    assert fetch(f"{head.dashboard}/api/version")


def state(head: Head, kind: str) -> list[dict[str, str]]:
    listed = head.ray("list", kind, f"--address={head.dashboard}", "--format=json", "--limit=1000")
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, str]] = json.loads(listed.stdout[listed.stdout.index("[") :])
    return found


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def wait_for(condition: object, seconds: float, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.3)
