"""The pool over stand-in workers in real Ray actors: stripes, order, losses, weights between rollouts."""

import os
import sys
import time
from pathlib import Path

import pytest

from actors.config import RolloutConfig
from actors.records import Arrival, Delivery, Group, Request, Sample, Sampling, Scored
from actors.rollout import WorkerReport
from actors.rollout_pool import RolloutPool
from actors.waiting import ActorFailure
from actors.weight_sync import SyncError
from actors.weights.transfer import Link
from environments.base import FailureKind, Task, Verdict

SAMPLING = Sampling(0.7, 12)


class Fake:
    """A worker whose environment is (what troubles it, {"folder": where its processes leave marks})."""

    def __init__(self, name, model, config, environment):
        self.name, self.version = name, 0
        self.trouble, settings = environment
        self.folder = Path(settings["folder"])
        self.asleep = False

    def sleep(self):
        if self.trouble == "dies while falling asleep" and self.name == "rollout-1" and self.first("slept"):
            os._exit(1)
        self.asleep = True

    def wake(self):
        self.asleep = False

    def ready(self):
        return self.name

    def load(self, delivery):
        if self.trouble == "dies while loading" and self.name == "rollout-1" and self.first("loaded"):
            os._exit(1)
        if self.trouble == "loads nothing":
            raise SyncError(f"{self.name} is not using the weights it was sent")
        self.version = delivery.version
        return Arrival(self.name, delivery.version, 0.0, 0.0, 1, 0.0, 0.0)

    def first(self, what):
        mark = self.folder / f"{self.name} {what}"
        first = not mark.exists()
        mark.touch()
        return first

    def rollout(self, requests, sampling):
        first = self.first("sampled")
        if self.name == "rollout-1":
            if self.trouble == "dies" or (self.trouble == "dies once" and first):
                os._exit(1)
            if self.trouble == "hangs":
                time.sleep(600)
            if self.trouble == "waits for weights":
                ends = time.monotonic() + 5.0
                while not self.version and time.monotonic() < ends:
                    time.sleep(0.01)
            if self.trouble == "raises":
                raise ZeroDivisionError("a bug in the checker")
        return [self.group(request) for request in requests], WorkerReport(0.0, 0.0, len(requests))

    def group(self, request):
        members = []
        for i, seed in enumerate(request.seeds):
            sample = Sample(request.task.id, (1,), (2,), (-0.5,), (self.version,), "", "stop", i, seed, self.name)
            members.append(Scored(sample, Verdict(1.0, "valid")))
        return Group(request.task, tuple(members))


def sampled(groups):
    return [member.sample for group in groups for member in group.members]


@pytest.fixture
def fake_pool(ray_session, place, monkeypatch, tmp_path):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr("actors.rollout_pool.RolloutWorker", Fake)
    pools = []

    def make(trouble, **settings):
        config = RolloutConfig(**{"workers": 3, "deadline_s": 120.0, **settings})
        pools.append(RolloutPool("no model", config, (trouble, {"folder": str(tmp_path)}), place))
        pools[-1].wait_ready()
        return pools[-1]

    yield make
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for pool in pools:
        for actor in pool._actors:
            ray.kill(actor)


SEVEN = [Request(Task("toy", str(i), "easy", "train", i), (10 * i, 10 * i + 1)) for i in range(7)]


def test_request_i_goes_to_worker_i_modulo_workers_and_the_order_is_kept(fake_pool):
    groups, reports = fake_pool("nothing").rollout(SEVEN, SAMPLING)
    assert [group.task for group in groups] == [request.task for request in SEVEN]
    assert [sample.worker for sample in sampled(groups)] == [f"rollout-{i % 3}" for i in range(7) for _ in range(2)]
    assert [sample.seed for sample in sampled(groups)] == [seed for request in SEVEN for seed in request.seeds]
    assert [report.tokens for report in reports] == [3, 2, 2]


def test_fewer_requests_than_workers_are_served_too(fake_pool):
    pool = fake_pool("nothing")
    assert [group.task for group in pool.rollout(SEVEN[:1], SAMPLING)[0]] == [SEVEN[0].task]
    assert pool.rollout([], SAMPLING)[0] == []


def test_the_stripe_of_a_worker_that_died_is_sampled_by_its_replacement(fake_pool):
    pool = fake_pool("dies once")
    pool.deliver(Delivery(5, None), 60.0)
    groups, _ = pool.rollout(SEVEN, SAMPLING)
    assert pool.replaced == 1
    assert [group.task for group in groups] == [request.task for request in SEVEN]
    assert {sample.versions for sample in sampled(groups)} == {(5,)}


@pytest.mark.parametrize(
    ("trouble", "kind", "settings"),
    [("dies", FailureKind.INFRASTRUCTURE, {}), ("hangs", FailureKind.TIMEOUT, {"deadline_s": 3.0})],
)
def test_what_fails_on_the_replacement_too_is_a_failure_and_the_rest_is_kept(fake_pool, trouble, kind, settings):
    pool = fake_pool(trouble, workers=2, **settings)
    groups, _ = pool.rollout(SEVEN, SAMPLING)
    assert [group.task for group in groups] == [request.task for request in SEVEN]
    for i, group in enumerate(groups):
        assert len(group.members) == 2
        if i % 2:
            assert [member.sample for member in group.members] == [None, None]
            assert {member.result.kind for member in group.members} == {kind}
            assert group.rewards == []
        else:
            assert group.rewards == [1.0, 1.0]
    assert pool.replaced == 2


def test_a_bug_in_the_checker_is_loud(fake_pool):
    with pytest.raises(ZeroDivisionError, match="a bug in the checker"):
        fake_pool("raises", workers=2).rollout(SEVEN, SAMPLING)


def test_engines_that_do_not_start_in_time_are_a_timeout_that_names_the_setting(fake_pool):
    with pytest.raises(ActorFailure, match=r"waited 0\.001 s .*start.*rollout\.start_deadline_s") as caught:
        fake_pool("nothing", workers=1, start_deadline_s=0.001)
    assert caught.value.kind is FailureKind.TIMEOUT


def test_a_delivery_changes_what_is_submitted_after_it_and_nothing_before(fake_pool):
    """Three tickets are on their way at once, whatever the engines' pace: each keeps the weights it was sent with."""
    pool = fake_pool("nothing")
    tickets = []
    for version in (1, 2, 3):
        pool.deliver(Delivery(version, None), 60.0)
        tickets.append(pool.submit(SEVEN, SAMPLING))
    for version, ticket in zip((1, 2, 3), tickets, strict=True):
        groups, _ = pool.collect(ticket)
        assert {sample.versions for sample in sampled(groups)} == {(version,)}


def test_arrivals_are_told_once_and_no_later_than_the_rollouts_they_came_before(fake_pool):
    pool = fake_pool("nothing", workers=2)
    pool.deliver(Delivery(1, None), 60.0)
    ticket = pool.submit(SEVEN, SAMPLING)
    pool.deliver(Delivery(2, None), 60.0)
    assert pool.arrivals() == []
    pool.collect(ticket)
    assert [(a.worker, a.version) for a in pool.arrivals()] == [("rollout-0", 1), ("rollout-1", 1)]
    assert [(a.worker, a.version) for a in pool.settle()] == [("rollout-0", 2), ("rollout-1", 2)]
    assert pool.settle() == []


def test_weights_that_did_not_arrive_stop_the_rollouts_that_count_on_them(fake_pool):
    pool = fake_pool("loads nothing", workers=2)
    pool.deliver(Delivery(1, None), 60.0)
    with pytest.raises(SyncError, match="rollout-0 is not using the weights"):
        pool.collect(pool.submit(SEVEN, SAMPLING))


def test_an_engine_lost_with_work_queued_gets_its_weights_and_all_of_its_work_again(fake_pool):
    """Its first ticket kills it; the delivery and the second ticket behind it are not lost with it."""
    pool = fake_pool("dies once")
    pool.deliver(Delivery(1, None), 60.0)
    first = pool.submit(SEVEN, SAMPLING)
    pool.deliver(Delivery(2, None), 60.0)
    second = pool.submit(SEVEN, SAMPLING)
    for ticket in (first, second):
        groups, _ = pool.collect(ticket)
        assert [group.task for group in groups] == [request.task for request in SEVEN]
        assert all(group.rewards == [1.0, 1.0] for group in groups)
    assert pool.replaced == 1
    assert {sample.versions for sample in sampled(groups)} == {(2,)}


def test_an_engine_lost_while_it_loads_is_replaced_and_loads_again(fake_pool):
    pool = fake_pool("dies while loading", workers=2)
    pool.deliver(Delivery(4, None), 60.0)
    groups, _ = pool.collect(pool.submit(SEVEN, SAMPLING))
    assert pool.replaced == 1
    assert {sample.versions for sample in sampled(groups)} == {(4,)}


@pytest.mark.parametrize(("in_flight", "version"), [(True, 1), (False, 0)])
def test_weights_overtake_what_is_being_sampled_only_where_that_is_asked_for(fake_pool, in_flight, version):
    """The engine samples until weights come, or 5 s: they come in flight, or only behind the rollout."""
    pool = fake_pool("waits for weights", workers=2, update_in_flight=in_flight)
    ticket = pool.submit(SEVEN, SAMPLING)
    pool.deliver(Delivery(1, None), 60.0)
    groups, _ = pool.collect(ticket)
    assert {s.versions for s in sampled(groups) if s.worker == "rollout-1"} == {(version,)}
    assert {arrival.version for arrival in pool.settle()} == {1}


def test_a_lost_engine_ends_a_run_whose_weights_are_pushed(fake_pool):
    """A group of NCCL takes no newcomers, and a fresh engine would sample with the initial weights."""
    pool = fake_pool("dies once")
    pool.join(lambda engines: Link("nccl", {}))
    with pytest.raises(ActorFailure, match=r"rollout-1 was lost.*nccl.*envwright resume"):
        pool.rollout(SEVEN, SAMPLING)


def test_pushed_weights_are_told_of_like_delivered_ones(fake_pool):
    pool = fake_pool("nothing", workers=2)
    told = [Arrival("rollout-0", 3, 0.0, 0.0, 1, 0.0, 0.0)]
    pool.receive(lambda engines: told if len(engines) == 2 else [])
    assert pool.arrivals() == told


@pytest.mark.parametrize(("trouble", "replaced"), [("nothing", 0), ("dies while falling asleep", 1)])
def test_engines_sleep_for_the_time_of_a_block_and_wake_whatever_happens_in_it(fake_pool, trouble, replaced):
    import ray

    def sleeping(pool):
        return ray.get([a.__ray_call__.remote(lambda worker: worker.asleep) for a in pool._actors], timeout=60)

    pool = fake_pool(trouble, workers=2)
    with pytest.raises(ZeroDivisionError), pool.asleep():
        assert sleeping(pool) == [True, not replaced]
        raise ZeroDivisionError("the learner failed")
    assert sleeping(pool) == [False, False]
    assert pool.replaced == replaced
    assert len(pool.rollout(SEVEN, SAMPLING)[0]) == 7
