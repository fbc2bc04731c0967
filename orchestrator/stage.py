"""One stage: the policy trains on tasks of one environment configuration, sampled at most ``max_lag`` updates ahead."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from actors.algorithms.dynamic_sampling import decide_sampling, shortage_message
from actors.algorithms.kl import sequence_kl
from actors.batching import judged_rows, make_batch
from actors.records import Batch, Group
from actors.rollout import WorkerReport
from environments.base import Task
from orchestrator.metrics import rollout_metrics, staleness_metrics, trained_metrics
from orchestrator.run import Run
from orchestrator.window import Window


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why and what to look at."""


def train_stage(run: Run) -> None:
    """Run the steps of the current stage that are still to do, with checkpoints between them."""
    config, state = run.config, run.state
    steps = config.curriculum.steps(state.stage)
    window = Window(run, stage_tasks(run), steps)
    run.progress.begin(state.stage, steps, state.step_in_stage)
    ended = time.perf_counter()
    while state.step_in_stage < steps:
        window.fill()
        values = train_step(run, window)
        began, ended = ended, time.perf_counter()
        values |= run.usage.step(ended - began)
        values["queue/tasks"] = float((steps - state.step_in_stage - 1) * config.curriculum.prompts_per_step)
        values |= {"replaced/rollout": float(run.rollouts.replaced), "replaced/solver": float(run.solvers.replaced)}
        run.metrics.log(state.step, values, stage=state.stage)
        state.step += 1
        state.step_in_stage += 1
        run.progress.update(state.step_in_stage, values)
        if state.step_in_stage % config.checkpoint.every_steps == 0 and state.step_in_stage < steps:
            state.ahead = window.hold()
            save_checkpoint(run, border=False)
            state.ahead = 0


def stage_tasks(run: Run) -> list[Task]:
    """The stage's tasks: items 0 .. instances - 1 of its configuration's stream."""
    stage = run.state.stage
    count = run.config.curriculum.stages[stage].instances
    run.progress.note(f"stage {stage}: generating {count} tasks")
    return run.environment.generate(run.knobs, run.config.seed, 0, count, stage=stage)


def train_step(run: Run, window: Window) -> dict[str, float]:
    """Take the groups of a step, update, send the weights out. Returns the step's metrics."""
    usage, state = run.usage, run.state
    with usage.phase("rollout_wait"):
        groups, reports = take_groups(run, window)
    usage.generated(reports)
    values = rollout_metrics(groups, run.info.words) | staleness_metrics(groups, run.learner.version)
    check_failures(groups, values["rollout/failed_share"], run.config.curriculum.max_failed_share)
    batch, chosen = training_batch(run, groups)

    def meanwhile() -> None:
        run.store.write_rollouts(state.stage, state.step, groups)
        values.update(trained_metrics(chosen))

    with usage.phase("learn"):
        values |= update(run, batch, meanwhile)
    usage.trained(sum(len(row) for row in (*batch.rows, *batch.replay)) * run.config.algorithm.updates_per_batch)
    with usage.phase("sync"):
        values |= run.sync()
    return values


def take_groups(run: Run, window: Window) -> tuple[list[Group], list[list[WorkerReport]]]:
    """The step's groups and, under dynamic sampling, those of further tasks until enough have a signal.

    Rounds are bounded; what is still missing after the last is said once per stage, and the step trains on what it has.
    """
    groups, report = window.take()
    reports = [report]
    rounds, wanted = run.objective.sampling_rounds, run.config.curriculum.prompts_per_step
    for _ in range(rounds):
        if not (missing := decide_sampling(groups, wanted).missing):
            break
        more, report = window.more(missing)
        groups, reports = [*groups, *more], [*reports, report]
    if rounds and not window.told and decide_sampling(groups, wanted).missing:
        run.progress.note(shortage_message(groups, wanted, rounds))
        window.told = True
    return groups, reports


def training_batch(run: Run, groups: Sequence[Group]) -> tuple[Batch, list[Group]]:
    """What the learner gets of a step's groups, and the groups that it was made from."""
    config = run.config
    if run.objective.sampling_rounds:
        groups = decide_sampling(groups, config.curriculum.prompts_per_step).kept
    penalties = None
    if run.objective.kl.in_reward():
        rows = judged_rows(groups)
        penalties = sequence_kl(rows, run.learner.reference(rows), run.objective.kl.estimator)
    batch = make_batch(
        groups,
        config.algorithm,
        run.replay_rows(run.state.step),
        max_new_tokens=config.rollout.max_new_tokens,
        reference_kl=penalties,
    )
    return batch, [groups[i] for i in batch.groups]


def update(run: Run, batch: Batch, meanwhile: Callable[[], None]) -> dict[str, float]:
    """The optimizer updates of one step, and what the driver does meanwhile. A batch without any signal and without
    replay makes none."""
    values: dict[str, float] = {"learner/rows": float(len(batch.rows))}
    if batch.rows or batch.replay:
        with run.rollouts.asleep() if run.takes_turns_on_gpus else nullcontext():
            values |= run.learner.update(batch, meanwhile).metrics
    else:
        meanwhile()
    return values


def check_failures(groups: Sequence[Group], share: float, allowed: float) -> None:
    """Failures are counted and left out; too many of them end the run with one clear message."""
    if share <= allowed:
        return
    first = next(m.result for g in groups for m in g.members if not hasattr(m.result, "reward"))
    raise TrainingFailed(
        f"{100 * share:.0f} % of this step's samples failed (curriculum.max_failed_share = {allowed:g}); "
        f"first failure: {first.kind}: {first.message}"
    )


def save_checkpoint(run: Run, *, border: bool) -> None:
    """Learner state first, then the manifest that makes the checkpoint count."""
    state = run.state
    run.metrics.flush()
    run.learner.save(run.store.checkpoint_path(state.step))
    manifest = {
        "state": dataclasses.asdict(state),
        "weight_version": run.learner.version,
        "engineer": dict(run.engineer.state_dict()),
    }
    run.store.finish_checkpoint(state.step, manifest, border=border, keep=run.config.checkpoint.keep)
