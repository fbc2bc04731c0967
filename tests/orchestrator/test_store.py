"""The run directory is the single source of truth: whole files, clear errors, on a disk and in a bucket."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from actors.records import Group, Sample, Scored
from environments.base import Failure, FailureKind, Task, Verdict
from orchestrator.store import STAGE_RECORDS, RunExists, RunStore, StoreError

CONFIG = "name: run\nseed: 3\n"


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    if request.param == "disk":
        return RunStore.create(tmp_path / "runs" / "run", CONFIG)
    return RunStore.create("bucket/runs/run", CONFIG, fs._MockFileSystem())


def test_configuration_is_stored_as_it_was_given(store: RunStore) -> None:
    assert store.read_config() == {"name": "run", "seed": 3}


def test_records_come_back_with_their_schema_version(store: RunStore) -> None:
    for kind in STAGE_RECORDS:
        store.write_stage(1, kind, {"kind": kind})
        assert store.read_stage(1, kind) == {"schema_version": 1, "kind": kind}
    assert store.stages() == [1]
    store.write_evaluation("before", {"tasks": []})
    store.write_summary({"redesigns": []})
    store.write_showcase({"before": "S"})
    store.write_environment({"name": "fake"})
    records = store.read_evaluation("before"), store.read_summary(), store.read_showcase(), store.read_environment()
    assert all(record is not None and record["schema_version"] == 1 for record in records)
    assert store.read_stage(2, "evidence") is None and store.read_evaluation("after") is None


def test_lineage_is_one_file_per_record_in_order(store: RunStore) -> None:
    for k in (0, 10, 9):
        store.write_lineage({"id": f"stage-{k}", "parent": None, "kind": "stage"})
    assert [r["id"] for r in store.read_lineage()] == ["stage-0", "stage-9", "stage-10"]
    with pytest.raises(StoreError, match="cannot name a file"):
        store.write_lineage({"id": "../../etc/passwd"})


def test_numbers_that_json_cannot_hold_become_null(store: RunStore) -> None:
    store.write_metrics(0, [{"step": 0, "values": {"a": math.nan, "b": 1.5}}])
    assert store.read_metrics(0) == [{"step": 0, "values": {"a": None, "b": 1.5}}]
    assert store.read_metrics(7) == []


def test_rollouts_keep_every_sample_and_failures_have_no_reward(store: RunStore) -> None:
    task = Task("fake", '{"x":1}', "3x3", "train", 4, stage=1, knobs_digest="d")
    sample = Sample(task.id, (1, 2), (3, 4), (-0.5, -0.25), (6, 7), "UP", "stop", 0, 2**62, "rollout-0")
    late = Failure(FailureKind.TIMEOUT, "no answer in 60 s")
    group = Group(task, (Scored(sample, Verdict(0.8, "valid", {"steps": 5})), Scored(sample, late), Scored(None, late)))
    name = store.write_rollouts(1, 30, [group])
    assert name == "rollouts/stage-1-step-30.parquet"
    first, second, third = store.read_rollouts(step=30)
    assert (first["reward"], first["outcome"], first["failure_kind"]) == (0.8, "valid", None)
    assert first["token_ids"] == [3, 4] and first["logprobs"] == [-0.5, -0.25] and first["versions"] == [6, 7]
    assert first["seed"] == 2**62 and json.loads(first["facts"]) == {"steps": 5} and first["task_id"] == task.id
    assert (second["reward"], second["outcome"], second["failure_kind"]) == (None, None, "timeout")
    assert second["completion"] == "UP"
    assert (third["completion"], third["index"], third["failure_message"]) == (None, 2, "no answer in 60 s")


def test_rollouts_are_listed_in_order_and_read_by_column(store: RunStore) -> None:
    for stage, step in ((0, 10), (0, 9), (1, 11)):
        store.write_rollouts(stage, step, [_failed_group()])
    assert store.rollouts() == [(0, 9), (0, 10), (1, 11)]
    assert store.read_rollouts(stage=0, columns=["step"]) == [{"step": 9}, {"step": 10}]
    assert len(store.read_rollouts()) == 3


def test_step_written_again_after_a_resume_replaces_the_first_attempt(store: RunStore) -> None:
    for _ in range(2):
        store.write_rollouts(0, 3, [_failed_group()])
    assert len(store.read_rollouts()) == 1


def test_checkpoint_counts_only_once_its_manifest_is_there(store: RunStore) -> None:
    store.checkpoint_path(25)
    assert store.complete_checkpoints() == [] and store.latest_checkpoint() is None
    store.finish_checkpoint(25, {"stage": 0}, border=False, keep=2)
    store.checkpoint_path(50)
    assert store.complete_checkpoints() == [25] and store.latest_checkpoint() == 25
    assert (store.read_manifest(25) or {})["stage"] == 0


def test_checkpoint_path_means_the_same_in_an_actor_that_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunStore.create("runs/run", CONFIG).checkpoint_path(3) == str(tmp_path / "runs/run/checkpoints/3")


def test_pruning_keeps_the_newest_and_the_stage_borders(store: RunStore) -> None:
    store.checkpoint_path(5)  # a checkpoint that was cut short
    for step in (10, 20, 30, 40, 50):
        store.checkpoint_path(step)
        store.finish_checkpoint(step, {}, border=step == 20, keep=2)
    assert store.complete_checkpoints() == [20, 40, 50]
    assert "5" not in store._list("checkpoints")


def test_latest_follows_a_rollback_and_survives_its_own_loss(store: RunStore) -> None:
    for step in (10, 20):
        store.checkpoint_path(step)
        store.finish_checkpoint(step, {}, border=True, keep=1)
    store.set_latest(10)
    assert store.latest_checkpoint() == 10
    store._put("checkpoints/latest", b"")
    assert store.latest_checkpoint() == 20
    with pytest.raises(StoreError, match=r"not complete; these are: \[10, 20\]"):
        store.set_latest(15)


def test_new_run_never_writes_into_an_old_one(store: RunStore) -> None:
    with pytest.raises(RunExists, match=r"before its first checkpoint; .*envwright resume .* name=run-2"):
        _again(store)
    store.checkpoint_path(25)
    store.finish_checkpoint(25, {}, border=False, keep=2)
    with pytest.raises(
        RunExists, match=r"stopped after step 25; continue it with `envwright resume .*run`.*name=run-2"
    ):
        _again(store)
    store.write_status("finished", 10.0, exit_code=0)
    with pytest.raises(RunExists, match=r"already holds a finished run; start a new one beside it with name=run-2"):
        _again(store)


def test_folder_of_something_else_is_refused_and_the_next_free_name_is_offered(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").touch()
    (tmp_path / "mine-2").mkdir()
    with pytest.raises(RunExists, match="holds no run; choose another name, for example name=mine-3"):
        RunStore.create(tmp_path / "mine", CONFIG)


def test_opening_what_is_not_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run \(no run.yaml in it\)"):
        RunStore.open(tmp_path)


@pytest.mark.parametrize("where", ["record", "config", "rollouts"])
def test_newer_schema_is_refused_with_one_clear_error(tmp_path: Path, where: str, monkeypatch: Any) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("orchestrator.store.SCHEMA_VERSION", 2)
        store = RunStore.create(tmp_path / "run", CONFIG)
        store.write_summary({})
        store.write_rollouts(0, 0, [_failed_group()])
    read: dict[str, Any] = {"record": store.read_summary, "config": store.read_config, "rollouts": store.read_rollouts}
    with pytest.raises(StoreError, match=r"has schema_version 2 and this envwright reads up to 1.*upgrade"):
        read[where]()


def test_damaged_record_names_its_file(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", CONFIG)
    (tmp_path / "run" / "summary.json").write_text("{")
    with pytest.raises(StoreError, match=r"run/summary.json is not readable JSON"):
        store.read_summary()


def test_local_write_cut_short_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore.create(tmp_path / "run", CONFIG)
    store.write_summary({"n": 1})

    def no_disk(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", no_disk)
    with pytest.raises(OSError, match="disk full"):
        store.write_summary({"n": 2})
    assert store.read_summary() == {"schema_version": 1, "n": 1}


def test_active_time_adds_up_over_sessions_and_not_over_the_pause(tmp_path: Path) -> None:
    first = RunStore.create(tmp_path / "run", CONFIG)
    first.write_status("running", 1000.0)
    first.write_status("interrupted", 1060.0, exit_code=130, message="Ctrl-C")
    second = RunStore.open(tmp_path / "run")
    second.write_status("running", 5000.0)
    second.write_status("finished", 5040.0, exit_code=0)
    status = second.read_status() or {}
    assert (status["state"], status["exit_code"], status["active_s"]) == ("finished", 0, 100.0)
    assert (status["started_at"], status["updated_at"]) == ("1970-01-01T00:16:40Z", "1970-01-01T01:24:00Z")


def test_folders_travel_both_ways(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.bin").write_bytes(b"w" * 10)
    store.checkpoint_path(1)
    store.upload(tmp_path / "weights", "checkpoints/1")
    store.download("checkpoints/1", tmp_path / "back")
    assert (tmp_path / "back" / "model.bin").read_bytes() == b"w" * 10


def _again(store: RunStore) -> RunStore:
    return RunStore.create(store.directory, CONFIG, None if store.local else store._files)


def _failed_group() -> Group:
    task = Task("fake", "{}", "3x3", "train", 0)
    return Group(task, (Scored(None, Failure(FailureKind.DATA, "no label")),))
