"""One stage: the policy trains with GRPO on tasks of one environment configuration."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from actors.batching import make_batch
from actors.records import Batch, Group, Request, Sampling
from environments.base import Task, stream
from orchestrator.metrics import rollout_metrics, speed_metrics
from orchestrator.run import Run


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why and what to look at."""


def train_stage(run: Run) -> None:
    """Run the steps of the current stage that are still to do, with checkpoints between them."""
    config, state = run.config, run.state
    steps = config.curriculum.steps(state.stage)
    tasks = stage_tasks(run)
    run.progress.begin(state.stage, steps, state.step_in_stage)
    while state.step_in_stage < steps:
        chosen = step_tasks(tasks, state.step_in_stage, run)
        values = train_step(run, chosen)
        values["queue/tasks"] = float((steps - state.step_in_stage - 1) * config.curriculum.prompts_per_step)
        values |= {"replaced/rollout": float(run.rollouts.replaced), "replaced/solver": float(run.solvers.replaced)}
        run.metrics.log(state.step, values, stage=state.stage)
        state.step += 1
        state.step_in_stage += 1
        run.progress.update(state.step_in_stage, values)
        if state.step_in_stage % config.checkpoint.every_steps == 0 and state.step_in_stage < steps:
            save_checkpoint(run, border=False)


def stage_tasks(run: Run) -> list[Task]:
    """The stage's tasks: items 0 .. instances - 1 of its configuration's stream."""
    stage = run.state.stage
    count = run.config.curriculum.stages[stage].instances
    run.progress.note(f"stage {stage}: generating {count} tasks")
    return run.environment.generate(run.knobs, run.config.seed, 0, count, stage=stage)


def step_tasks(tasks: Sequence[Task], step: int, run: Run) -> list[Task]:
    """The tasks of one step: epochs after the first see the same tasks in another seeded order."""
    size = run.config.curriculum.prompts_per_step
    epoch, position = divmod(step * size, len(tasks))
    order = list(range(len(tasks)))
    if epoch:
        stream(run.config.seed, "epoch", run.state.stage, epoch).shuffle(order)
    return [tasks[i] for i in order[position : position + size]]


def train_step(run: Run, tasks: Sequence[Task]) -> dict[str, float]:
    """Sample, judge, update, synchronise. Returns the step's metrics."""
    config, started = run.config, time.perf_counter()
    seconds: dict[str, float] = {}
    requests = [Request(task, sample_seeds(run, task, i)) for i, task in enumerate(tasks)]
    sampling = Sampling(config.rollout.temperature, config.rollout.max_new_tokens)
    groups, _ = run.rollouts.rollout(requests, sampling)
    seconds["rollout"] = time.perf_counter() - started
    run.store.write_rollouts(run.state.stage, run.state.step, groups)
    values = rollout_metrics(groups, run.info.words)
    check_failures(groups, values["rollout/failed_share"], config.curriculum.max_failed_share)
    batch = make_batch(groups, config.algorithm, run.replay_rows(run.state.step))
    trained = sum(len(row) for row in (*batch.rows, *batch.replay))
    learning = time.perf_counter()
    values |= update(run, batch)
    seconds["learn"] = time.perf_counter() - learning
    syncing = time.perf_counter()
    values |= run.sync()
    seconds["sync"] = time.perf_counter() - syncing
    return values | speed_metrics(
        seconds=seconds,
        wall=time.perf_counter() - started,
        generated=values["rollout/tokens"],
        trained=trained * config.algorithm.updates_per_batch,
        engine_s=seconds["rollout"],
        learner_s=seconds["learn"],
    )


def update(run: Run, batch: Batch) -> dict[str, float]:
    """The optimizer updates of one step. A batch without any signal and without replay makes none."""
    values: dict[str, float] = {"learner/rows": float(len(batch.rows))}
    if not batch.rows and not batch.replay:
        return values
    for _ in range(run.config.algorithm.updates_per_batch):
        values |= run.learner.update(batch).metrics
    return values


def sample_seeds(run: Run, task: Task, position: int) -> tuple[int, ...]:
    """One seed per completion, a function of (run seed, step, task, position in the step, sample index)."""
    key = stream(run.config.seed, "sample", run.state.step, task.id, position)
    return tuple(key.getrandbits(31) for _ in range(run.config.curriculum.group_size))


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
