"""Judged samples as table rows and back: what the rollout files of a run directory hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from actors.records import Group, Sample, Scored
from environments.base import SCHEMA_VERSION, Failure, FailureKind, Task, Verdict, canonical_json

_SAME = ("index", "prompt_ids", "token_ids", "logprobs", "versions", "finish_reason", "seed", "worker")


def rows_of(groups: Sequence[Group], stage: int, step: int) -> list[dict[str, Any]]:
    """One row per sample, group after group; what a failure left undone is null."""
    return [_row(g.task, member, i, stage, step) for g in groups for i, member in enumerate(g.members)]


def groups_of(rows: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The groups that :func:`rows_of` made these rows from."""
    found: list[tuple[Task, list[Scored]]] = []
    for row in rows:
        if row["index"] == 0:
            found.append((_task(row), []))
        found[-1][1].append(_member(row, found[-1][0]))
    return [Group(task, tuple(members)) for task, members in found]


def _row(task: Task, member: Scored, index: int, stage: int, step: int) -> dict[str, Any]:
    sample, result = member.sample, member.result
    row: dict[str, Any] = {
        "task_id": task.id, "environment": task.environment, "payload": task.payload, "stratum": task.stratum,
        "split": task.split, "task_index": task.index, "knobs_digest": task.knobs_digest,
        "stage": stage, "step": step, "index": index, "schema_version": SCHEMA_VERSION,
    }  # fmt: skip
    if sample is not None:
        row |= {name: getattr(sample, name) for name in _SAME} | {"completion": sample.text}
    if isinstance(result, Failure):
        return row | {"failure_kind": str(result.kind), "failure_message": result.message}
    return row | {"reward": result.reward, "outcome": result.outcome, "facts": canonical_json(result.facts)}


def _task(row: Mapping[str, Any]) -> Task:
    same = ("environment", "payload", "stratum", "split", "knobs_digest", "stage")
    return Task(index=row["task_index"], **{name: row[name] for name in same})


def _member(row: Mapping[str, Any], task: Task) -> Scored:
    sample = None
    if row.get("token_ids") is not None:
        fields: dict[str, Any] = {n: tuple(row[n]) if isinstance(row[n], list) else row[n] for n in _SAME}
        sample = Sample(task_id=task.id, text=row["completion"], **fields)
    if row.get("failure_kind") is not None:
        return Scored(sample, Failure(FailureKind(row["failure_kind"]), row["failure_message"]))
    return Scored(sample, Verdict(row["reward"], row["outcome"], json.loads(row["facts"])))


def schema() -> Any:
    """Columns of a rollout file. Log-probabilities are float32, the precision in which engines report them."""
    import pyarrow as pa

    text, ids = pa.string(), pa.list_(pa.int32())
    columns = {
        "task_id": text, "environment": text, "payload": text, "stratum": text, "split": text,
        "task_index": pa.int64(), "knobs_digest": text, "stage": pa.int32(), "step": pa.int64(), "index": pa.int32(),
        "prompt_ids": ids, "completion": text, "token_ids": ids, "logprobs": pa.list_(pa.float32()), "versions": ids,
        "reward": pa.float64(), "outcome": text, "facts": text, "failure_kind": text, "failure_message": text,
        "finish_reason": text, "seed": pa.int64(), "worker": text, "schema_version": pa.int32(),
    }  # fmt: skip
    return pa.schema(columns.items())
