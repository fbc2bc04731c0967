"""One short run with every real part, then the same run killed half-way and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cluster.machine import descendants
from orchestrator.store import RunStore
from tests.run.conftest import RECIPE, ROOT, SHORT, command, environment, envwright

AHEAD = [*SHORT, "curriculum.max_lag=1"]
"""Rollouts run one update ahead: what is harder to repeat and to resume exactly than sampling and training in turn."""


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run's directory and what it printed."""
    output = tmp_path_factory.mktemp("runs")
    done = envwright(cache, "train", str(RECIPE), f"output={output}", "name=whole", *AHEAD)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return output / "whole", done.stdout


def test_a_run_ends_with_its_table_its_redesigns_and_its_report(finished: tuple[Path, str]) -> None:
    directory, printed = finished
    last = printed[printed.index("Held-out tasks, before → after training") :]
    assert "3x3" in last
    assert "Redesigns" in last
    assert "proposal of policy" in last
    assert "neither waits at" in printed
    assert f"Report: {directory / 'report.html'}" in last.replace("\n", "")


def test_a_run_directory_tells_the_whole_story_without_ray(finished: tuple[Path, str]) -> None:
    store = RunStore.open(finished[0])
    status = store.read_status()
    assert status is not None
    assert (status["state"], status["exit_code"]) == ("finished", 0)
    assert store.stages() == [0, 1]
    assert [len(store.read_metrics(k)) for k in (0, 1)] == [4, 4]
    for kind in ("environment", "evidence", "engineer", "decision", "validation"):
        assert store.read_stage(0, kind), kind  # type: ignore[arg-type]
    engineer = store.read_stage(0, "engineer")
    assert engineer is not None
    assert engineer["prompt"][0]["content"].startswith("engineer")
    assert store.read_evaluation("before") and store.read_evaluation("after")
    assert "<svg" in (finished[0] / "report.html").read_text()
    assert list((finished[0] / "events").iterdir())
    assert (finished[0] / "model" / "config.json").exists()


def test_every_sample_is_stored_with_the_weight_version_that_its_lag_allows(finished: tuple[Path, str]) -> None:
    """Two stages of four steps: the first two of each share their weights, the others are one update behind."""
    store = RunStore.open(finished[0])
    rows = store.read_rollouts()
    assert len(rows) == 2 * 4 * 8 * 4
    found = sorted({(row["step"], version) for row in rows for version in row["versions"]})
    assert found == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (5, 4), (6, 5), (7, 6)]
    behind = [step["values"]["staleness/max"] for k in (0, 1) for step in store.read_metrics(k)]
    assert behind == [0.0, 1.0, 1.0, 1.0] * 2
    assert all((row["reward"] is None) == (row["failure_kind"] is not None) for row in rows)


def test_every_sync_was_checked_on_sampled_tokens(finished: tuple[Path, str]) -> None:
    """With a lag of one, the second step of a stage is sampled before there are weights to check."""
    store = RunStore.open(finished[0])
    values = [step["values"] for k in (0, 1) for step in store.read_metrics(k)]
    gaps = {i: v["sync/logprob_gap_max"] for i, v in enumerate(values) if "sync/logprob_gap_max" in v}
    assert list(gaps) == [0, 2, 3, 4, 6, 7]
    assert max(gaps.values()) < 1e-3


@pytest.mark.timeout(900)
def test_an_interrupted_run_resumes_to_the_same_weights_bit_for_bit(
    finished: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "whole"
    arguments = ("train", str(RECIPE), f"output={tmp_path}", "name=whole", *AHEAD)
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 240
    while (RunStore(directory).latest_checkpoint() or 0) < 2:
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline, "no checkpoint of step 2"
        time.sleep(0.1)
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    time.sleep(1)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)]
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("interrupted", 130)

    refused = envwright(cache, *arguments)
    assert refused.returncode == 1
    assert f"envwright resume {directory}" in refused.stderr

    resumed = envwright(cache, "resume", str(directory))
    assert resumed.returncode == 0, resumed.stdout[-3000:] + resumed.stderr[-3000:]
    assert "resumed after step" in resumed.stdout
    whole = finished[0]
    assert (directory / "model" / "model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
    for name in ("stages/0/evidence.json", "stages/0/engineer.json", "stages/1/environment.json", "summary.json"):
        assert (directory / name).read_text() == (whole / name).read_text(), name
    streams = [
        [row["task_id"] for row in RunStore.open(d).read_rollouts(columns=["task_id"])] for d in (directory, whole)
    ]
    assert streams[0] == streams[1]


def test_a_finished_run_is_neither_resumed_nor_overwritten(finished: tuple[Path, str], cache: Path) -> None:
    directory = finished[0]
    again = envwright(cache, "resume", str(directory))
    assert (again.returncode, "is finished" in again.stderr) == (1, True)
    over = envwright(cache, "train", str(RECIPE), f"output={directory.parent}", "name=whole", *SHORT)
    assert (over.returncode, "already holds a finished run" in over.stderr) == (1, True)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", ["base", pytest.param("controller", marks=pytest.mark.slow)])
def test_other_engineers_carry_a_run_to_its_end(kind: str, cache: Path, tmp_path: Path) -> None:
    """The frozen base answers with version 0 for one reply, then the engines are synchronised back and checked."""
    overrides = [*SHORT, "curriculum.max_lag=0", f"engineer.kind={kind}"]
    done = envwright(cache, "train", str(RECIPE), f"output={tmp_path}", "name=x", *overrides)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    store = RunStore.open(tmp_path / "x")
    decision = store.read_stage(0, "decision")
    assert decision is not None
    assert decision["proposal"]["source"] == kind
    assert {v for row in store.read_rollouts(stage=1, columns=["versions"]) for v in row["versions"]} == {4, 5, 6, 7}
