"""The run directory: written by one driver, read by everything else, without Ray.

Layout, relative to the run directory::

    run.yaml                      resolved configuration           environment.json  strata, outcomes, solved, knobs
    evaluation-<name>.json        held-out results                 summary.json      before/after rows, redesigns
    lineage/<id>.json             one record per stage or branch   status.json       state and exit code, written last
    stages/<k>/<record>.json      see STAGE_RECORDS                stages/showcase.json
    rollouts/stage-<k>-step-<s>.parquet    one row per sample      events/           TensorBoard
    loggers.json                  what services call this run      wandb/            files of Weights & Biases
    checkpoints/<step>/manifest.json       marker, written last    checkpoints/latest
    report.html

``stages/<k>`` holds what belongs to stage k: its configuration and metrics, the validation at its end, and the
evidence, engineer dialogue and decision that followed (these shape stage k + 1). Every file is written whole in one
put, so that a bucket works as well as a disk. Readers return plain dicts and lists.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from actors.records import Group
from environments.base import SCHEMA_VERSION
from orchestrator.rollout_table import groups_of, rows_of, schema

StageRecord = Literal["environment", "metrics", "evidence", "engineer", "counterfactual", "decision", "validation"]
STAGE_RECORDS: tuple[StageRecord, ...] = get_args(StageRecord)
State = Literal["running", "finished", "failed", "interrupted"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ROLLOUT = re.compile(r"stage-(\d+)-step-(\d+)\.parquet")
_YAML_VERSION = re.compile(r"# schema_version: (\d+)")


class StoreError(RuntimeError):
    """A run directory cannot be used; the message says which file and what to do."""


class RunExists(StoreError):
    """A new run would write into a directory that already holds something."""


class RunStore:
    """One run directory on a disk or in a bucket (any URI that pyarrow's filesystems open, such as ``s3://``)."""

    def __init__(self, directory: str | Path, filesystem: Any = None) -> None:
        from pyarrow import fs

        self.directory = str(directory)
        if filesystem is not None:
            self._files, self._root = filesystem, self.directory.rstrip("/")
        elif "://" in self.directory:
            self._files, self._root = fs.FileSystem.from_uri(self.directory)
        else:
            self._files, self._root = fs.LocalFileSystem(), os.path.abspath(self.directory)
        self._fs = fs
        self.local = isinstance(self._files, fs.LocalFileSystem)
        self._session: tuple[float, float] | None = None

    @classmethod
    def create(cls, directory: str | Path, config: str, filesystem: Any = None) -> RunStore:
        """Start a new run with its resolved configuration (YAML text). Raises :class:`RunExists`."""
        store = cls(directory, filesystem)
        if store._list(""):
            raise RunExists(store._why_taken())
        store._put("run.yaml", f"# schema_version: {SCHEMA_VERSION}\n{config}".encode())
        return store

    @classmethod
    def open(cls, directory: str | Path, filesystem: Any = None) -> RunStore:
        """Use a run that is already there. Raises :class:`StoreError` if there is none."""
        store = cls(directory, filesystem)
        if not store._exists("run.yaml"):
            raise StoreError(f"{store.directory} holds no run (no run.yaml in it); `envwright train` makes one")
        return store

    def _why_taken(self) -> str:
        name = os.path.basename(self.directory.rstrip("/"))
        other = next(f"{name}-{i}" for i in range(2, 10_000) if not self._taken(f"{name}-{i}"))
        elsewhere = f"start a new one beside it with name={other}"
        if not self._exists("run.yaml"):
            return f"{self.directory} is not empty and holds no run; choose another name, for example name={other}"
        status = self.read_status() or {}
        if status.get("state") == "finished":
            return f"{self.directory} already holds a finished run; {elsewhere}"
        step = self.latest_checkpoint()
        if step is None:
            return (
                f"{self.directory} already holds a run that stopped before its first checkpoint; "
                f"start it over with `envwright resume {self.directory}`, or {elsewhere}"
            )
        return (
            f"{self.directory} already holds a run that stopped after step {step}; "
            f"continue it with `envwright resume {self.directory}`, or {elsewhere}"
        )

    def _taken(self, sibling: str) -> bool:
        path = f"{os.path.dirname(self._root)}/{sibling}"
        return bool(self._files.get_file_info(path).type != self._fs.FileType.NotFound)

    def read_config(self) -> dict[str, Any]:
        """``run.yaml`` as a plain tree."""
        text = self._get("run.yaml")
        if text is None:
            raise StoreError(f"{self.directory} holds no run (no run.yaml in it)")
        version = _YAML_VERSION.search(text.decode())
        self._check_version("run.yaml", int(version[1]) if version else 1)
        tree = yaml.safe_load(text)
        return tree if isinstance(tree, dict) else {}

    def write_environment(self, record: Mapping[str, Any]) -> None:
        """What the run trains on: ``{name, strata, outcomes: [{name, description}], solved, knobs: [spec]}``."""
        self._write("environment.json", record)

    def read_environment(self) -> dict[str, Any] | None:
        """See :meth:`write_environment`."""
        return self._read("environment.json")

    def write_stage(self, stage: int, kind: StageRecord, record: Mapping[str, Any]) -> None:
        """One record of a stage. ``environment`` has the key ``knobs``, ``engineer`` has ``prompt`` and ``reply``."""
        self._write(f"stages/{stage}/{kind}.json", record)

    def read_stage(self, stage: int, kind: StageRecord) -> dict[str, Any] | None:
        """One record of a stage, or None if it was not written (yet)."""
        return self._read(f"stages/{stage}/{kind}.json")

    def write_metrics(self, stage: int, steps: Sequence[Mapping[str, Any]]) -> None:
        """The metrics of a stage: ``[{step, values: {name: number}}]`` with steps counted over the whole run."""
        self.write_stage(stage, "metrics", {"steps": list(steps)})

    def read_metrics(self, stage: int) -> list[dict[str, Any]]:
        """See :meth:`write_metrics`; empty if none were written."""
        return list((self.read_stage(stage, "metrics") or {}).get("steps", []))

    def stages(self) -> list[int]:
        """The stages that have a folder, ascending."""
        return sorted(int(name) for name in self._list("stages") if name.isdigit())

    def write_evaluation(self, name: str, record: Mapping[str, Any]) -> None:
        """Held-out results: ``{name, checkpoint, strata: {s: {n, valid, optimal}}, tasks: [{task_id, stratum,
        outcome, reward, completion}]}``. Stage validation records have the same shape."""
        self._write(f"evaluation-{_safe(name)}.json", record)

    def read_evaluation(self, name: str) -> dict[str, Any] | None:
        """See :meth:`write_evaluation`."""
        return self._read(f"evaluation-{_safe(name)}.json")

    def write_summary(self, record: Mapping[str, Any]) -> None:
        """``{before_after: [row], redesigns: [...]}`` as made by statistics and progress."""
        self._write("summary.json", record)

    def read_summary(self) -> dict[str, Any] | None:
        """See :meth:`write_summary`."""
        return self._read("summary.json")

    def write_loggers(self, ids: Mapping[str, str]) -> None:
        """``{wandb: id, mlflow: id}``, each if used: what the services call this run, so that a resumed one goes on."""
        self._write("loggers.json", ids)

    def read_loggers(self) -> dict[str, str]:
        """See :meth:`write_loggers`; empty if none were written."""
        return {k: str(v) for k, v in (self._read("loggers.json") or {}).items() if k != "schema_version"}

    def write_showcase(self, record: Mapping[str, Any]) -> None:
        """One task for a person to look at: ``{task_id, before, after, caption}``, all text."""
        self._write("stages/showcase.json", record)

    def read_showcase(self) -> dict[str, Any] | None:
        """See :meth:`write_showcase`."""
        return self._read("stages/showcase.json")

    def write_lineage(self, record: Mapping[str, Any]) -> None:
        """``{id, parent, kind, hypothesis, changed_variable, decision}``; the id names the file."""
        self._write(f"lineage/{_safe(str(record['id']))}.json", record)

    def read_lineage(self) -> list[dict[str, Any]]:
        """Every lineage record, by id (shorter ones first, so that 10 follows 9)."""
        names = sorted((n for n in self._list("lineage") if n.endswith(".json")), key=lambda n: (len(n), n))
        return [record for n in names if (record := self._read(f"lineage/{n}")) is not None]

    def write_status(self, state: State, now: float, *, exit_code: int | None = None, message: str = "") -> None:
        """How the run stands at ``now`` (seconds since the epoch). ``active_s`` adds up over resumed sessions."""
        earlier = self.read_status() or {}
        if self._session is None:
            self._session = (now, float(earlier.get("active_s", 0.0)))
        begun, active = self._session
        times = {"started_at": earlier.get("started_at") or _utc(now), "updated_at": _utc(now)}
        record = {"state": state, "exit_code": exit_code, "message": message, **times}
        self._write("status.json", {**record, "active_s": round(active + now - begun, 3)})

    def read_status(self) -> dict[str, Any] | None:
        """``{state, exit_code, message, started_at, updated_at, active_s}``; times are ISO 8601 in UTC."""
        return self._read("status.json")

    def write_report(self, html: str) -> str:
        """Store ``report.html``; returns where it is."""
        self._put("report.html", html.encode())
        return self.path("report.html")

    def write_rollouts(self, stage: int, step: int, groups: Sequence[Group]) -> str:
        """Store every sample of one step, judged or failed; returns the path inside the run directory."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = schema().with_metadata({"schema_version": str(SCHEMA_VERSION)})
        table = pa.Table.from_pylist(rows_of(groups, stage, step), schema=columns)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        name = f"rollouts/stage-{stage}-step-{step}.parquet"
        self._put(name, sink.getvalue().to_pybytes())
        return name

    def rollouts(self) -> list[tuple[int, int]]:
        """The (stage, step) pairs that have stored rollouts, ascending."""
        found = (_ROLLOUT.fullmatch(name) for name in self._list("rollouts"))
        return sorted((int(m[1]), int(m[2])) for m in found if m)

    def read_rollouts(
        self, stage: int | None = None, step: int | None = None, columns: Collection[str] | None = None
    ) -> list[dict[str, Any]]:
        """Stored samples as one dict per row, of one stage or step or of all; ``columns`` limits what is read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = []
        for k, s in self.rollouts():
            if stage not in (None, k) or step not in (None, s):
                continue
            name = f"rollouts/stage-{k}-step-{s}.parquet"
            file = pq.ParquetFile(pa.BufferReader(self._get(name)))
            self._check_version(name, int((file.schema_arrow.metadata or {}).get(b"schema_version", 1)))
            rows += file.read(columns=None if columns is None else list(columns)).to_pylist()
        return rows

    def read_groups(self, stage: int, step: int) -> list[Group]:
        """The groups of one step as they were stored."""
        return groups_of(self.read_rollouts(stage, step))

    def checkpoint_path(self, step: int) -> str:
        """Where the files of a checkpoint go; the folder exists afterwards."""
        self._files.create_dir(f"{self._root}/checkpoints/{step}", recursive=True)
        return self.path(f"checkpoints/{step}")

    def finish_checkpoint(self, step: int, manifest: Mapping[str, Any], *, border: bool, keep: int) -> None:
        """Mark a checkpoint complete once its files are there, move ``latest`` to it, and drop older ones.

        ``border`` marks the end of a stage; such checkpoints stay, besides the ``keep`` newest others.
        """
        self._write(f"checkpoints/{step}/manifest.json", {**manifest, "step": step, "border": border})
        self._put("checkpoints/latest", f"{step}\n".encode())
        self._prune(keep)

    def read_manifest(self, step: int) -> dict[str, Any] | None:
        """The manifest of a complete checkpoint, or None."""
        return self._read(f"checkpoints/{step}/manifest.json")

    def complete_checkpoints(self) -> list[int]:
        """Steps whose checkpoint has its marker, ascending."""
        steps = (int(name) for name in self._list("checkpoints") if name.isdigit())
        return sorted(step for step in steps if self._exists(f"checkpoints/{step}/manifest.json"))

    def latest_checkpoint(self) -> int | None:
        """The step to resume from: what ``latest`` names (it may point back after a rollback), else the newest."""
        complete = self.complete_checkpoints()
        named = (self._get("checkpoints/latest") or b"").decode().strip()
        if named.isdigit() and int(named) in complete:
            return int(named)
        return complete[-1] if complete else None

    def set_latest(self, step: int) -> None:
        """Point ``latest`` at an earlier complete checkpoint (after a rollback)."""
        if step not in (complete := self.complete_checkpoints()):
            raise StoreError(f"checkpoint {step} of {self.directory} is not complete; these are: {complete}")
        self._put("checkpoints/latest", f"{step}\n".encode())

    def _prune(self, keep: int) -> None:
        complete, latest = self.complete_checkpoints(), self.latest_checkpoint() or 0
        inner = [s for s in complete if not (self.read_manifest(s) or {}).get("border")]
        unfinished = {int(n) for n in self._list("checkpoints") if n.isdigit() and int(n) < latest} - set(complete)
        for step in sorted((set(inner[: len(inner) - keep]) | unfinished) - {latest}):
            folder = f"{self._root}/checkpoints/{step}"
            # The marker goes first: a deletion cut short must not leave something that looks complete.
            if step in complete:
                self._files.delete_file(f"{folder}/manifest.json")
            self._files.delete_dir(folder)

    def path(self, relative: str) -> str:
        """A file of the run: absolute on this machine (actors run elsewhere), or below the run's URI."""
        return f"{self._root if self.local else self.directory.rstrip('/')}/{relative}"

    def upload(self, source: str | Path, relative: str) -> None:
        """Copy a local folder into the run directory (for writers that know only local paths)."""
        target = f"{self._root}/{relative}"
        self._files.create_dir(target, recursive=True)
        self._fs.copy_files(str(source), target, self._fs.LocalFileSystem(), self._files)

    def download(self, relative: str, target: str | Path) -> None:
        """Copy a folder of the run directory to a local one."""
        Path(target).mkdir(parents=True, exist_ok=True)
        self._fs.copy_files(f"{self._root}/{relative}", str(target), self._files, self._fs.LocalFileSystem())

    def _list(self, relative: str) -> list[str]:
        folder = f"{self._root}/{relative}".rstrip("/")
        found = self._files.get_file_info(self._fs.FileSelector(folder, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def _exists(self, relative: str) -> bool:
        return bool(self._files.get_file_info(f"{self._root}/{relative}").type == self._fs.FileType.File)

    def _get(self, relative: str) -> bytes | None:
        if not self._exists(relative):
            return None
        with self._files.open_input_stream(f"{self._root}/{relative}") as stream:
            return bytes(stream.read())

    def _put(self, relative: str, content: bytes) -> None:
        path = f"{self._root}/{relative}"
        self._files.create_dir(os.path.dirname(path), recursive=True)
        if not self.local:
            # An object appears when its upload ends, so a bucket never shows half a file.
            with self._files.open_output_stream(path) as stream:
                stream.write(content)
            return
        partial = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def _write(self, relative: str, record: Mapping[str, Any]) -> None:
        whole = {"schema_version": SCHEMA_VERSION, **_finite(record)}
        self._put(relative, (json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def _read(self, relative: str) -> dict[str, Any] | None:
        content = self._get(relative)
        if content is None:
            return None
        try:
            record = json.loads(content)
        except ValueError as error:
            raise StoreError(f"{self.path(relative)} is not readable JSON ({error}); restore or delete it") from None
        if not isinstance(record, dict):
            raise StoreError(f"{self.path(relative)} holds a {type(record).__name__}, not a record")
        self._check_version(relative, record.get("schema_version", 1))
        return record

    def _check_version(self, relative: str, version: int) -> None:
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path(relative)} has schema_version {version} and this envwright reads up to {SCHEMA_VERSION}: "
                "it was written by a newer release, upgrade envwright to read it"
            )


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null, so that any reader can parse the file."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_finite(item) for item in value]
    return value


def _safe(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r} cannot name a file: use letters, digits, dot, dash and underscore")
    return name


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
