"""Continue a run exactly where its latest complete checkpoint was written."""

from __future__ import annotations

from typing import Any

from orchestrator.records import HistoryEntry, StratumResult
from orchestrator.run import Run, State


def restore(run: Run) -> bool:
    """Load the latest checkpoint into every part of ``run``. False if there is none."""
    step = run.store.latest_checkpoint()
    if step is None:
        return False
    manifest = run.store.read_manifest(step) or {}
    run.state = read_state(manifest["state"])
    run.engineer.load_state_dict(manifest["engineer"])
    run.learner.load(run.store.checkpoint_path(step))
    for stage in run.store.stages():
        run.metrics.restore(stage, run.store.read_metrics(stage), before=run.state.step)
    run.sync()
    run.progress.note(f"resumed after step {step}: stage {run.state.stage}, weight version {run.learner.version}")
    return True


def read_state(record: dict[str, Any]) -> State:
    """A :class:`State` from its JSON form."""
    history = tuple(
        HistoryEntry(entry["stage"], entry["knobs"], tuple(StratumResult(**result) for result in entry["results"]))
        for entry in record["history"]
    )
    return State(**{**record, "history": history})
