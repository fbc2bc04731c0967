import itertools
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.config import GroundTruthConfig
from actors.ground_truth import SolverPool, SolverWorker
from environments.base import Failure, FailureKind
from environments.mapf_frozenlake.labeller import ArrayLabeller, InProcessLabeller
from environments.registry import load_environment

pytestmark = pytest.mark.usefixtures("ray_session")
PAYLOADS = [{"i": i} for i in range(11)]
LABELS = [{"label": 10 * i} for i in range(11)]
SPEC = ("mapf_frozenlake", {"agents": 2, "sizes": [3, 4]})


@dataclass
class Rows:
    tens: Any
    sums: Any


class Fake:
    """A worker whose environment is ("fake", {"folder": where a file names the trouble and calls leave marks})."""

    def __init__(self, environment):
        self.folder = Path(environment[1]["folder"])
        if self.trouble() == "cannot start":
            raise FileNotFoundError("no environment here")

    @staticmethod
    def array_methods(environment):
        return ("label_rows",)

    def ready(self):
        if self.trouble() == "never up":
            time.sleep(600)
        if self.trouble() == "slow":
            time.sleep(1.6)

    def trouble(self):
        return (self.folder / "trouble").read_text()

    def first_of_all(self):
        """True in one process only, once."""
        try:
            (self.folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def call(self, method, *arguments):
        (self.folder / f"call-{os.getpid()}-{time.monotonic_ns()}").touch()
        numbers = [p["i"] for p in arguments[0]] if method == "label" else arguments[0].tolist()
        trouble = self.trouble()
        self.make_trouble(trouble, numbers)
        if trouble == "no board" or (trouble == "out of memory" and self.first_of_all()):
            kind = FailureKind.DATA if trouble == "no board" else FailureKind.INFRASTRUCTURE
            failure = Failure(kind, trouble)
            return [failure] * len(numbers) if method == "label" else failure
        if method == "label_rows":
            return Rows(10 * arguments[0], arguments[0] + arguments[1].sum(axis=1))
        return [{"label": 10 * number} for number in numbers]

    def make_trouble(self, trouble, numbers):
        if trouble == "0 is late" and 0 in numbers:
            time.sleep(0.5)
        if trouble == "slow":
            time.sleep(0.8)
        if trouble == "dies" or (trouble == "2 kills" and 2 in numbers):
            os._exit(1)
        if (trouble == "dies once" or (trouble == "2 kills" and 3 in numbers)) and self.first_of_all():
            os._exit(1)
        if trouble == "hangs" or (trouble in ("2 hangs", "1 raises and 2 hangs") and 2 in numbers):
            time.sleep(600)
        if trouble == "1 raises and 2 hangs" and 1 in numbers:
            raise ZeroDivisionError("a bug in the solver")


@pytest.fixture(scope="module")
def pools():
    """The pools of this file by name, ended with it: starting a process costs a second."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = {}
    yield made
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    end(made.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of all fake workers."""
    return tmp_path_factory.mktemp("fakes")


@pytest.fixture
def make_pool(pools, folder, place):
    """Gives the pool of one or two fake workers with other settings and another trouble, or one for this test alone."""

    def make(trouble, *, new=False, **settings):
        for mark in folder.iterdir():
            mark.unlink()
        (folder / "trouble").write_text(trouble)
        config = GroundTruthConfig(**{"workers": 1, "chunk": 3, "deadline_s": 120.0, **settings})
        name = "new" if new else config.workers
        if name not in pools:
            pools[name] = SolverPool(config, ("fake", {"folder": str(folder)}), place, worker=Fake)
        pools[name]._config, pools[name].replaced = config, 0
        return pools[name]

    yield make
    if "new" in pools:
        end([pools.pop("new")])


@pytest.fixture
def real_pool(pools, place):
    """Two real workers."""
    if "real" not in pools:
        pools["real"] = SolverPool(GroundTruthConfig(workers=2, chunk=8, deadline_s=240.0), SPEC, place)
    return pools["real"]


@pytest.fixture
def calls(folder):
    """Counts the calls that reached a worker."""
    return lambda: len(list(folder.glob("call-*")))


def end(pools):
    import ray

    for process in itertools.chain.from_iterable(pool._processes for pool in pools):
        ray.kill(process.actor)


def kinds(found):
    return [label.kind if isinstance(label, Failure) else None for label in found]


def random_boards(count):
    """4x4 boards with two holes and two agents."""
    order = np.argsort(np.random.default_rng(0).random((count, 16)), axis=1)
    holes = np.zeros((count, 16), np.bool_)
    np.put_along_axis(holes, order[:, :2], True, axis=1)
    return holes.reshape(count, 4, 4), order[:, 2:4], order[:, 4:6]


def assert_same_arrays(found, expected):
    for mine, theirs in zip(astuple(found), astuple(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# ---------------------------------------------------------------------------------------------------------------- order


def test_labels_keep_the_order_of_the_payloads_whoever_answers_first(make_pool, calls):
    pool = make_pool("0 is late", workers=2)
    assert pool.label(PAYLOADS) == LABELS
    assert calls() == 4  # eleven payloads in chunks of three
    assert pool.label(PAYLOADS[:1]) == LABELS[:1]
    assert pool.label([]) == []
    assert pool.replaced == 0


def test_arrays_are_cut_by_rows_and_joined_in_order(make_pool, calls):
    pool = make_pool("0 is late", workers=2, chunk=1)
    numbers = np.arange(30)
    found = pool.label_rows(numbers, np.stack([numbers, numbers], axis=1))
    assert calls() == 4  # thirty rows in chunks of eight
    np.testing.assert_array_equal(found.tens, 10 * numbers)
    np.testing.assert_array_equal(found.sums, 3 * numbers)
    assert len(pool.label_rows(numbers[:0], np.zeros((0, 2))).tens) == 0
    with pytest.raises(ValueError, match=r"label_rows: arrays of lengths \[29, 30\] are not allowed"):
        pool.label_rows(numbers, np.zeros((29, 2)))


def test_threads_that_share_a_pool_each_get_their_own_labels(make_pool):
    pool = make_pool("none", workers=2)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda i: pool.label(PAYLOADS[i:]), [0, 5, 2, 9] * 5))
    assert found == [LABELS[i:] for i in [0, 5, 2, 9] * 5]


def test_a_thread_that_waits_too_long_for_its_turn_is_told_so(make_pool):
    pool = make_pool("none", start_deadline_s=0.1, deadline_s=0.1, retries=1)
    with pool._turn:
        found = pool.label(PAYLOADS)
    assert kinds(found) == [FailureKind.TIMEOUT] * 11
    assert "another thread's batch has kept the solver pool busy for over 0.3 s" in found[0].message


# ------------------------------------------------------------------------------------------------------- lost processes


def test_a_process_that_dies_is_replaced_and_its_chunk_sent_again(make_pool, calls):
    pool = make_pool("dies once", workers=2)
    assert pool.label(PAYLOADS) == LABELS
    assert pool.replaced == 1
    assert calls() == 5
    assert pool.label(PAYLOADS) == LABELS


def test_a_chunk_on_which_every_process_dies_is_an_infrastructure_failure(make_pool, calls):
    pool = make_pool("dies", chunk=2, retries=1)
    found = pool.label(PAYLOADS[:2])
    assert kinds(found) == [FailureKind.INFRASTRUCTURE] * 2
    assert all("solver-0 died" in label.message for label in found)
    assert calls() == pool.replaced == 2


def test_a_chunk_that_kills_processes_costs_the_chunks_behind_it_nothing(make_pool):
    # Chunk 3 dies once of its own: a failure that was not its own would be one too many.
    pool = make_pool("2 kills", chunk=1, retries=1)
    found = pool.label(PAYLOADS[:6])
    assert kinds(found) == [None, None, FailureKind.INFRASTRUCTURE, None, None, None]
    assert found[:2] + found[3:] == LABELS[:2] + LABELS[3:6]


def test_a_chunk_that_hangs_costs_the_chunks_behind_it_nothing(make_pool):
    pool = make_pool("2 hangs", chunk=1, retries=0, deadline_s=1.0)
    found = pool.label(PAYLOADS[:6])
    assert kinds(found) == [None, None, FailureKind.TIMEOUT, None, None, None]
    assert found[:2] + found[3:] == LABELS[:2] + LABELS[3:6]
    assert pool.replaced == 1


def test_a_chunk_that_is_never_answered_is_a_timeout_that_names_the_setting(make_pool):
    pool = make_pool("hangs", deadline_s=0.5, retries=1)
    found = pool.label(PAYLOADS[:2])
    assert kinds(found) == [FailureKind.TIMEOUT] * 2
    assert all("solver-0" in label.message and "ground_truth.deadline_s = 0.5 s" in label.message for label in found)
    assert pool.replaced == 2


def test_the_deadline_counts_neither_the_start_nor_the_wait_behind_another_chunk(make_pool):
    # 1.6 s to start, then 0.8 s for each of two chunks.
    pool = make_pool("slow", new=True, chunk=1, deadline_s=1.4, retries=0)
    assert pool.label(PAYLOADS[:2]) == LABELS[:2]
    assert pool.replaced == 0


def test_a_process_that_does_not_come_up_is_a_timeout_that_names_the_setting(make_pool):
    found = make_pool("never up", new=True, start_deadline_s=0.2, retries=0).label(PAYLOADS[:1])
    assert kinds(found) == [FailureKind.TIMEOUT]
    assert "solver-0 was not up after ground_truth.start_deadline_s = 0.2 s" in found[0].message


def test_a_process_that_cannot_start_says_why(make_pool):
    found = make_pool("cannot start", new=True, retries=0).label(PAYLOADS[:2])
    assert kinds(found) == [FailureKind.INFRASTRUCTURE] * 2
    assert all("could not start" in label.message and "no environment here" in label.message for label in found)


def test_a_bug_in_the_worker_is_loud_and_leaves_no_work_behind(make_pool):
    pool = make_pool("1 raises and 2 hangs", chunk=1)
    with pytest.raises(ZeroDivisionError, match="a bug in the solver"):
        pool.label(PAYLOADS[:4])
    assert pool.label(PAYLOADS[3:5]) == LABELS[3:5]


def test_what_the_solver_gives_up_on_is_tried_again_only_if_the_machine_was_to_blame(make_pool, calls):
    numbers, pairs = np.arange(5), np.zeros((5, 2))
    pool = make_pool("no board")
    assert kinds(pool.label(PAYLOADS[:3])) == [FailureKind.DATA] * 3
    assert pool.label_rows(numbers, pairs) == Failure(FailureKind.DATA, "no board")
    assert calls() == 2
    np.testing.assert_array_equal(make_pool("out of memory").label_rows(numbers, pairs).tens, 10 * numbers)
    assert calls() == 2


# --------------------------------------------------------------------------------------------------------- real workers


def test_the_pool_offers_the_array_methods_of_the_environments_labeller_and_no_other(make_pool, real_pool):
    assert SolverWorker.array_methods(SPEC) == ("label_boards",)
    assert isinstance(real_pool, ArrayLabeller)
    assert not hasattr(real_pool, "label_rows")
    assert not isinstance(make_pool("none"), ArrayLabeller)


def test_the_real_workers_give_the_labels_of_the_calling_process(real_pool, tasks):
    keys = ("n", "holes", "starts", "goals")
    boards = [{key: task.data()[key] for key in keys} for task in tasks]
    boards.append({"n": 3, "holes": [1, 4, 7], "starts": [0, 2], "goals": [8, 6]})  # a wall: unsolvable
    found = real_pool.label(boards)
    assert found == InProcessLabeller().label(boards)
    assert [label["status"] for label in found] == ["solvable"] * len(tasks) + ["unsolvable"]
    alone = load_environment(*SPEC)
    assert load_environment(*SPEC, real_pool).generate(alone.default_knobs(), 0, 0, 40) == alone.generate(
        alone.default_knobs(), 0, 0, 40
    )


def test_kill_9_in_the_middle_of_many_chunks_loses_and_mixes_no_label(real_pool):
    import ray

    pool = real_pool
    boards = random_boards(4000)  # 63 requests
    expected = InProcessLabeller().label_boards(*boards)
    pids = ray.get([process.actor.__ray_call__.remote(lambda worker: os.getpid()) for process in pool._processes])

    def kill_when_half_is_sent():
        while not any(sent.request >= 31 for process in pool._processes for sent in tuple(process.sent)):
            time.sleep(0.0005)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_when_half_is_sent, daemon=True)
    killer.start()
    found = pool.label_boards(*boards)
    killer.join(10)
    assert pool.replaced == 1
    assert_same_arrays(found, expected)
    assert_same_arrays(pool.label_boards(*boards), expected)
