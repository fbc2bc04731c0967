import time

import pytest

from actors.waiting import ActorFailure, await_all
from environments.base import Failure, FailureKind

pytestmark = pytest.mark.usefixtures("ray_session")


class Answering:
    """An actor that answers, is slow, breaks, or dies."""

    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise OSError("no model in /nowhere")

    def echo(self, value):
        return value

    def sleep(self):
        time.sleep(600)

    def fail(self):
        raise KeyError("a bug in the worker")

    def die(self):
        import os

        os._exit(1)


@pytest.fixture
def start():
    import ray

    started = []

    def start(broken=False):
        actor = ray.remote(type("Answering", (Answering,), {"__module__": "__main__"}))
        started.append(actor.options(num_cpus=0.1).remote(broken))
        return started[-1]

    yield start
    for actor in started:
        ray.kill(actor)


def wait(refs, deadline_s=120.0):
    return await_all(refs, what="twelve answers", deadline_s=deadline_s, setting="rollout.deadline_s")


def test_answers_come_back_in_the_order_they_were_asked_for(start):
    actors = [start(), start()]
    assert wait([actors[i % 2].echo.remote(i) for i in range(7)]) == list(range(7))
    assert wait([]) == []


def test_a_timeout_says_what_was_awaited_how_long_and_which_setting_changes_it(start):
    with pytest.raises(ActorFailure) as caught:
        wait([start().sleep.remote()], deadline_s=0.25)
    message = str(caught.value)
    assert "waited 0.25 s" in message
    assert "for twelve answers" in message
    assert "rollout.deadline_s" in message
    assert "log" in message
    assert caught.value.kind is FailureKind.TIMEOUT
    assert caught.value.failure == Failure(FailureKind.TIMEOUT, message)


def test_a_lost_actor_is_an_infrastructure_failure_that_says_where_to_look(start):
    actor = start()
    with pytest.raises(ActorFailure, match=r"lost during twelve answers.*log") as caught:
        wait([actor.die.remote()])
    assert caught.value.kind is FailureKind.INFRASTRUCTURE


def test_an_exception_of_the_actors_own_code_stays_what_it_is(start):
    with pytest.raises(KeyError, match="a bug in the worker"):
        wait([start().fail.remote()])


def test_an_actor_that_cannot_start_says_why(start):
    with pytest.raises(ActorFailure, match="no model in /nowhere"):
        wait([start(broken=True).echo.remote(1)])
