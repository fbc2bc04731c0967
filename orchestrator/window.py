"""The steps of a stage on their way from prompts to groups. Synchronous or ahead is one number here, not another loop.

Rollouts may run ``max_lag`` updates ahead of the learner and no further: what would be too old to train on is never
sampled, so nothing is thrown away. With a lag of 0 a step is sampled with the weights that it trains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from actors.records import Group, Request, Sampling
from actors.rollout import WorkerReport
from actors.rollout_pool import Ticket
from environments.base import Task, stream
from orchestrator.run import Run


def admitted(*, updates: int, lag: int, batch: int, accepted: int, running: int) -> int:
    """How many more prompts may be sampled now: ``(updates + 1 + lag) · batch − (accepted + running)``, at least 0.

    ``updates`` are the steps trained so far, ``accepted`` the prompts whose groups were trained on or wait for it,
    ``running`` those being sampled (AReaL, Fu et al. 2025, arXiv 2505.24298).
    """
    return max(0, (updates + 1 + lag) * batch - (accepted + running))


class Window:
    """Steps in order: the first is the next to train, the others are those that were admitted ahead of it."""

    def __init__(self, run: Run, tasks: Sequence[Task], steps: int) -> None:
        self._run, self._tasks, self._steps = run, tasks, steps
        state = run.state
        ahead = range(state.step, state.step + state.ahead)
        self._open: deque[Ticket | list[Group]] = deque(run.store.read_groups(state.stage, s) for s in ahead)
        state.ahead = 0
        self.told = False
        """Whether a shortage of groups with a signal was reported in this stage."""

    def fill(self) -> None:
        """Ask for every step that may be sampled by now."""
        state, curriculum = self._run.state, self._run.config.curriculum
        batch = curriculum.prompts_per_step
        while (step := state.step_in_stage + len(self._open)) < self._steps and batch <= admitted(
            updates=state.step_in_stage,
            lag=curriculum.max_lag,
            batch=batch,
            accepted=state.step_in_stage * batch,
            running=len(self._open) * batch,
        ):
            tasks = step_tasks(self._tasks, step, self._run)
            self._open.append(self._submit(tasks, state.step + len(self._open)))

    def take(self) -> tuple[list[Group], list[WorkerReport]]:
        """The groups of the next step to train, waiting for them if they are not there yet."""
        first = self._open.popleft()
        return self._run.rollouts.collect(first) if isinstance(first, Ticket) else (first, [])

    def hold(self) -> int:
        """Wait for all that runs ahead and store it, so that a checkpoint may count on it; how many steps that are."""
        state = self._run.state
        for i, found in enumerate(self._open):
            groups = self._run.rollouts.collect(found)[0] if isinstance(found, Ticket) else found
            self._run.store.write_rollouts(state.stage, state.step + i, groups)
            self._open[i] = groups
        return len(self._open)

    def more(self, count: int) -> tuple[list[Group], list[WorkerReport]]:
        """Groups of ``count`` tasks beyond those of the stage, for the step that is being trained."""
        state = self._run.state
        environment, instances = self._run.environment, self._run.config.curriculum.stages[state.stage].instances
        tasks = environment.generate(
            self._run.knobs, self._run.config.seed, instances + state.extra, count, stage=state.stage
        )
        first = self._run.config.curriculum.prompts_per_step + state.extra
        state.extra += count
        return self._run.rollouts.collect(self._submit(tasks, state.step, first))

    def _submit(self, tasks: Sequence[Task], step: int, first: int = 0) -> Ticket:
        config = self._run.config
        size = config.curriculum.group_size
        requests = [
            Request(task, sample_seeds(config.seed, step, task, position, size))
            for position, task in enumerate(tasks, first)
        ]
        return self._run.rollouts.submit(requests, Sampling(config.rollout.temperature, config.rollout.max_new_tokens))


def step_tasks(tasks: Sequence[Task], step: int, run: Run) -> list[Task]:
    """The tasks of one step: epochs after the first see the same tasks in another seeded order."""
    size = run.config.curriculum.prompts_per_step
    epoch, position = divmod(step * size, len(tasks))
    order = list(range(len(tasks)))
    if epoch:
        stream(run.config.seed, "epoch", run.state.stage, epoch).shuffle(order)
    return [tasks[i] for i in order[position : position + size]]


def sample_seeds(seed: int, step: int, task: Task, position: int, count: int) -> tuple[int, ...]:
    """One seed per completion, a function of (run seed, step, task, position in the step, sample index)."""
    key = stream(seed, "sample", step, task.id, position)
    return tuple(key.getrandbits(31) for _ in range(count))
