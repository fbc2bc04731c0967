"""Judge the current weights on fixed tasks, one greedy completion each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.records import Group, Request, Sampling
from environments.base import Task, Verdict
from orchestrator.run import Run


class EvaluationFailed(RuntimeError):
    """Too many tasks could not be judged; a rate over the rest would mislead."""


def evaluate(run: Run, name: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """The evaluation record: rates per stratum and every task's outcome and completion.

    Raises :class:`EvaluationFailed` if any task came back without a verdict.
    """
    sampling = Sampling(run.config.evaluation.temperature, run.config.rollout.max_new_tokens)
    groups, _ = run.rollouts.rollout([Request(task, (0,)) for task in tasks], sampling)
    rows = [_row(group) for group in groups]
    if failed := [row for row in rows if row["outcome"] is None]:
        raise EvaluationFailed(
            f"{name}: {len(failed)} of {len(rows)} tasks were not judged; first: {failed[0]['failure']}"
        )
    best = run.info.words[0]
    strata = {}
    for stratum in run.info.strata:
        outcomes = [row["outcome"] for row in rows if row["stratum"] == stratum]
        strata[stratum] = {
            "n": len(outcomes),
            "valid": sum(o in run.info.solved for o in outcomes) / max(1, len(outcomes)),
            "optimal": sum(o == best for o in outcomes) / max(1, len(outcomes)),
        }
    return {"name": name, "weight_version": run.learner.version, "strata": strata, "tasks": rows}


def pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """(stratum, outcome) of every task: what evidence is counted from."""
    return [(row["stratum"], row["outcome"]) for row in record["tasks"]]


def valid_rate(record: dict[str, Any]) -> float:
    """Share of valid answers over all tasks."""
    total = sum(s["n"] for s in record["strata"].values())
    return float(sum(s["n"] * s["valid"] for s in record["strata"].values()) / max(1, total))


def _row(group: Group) -> dict[str, Any]:
    member = group.members[0]
    row = {"task_id": group.task.id, "stratum": group.task.stratum, "outcome": None, "reward": None}
    if isinstance(member.result, Verdict):
        completion = member.sample.text if member.sample else ""
        return {**row, "outcome": member.result.outcome, "reward": member.result.reward, "completion": completion}
    return {**row, "failure": f"{member.result.kind}: {member.result.message}"}
