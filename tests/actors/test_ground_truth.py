import itertools
import os
import sys
import time
from pathlib import Path

import pytest

from actors.config import GroundTruthConfig
from actors.ground_truth import SolverPool
from environments.base import Failure, FailureKind
from environments.mapf_frozenlake.labeller import InProcessLabeller

pytestmark = pytest.mark.usefixtures("ray_session")
PAYLOADS = [{"i": i} for i in range(11)]
LABELS = [{"label": 10 * i} for i in range(11)]


def labels_of(payloads):
    return [{"label": 10 * payload["i"]} for payload in payloads]


class Fake:
    """A worker whose environment is (kind of trouble, {"folder": where all its processes leave a mark})."""

    def __init__(self, environment):
        self.trouble, settings = environment
        self.folder = Path(settings["folder"])

    def first_of_all(self):
        """True in one process only, once."""
        try:
            (self.folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def label(self, payloads):
        (self.folder / f"call-{os.getpid()}-{time.monotonic_ns()}").touch()
        if self.trouble == "slow start" and payloads[0]["i"] == 0:
            time.sleep(0.5)
        if self.trouble == "dies" or (self.trouble == "dies once" and self.first_of_all()):
            os._exit(1)
        if self.trouble == "hangs" or (self.trouble == "hangs once" and self.first_of_all()):
            time.sleep(600)
        if self.trouble == "raises":
            raise ZeroDivisionError("a bug in the solver")
        if self.trouble == "gives up":
            return [Failure(FailureKind.DATA, "no board") for _ in payloads]
        return labels_of(payloads)


@pytest.fixture
def make_pool(tmp_path, place):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pools = []

    def make(trouble, **settings):
        config = GroundTruthConfig(**{"workers": 2, "chunk": 3, "deadline_s": 120.0, **settings})
        pools.append(SolverPool(config, (trouble, {"folder": str(tmp_path)}), place, worker=Fake))
        return pools[-1]

    yield make
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for actor in itertools.chain.from_iterable(pool._actors for pool in pools):
        ray.kill(actor)


def calls(folder):
    return len(list(folder.glob("call-*")))


def test_labels_keep_the_order_of_the_payloads_whoever_answers_first(make_pool, tmp_path):
    pool = make_pool("slow start")
    assert pool.label(PAYLOADS) == LABELS
    assert calls(tmp_path) == 4  # eleven payloads in chunks of three
    assert pool.label(PAYLOADS[:1]) == LABELS[:1]
    assert pool.label([]) == []
    assert (pool.queue, pool.replaced) == (0, 0)


def test_a_process_that_dies_is_replaced_and_its_chunk_sent_again(make_pool, tmp_path):
    pool = make_pool("dies once")
    assert pool.label(PAYLOADS) == LABELS
    assert pool.replaced == 1
    assert calls(tmp_path) == 5
    assert pool.label(PAYLOADS) == LABELS


def test_a_chunk_on_which_every_process_dies_is_an_infrastructure_failure(make_pool, tmp_path):
    pool = make_pool("dies", workers=1, chunk=2, retries=1)
    found = pool.label(PAYLOADS[:3])
    assert [label.kind for label in found] == [FailureKind.INFRASTRUCTURE] * 3
    assert all("solver-0 died" in label.message for label in found)
    assert calls(tmp_path) == pool.replaced == 4  # two chunks, each tried twice


def test_a_chunk_that_is_never_answered_is_a_timeout_that_names_the_setting(make_pool):
    pool = make_pool("hangs", workers=1, chunk=3, deadline_s=0.5, retries=1)
    found = pool.label(PAYLOADS[:2])
    assert [label.kind for label in found] == [FailureKind.TIMEOUT] * 2
    assert all("solver-0" in label.message and "ground_truth.deadline_s = 0.5 s" in label.message for label in found)
    assert pool.replaced == 2


def test_a_process_that_hangs_is_replaced_and_its_chunk_sent_again(make_pool):
    pool = make_pool("hangs once", deadline_s=8.0, retries=3)
    assert pool.label(PAYLOADS) == LABELS
    assert pool.replaced >= 1


def test_a_bug_in_the_worker_is_loud(make_pool):
    with pytest.raises(ZeroDivisionError, match="a bug in the solver"):
        make_pool("raises").label(PAYLOADS)


def test_what_the_solver_itself_gives_up_on_is_not_tried_again(make_pool, tmp_path):
    found = make_pool("gives up").label(PAYLOADS[:3])
    assert [label.kind for label in found] == [FailureKind.DATA] * 3
    assert calls(tmp_path) == 1


def test_the_real_workers_give_the_labels_of_the_calling_process(tasks, place):
    import ray

    keys = ("n", "holes", "starts", "goals")
    boards = [{key: task.data()[key] for key in keys} for task in tasks]
    boards.append({"n": 3, "holes": [1, 4, 7], "starts": [0, 2], "goals": [8, 6]})  # a wall: unsolvable
    config = GroundTruthConfig(workers=1, chunk=4, deadline_s=240.0)
    pool = SolverPool(config, ("mapf_frozenlake", {"agents": 2, "sizes": [3]}), place)
    try:
        found = pool.label(boards)
    finally:
        ray.kill(pool._actors[0])
    assert found == InProcessLabeller().label(boards)
    assert [label["status"] for label in found] == ["solvable"] * len(tasks) + ["unsolvable"]
