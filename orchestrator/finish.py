"""What a run says of itself: at the start what it trains on, at the end the table, the redesigns and the report."""

from __future__ import annotations

import dataclasses
from typing import Any

from environments.base import Task
from orchestrator.progress import summarise_redesign
from orchestrator.run import Run
from orchestrator.statistics import before_after


def introduce(run: Run) -> None:
    """Store what the environment is: strata, outcomes, knobs."""
    info = run.info
    run.store.write_environment(
        {
            "name": info.name,
            "version": run.environment.version,
            "strata": list(info.strata),
            "outcomes": [{"name": word, "description": text} for word, text in reversed(info.outcomes)],
            "solved": sorted(info.solved),
            "knobs": [dataclasses.asdict(spec) for spec in info.knobs],
            "model": run.model,
        }
    )


def finish(run: Run) -> None:
    """Export the model, store the summary and one board before and after."""
    run.learner.export(run.store.path("model"))
    before, after = run.store.read_evaluation("before"), run.store.read_evaluation("after")
    if before is None or after is None:
        raise RuntimeError("the held-out evaluations are missing from the run directory")
    # The report resamples with the same default seed, so that both show one interval.
    rows = before_after(before["tasks"], after["tasks"], solved=run.info.solved, best=run.info.words[0])
    decisions = [(k, run.store.read_stage(k, "decision")) for k in run.store.stages()]
    redesigns = [summarise_redesign(k, decision) for k, decision in decisions if decision]
    run.store.write_summary({"before_after": rows, "redesigns": redesigns})
    if split := run.usage.split():
        run.progress.note(str(split))
    if shown := showcase(run, before["tasks"], after["tasks"]):
        run.store.write_showcase(shown)


def showcase(run: Run, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The board that shows the change best: failed before, solved as well as possible after, in the last stratum."""
    later = {row["task_id"]: row for row in after}
    order = {stratum: i for i, stratum in enumerate(run.info.strata)}
    rank = {word: i for i, word in enumerate(run.info.words)}

    def merit(row: dict[str, Any]) -> tuple[bool, int, int]:
        then = later[row["task_id"]]["outcome"]
        gained = row["outcome"] not in run.info.solved and then in run.info.solved
        return gained, -rank[then], order[row["stratum"]]

    rows = [row for row in before if row["task_id"] in later]
    if not rows:
        return None
    chosen = max(rows, key=merit)
    then = later[chosen["task_id"]]
    task = next(t for t in run.environment.held_out().tasks if t.id == chosen["task_id"])
    return {
        "task_id": chosen["task_id"],
        "before": _shown(run, task, chosen),
        "after": _shown(run, task, then),
        "caption": f"held-out {chosen['stratum']} board: {chosen['outcome']} before, {then['outcome']} after",
    }


def _shown(run: Run, task: Task, row: dict[str, Any]) -> str:
    return run.environment.render(task, row["completion"])
