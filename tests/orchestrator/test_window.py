"""How far rollouts may run ahead, what a checkpoint keeps of it, and that every lag asks for the same prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.records import Group, Request, Sample, Sampling, Scored
from actors.rollout import WorkerReport
from actors.rollout_pool import Ticket
from environments.base import Failure, FailureKind, Task, Verdict
from orchestrator.rollout_table import groups_of, rows_of
from orchestrator.run import State
from orchestrator.window import Window, admitted

TASKS = [Task("toy", f'{{"n":{i}}}', "easy", "train", i) for i in range(12)]

counts = st.integers(0, 50)


@given(counts, st.integers(0, 4), st.integers(1, 64), counts, counts)
def test_what_is_admitted_never_gets_older_than_the_lag(updates, lag, batch, accepted, running):
    """All prompts ever sampled fit into the batches up to ``lag`` beyond the one that trains next."""
    more = admitted(updates=updates, lag=lag, batch=batch, accepted=accepted, running=running)
    assert more >= 0
    assert more == 0 or accepted + running + more == (updates + 1 + lag) * batch


class Engines:
    """Answers every request with one sample; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Request]] = []
        self.uncollected = 0

    def submit(self, requests: list[Request], sampling: Sampling) -> Ticket:
        self.asked.append(list(requests))
        self.uncollected += 1
        return Ticket([list(requests)], 0)  # type: ignore[list-item]

    def collect(self, ticket: Ticket) -> tuple[list[Group], list[WorkerReport]]:
        self.uncollected -= 1
        return [answer(request) for request in ticket.stripes[0]], [WorkerReport()]  # type: ignore[attr-defined]


def answer(request: Request) -> Group:
    members = [
        Scored(
            Sample(request.task.id, (1, 2), (3,), (-0.5,), (0,), "x", "stop", i, seed, "rollout-0"),
            Verdict(0.5, "valid", {"time": i}) if i else Failure(FailureKind.TIMEOUT, "late"),
        )
        for i, seed in enumerate(request.seeds)
    ]
    return Group(request.task, (*members, Scored(None, Failure(FailureKind.DATA, "too long"))))


def a_run(lag: int, **state: Any) -> Any:
    """Three stages' worth of what a window touches: 6 steps of 2 prompts, 3 completions each."""
    stored: dict[int, list[dict[str, Any]]] = {}
    curriculum = SimpleNamespace(
        prompts_per_step=2, group_size=3, max_lag=lag, stages=[SimpleNamespace(instances=len(TASKS))]
    )
    return SimpleNamespace(
        state=State(**state),
        config=SimpleNamespace(
            seed=0, curriculum=curriculum, rollout=SimpleNamespace(temperature=1.0, max_new_tokens=4)
        ),
        rollouts=Engines(),
        store=SimpleNamespace(
            write_rollouts=lambda stage, step, groups: stored.__setitem__(step, rows_of(groups, stage, step)),
            read_groups=lambda stage, step: groups_of(stored[step]),
        ),
        knobs=None,
        environment=SimpleNamespace(
            generate=lambda knobs, seed, start, count, stage: [
                Task("toy", f'{{"n":{i}}}', "easy", "train", i) for i in range(start, start + count)
            ]
        ),
    )


def train(run: Any, steps: int, until: int) -> list[list[Group]]:
    window = Window(run, TASKS, steps)
    taken = []
    while run.state.step_in_stage < until:
        window.fill()
        taken.append(window.take()[0])
        run.state.step += 1
        run.state.step_in_stage += 1
    run.state.ahead = window.hold()
    return taken


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_every_lag_samples_the_same_prompts_with_the_same_seeds_in_the_same_order(lag):
    now, ahead = a_run(0), a_run(lag)
    assert train(now, 6, 6) == train(ahead, 6, 6)
    assert now.rollouts.asked == ahead.rollouts.asked
    assert ahead.rollouts.uncollected == 0


@pytest.mark.parametrize(("lag", "open_steps"), [(0, 1), (1, 2), (3, 4), (9, 6)])
def test_no_more_steps_are_open_than_the_lag_allows_or_the_stage_has(lag, open_steps):
    run = a_run(lag)
    Window(run, TASKS, 6).fill()
    assert run.rollouts.uncollected == open_steps


def test_filling_twice_asks_for_nothing_twice():
    run = a_run(1)
    window = Window(run, TASKS, 6)
    window.fill()
    window.fill()
    assert len(run.rollouts.asked) == 2


def test_what_ran_ahead_is_stored_with_a_checkpoint_and_not_sampled_again():
    """Stopped after two of six steps with two more sampled ahead: the rest continues as if there had been no stop."""
    whole, stopped = a_run(2), a_run(2)
    expected = train(whole, 6, 6)
    first = train(stopped, 6, 2)
    assert stopped.state.ahead == 2
    resumed = a_run(2, step=2, step_in_stage=2, ahead=2)
    resumed.store = stopped.store
    rest = train(resumed, 6, 6)
    assert first + rest == expected
    assert stopped.rollouts.asked + resumed.rollouts.asked == whole.rollouts.asked


def test_further_tasks_follow_those_of_the_stage_and_have_their_own_seeds():
    run = a_run(0)
    window = Window(run, TASKS, 6)
    window.fill()
    groups, _ = window.take()
    more, _ = window.more(2)
    again, _ = window.more(1)
    assert [group.task.index for group in (*more, *again)] == [12, 13, 14]
    assert run.state.extra == 3
    seeds = [request.seeds for asked in run.rollouts.asked for request in asked]
    assert len(set(seeds)) == len(seeds) == len(groups) + 3
