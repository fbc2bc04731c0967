"""One update as the stage asks for it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from actors.records import Batch, Row, UpdateResult
from orchestrator.config import load
from orchestrator.run import Run
from orchestrator.stage import update
from tests.run.conftest import RECIPE

BATCH = Batch((Row((1,), (2,)),))


def fake_run(turns):
    calls = []

    @contextmanager
    def asleep():
        calls.append("sleep")
        yield
        calls.append("wake")

    def learn(batch, meanwhile):
        calls.append("update")
        meanwhile()
        return UpdateResult(1, {"loss/policy": 0.5})

    run = SimpleNamespace(
        rollouts=SimpleNamespace(asleep=asleep), learner=SimpleNamespace(update=learn), takes_turns_on_gpus=turns
    )
    return run, calls


@pytest.mark.parametrize(
    ("turns", "expected"), [(True, ["sleep", "update", "store", "wake"]), (False, ["update", "store"])]
)
def test_engines_sleep_while_a_learner_on_their_gpu_trains(turns, expected):
    run, calls = fake_run(turns)
    assert update(run, BATCH, lambda: calls.append("store")) == {"learner/rows": 1.0, "loss/policy": 0.5}
    assert calls == expected


def test_an_empty_batch_makes_no_update():
    run, calls = fake_run(True)
    assert update(run, Batch(()), lambda: calls.append("store")) == {"learner/rows": 0.0}
    assert calls == ["store"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rollout.gpus=0.5", "learner.gpus=0.5", "curriculum.max_lag=0"], True),
        (["rollout.gpus=0.5", "learner.gpus=0.5", "curriculum.max_lag=1"], False),
        (["rollout.gpus=1", "learner.gpus=1", "curriculum.max_lag=0"], False),
        (["rollout.gpus=0.5", "learner.gpus=0", "curriculum.max_lag=0"], False),
        (["curriculum.max_lag=0"], False),
    ],
)
def test_turns_are_taken_on_a_shared_gpu_only(overrides, expected):
    run = SimpleNamespace(config=load(RECIPE, overrides))
    assert Run.takes_turns_on_gpus.fget(run) is expected
