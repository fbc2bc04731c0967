"""Pushed weights (NCCL, CUDA IPC) against vLLM's own API with fakes for CUDA: same contract as the pulled ones.

Learner ranks, engine, factories, steps and layer-wise reload are real; only the bytes take another way (``fakes``).
"""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from actors.config import AlgorithmConfig, SyncConfig
from actors.records import Batch, Delivery
from actors.waiting import ActorFailure
from actors.weight_sync import SyncError, connect, push
from actors.weights.errors import EngineAsleep
from actors.weights.receiver import Receiver
from actors.weights.shipment import Shipment
from actors.weights.transfer import Rendezvous, await_together, backend_of
from environments.base import FailureKind

CONFIG = SyncConfig(deadline_s=60.0)


def give_fakes(worker, backend):
    """What vLLM does when it starts with a weight-transfer configuration, with the fake backend."""
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from actors.weights import fakes

    fakes.install()

    def create(wrapper):
        inner = wrapper.worker
        inner.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend=backend), inner.vllm_config, inner.device, inner.get_model()
        )

    worker._engine._llm.collective_rpc(create)


class Joined:
    """A two-rank ZeRO-3 learner and an engine that have met."""

    def __init__(self, group, pool, rows, tasks, backend):
        import ray

        def fake(rank):
            from actors.weights import fakes

            fakes.install()

        self.group, self._rows = group, rows
        ray.get([rank.__ray_call__.remote(fake) for rank in group._ranks], timeout=120)
        (actor,) = pool._actors
        ray.get(actor.__ray_call__.remote(give_fakes, backend), timeout=60)
        self.probes = tuple(pool.probe(tasks[:4], 8))
        self.actor, self.engines = actor, [actor]
        self.link = connect(group, self.engines, backend, CONFIG)

    def update(self):
        scores = self.group.score(self._rows)
        rows = (replace(row, logprobs=tuple(found)) for row, found in zip(self._rows, scores, strict=True))
        self.group.update(Batch(tuple(rows)))

    def delivery(self):
        expected = tuple(map(tuple, self.group.score(self.probes, 1.0)))
        version = self.group.version
        return Delivery(version, self.link.shipment(version), self.probes, expected, 1e-4)

    def push(self, delivery=None):
        (arrival,) = push(self.group, self.engines, delivery or self.delivery(), CONFIG)
        return arrival

    def inside(self, change):
        import ray

        return ray.get(self.actor.__ray_call__.remote(change), timeout=60)


@pytest.fixture(params=["nccl", "ipc"])
def backend(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def joined(request, backend, learner, engines, model_directory, tasks, some_rows):
    settings = {"lr": 0.02, "zero_stage": 3}
    group = learner(2)(model_directory(tied=request.param), AlgorithmConfig(), **settings)
    return Joined(group, engines(tied=request.param), some_rows, tasks, backend)


untied_only = pytest.mark.parametrize("joined", [False], indirect=True, ids=["untied"])


def test_three_pushes_in_a_row_bring_the_engine_to_the_learners_weights(joined):
    for version in (1, 2, 3):
        joined.update()
        arrival = joined.push()
        assert (arrival.version, arrival.worst < 1e-4) == (version, True)


@untied_only
def test_a_push_that_changes_one_tensor_on_the_way_is_noticed(joined):
    import ray

    def corrupt(rank):
        kept = rank.weights
        rank.weights = kept
        source = rank._sender._source
        type(source).__iter__ = lambda self: (
            (name, tensor * 0.9 if name == "model.layers.1.mlp.down_proj.weight" else tensor) for name, tensor in kept()
        )

    joined.update()
    ray.get([rank.__ray_call__.remote(corrupt) for rank in joined.group._ranks], timeout=60)
    with pytest.raises(SyncError, match="not using the weights it was sent"):
        joined.push()


@untied_only
def test_nothing_is_sent_to_an_engine_that_sleeps(joined):
    """The error comes before the learner sends; awake again, the engine takes the next push."""
    delivery = joined.delivery()
    joined.inside(lambda worker: worker._engine.weights._asleep.add("weights"))
    sent = joined.group.send
    joined.group.send = lambda: pytest.fail("sent to a sleeping engine")
    try:
        with pytest.raises(EngineAsleep, match="nothing was sent"):
            joined.push(delivery)
    finally:
        joined.group.send = sent
        joined.inside(lambda worker: worker._engine.weights._asleep.clear())
    joined.push()


@untied_only
def test_an_error_of_the_engine_surfaces_at_once_as_it_is(joined):
    def fail(worker):
        def broken(request):
            raise ZeroDivisionError("a broken engine")

        worker._engine._llm.update_weights = broken

    def mend(worker):
        del worker._engine._llm.update_weights
        worker._engine._llm.finish_weight_update()

    joined.inside(fail)
    try:
        with pytest.raises(ZeroDivisionError, match="a broken engine"):
            joined.push()
    finally:
        joined.inside(mend)
    joined.push()


# ----------------------------------------------------------------------------------------------------- awaited together


@pytest.fixture
def sides(ray_session):
    """Two actors: one of them can be made to wait, the other to fail."""
    import ray

    class Side:
        def wait(self, seconds):
            time.sleep(seconds)

        def fail(self):
            raise ZeroDivisionError("one side broke")

        def leave(self):
            import os

            os._exit(1)

    kind = ray.remote(Side).options(num_cpus=0)
    actors = [kind.remote(), kind.remote()]
    ray.get([actor.wait.remote(0) for actor in actors], timeout=120)
    yield actors
    for actor in actors:
        ray.kill(actor)


@pytest.mark.parametrize("order", [1, -1])
def test_an_error_of_either_side_ends_the_wait_for_the_other(sides, order):
    """The blocked side would take ten minutes, the deadline is as long: only the error can end the wait."""
    blocked, broken = sides[::order]
    refs = [blocked.wait.remote(600), broken.fail.remote()][::order]
    with pytest.raises(ZeroDivisionError, match="one side broke"):
        await_together(refs, what="both", deadline_s=600.0)


def test_a_lost_side_ends_the_wait_for_the_other(sides):
    refs = [sides[0].wait.remote(600), sides[1].leave.remote()]
    with pytest.raises(ActorFailure, match="lost during both") as failure:
        await_together(refs, what="both", deadline_s=600.0)
    assert failure.value.kind is FailureKind.INFRASTRUCTURE


def test_one_deadline_covers_both_sides_and_says_how_many_are_missing(sides):
    refs = [sides[0].wait.remote(600), sides[1].wait.remote(0)]
    with pytest.raises(ActorFailure, match=r"waited 2 s for both and 1 of 2 .*sync\.deadline_s.*restart") as failure:
        await_together(refs, what="both", deadline_s=2.0)
    assert failure.value.kind is FailureKind.TIMEOUT


# ----------------------------------------------------------------------------------------------- vLLM's records, sleep


def test_the_backend_follows_from_how_gpus_are_shared():
    assert [backend_of(gpus) for gpus in (0, 0.5, 1, 2)] == [None, "ipc", "nccl", "nccl"]


def test_engines_get_ranks_of_their_own_after_the_learners():
    """vLLM's client tells every engine the same rank; here each of them is told its own."""
    place = Rendezvous("nccl", "10.0.0.1", 4000, 3)
    records = [place.engine(rank) for rank in (1, 2)]
    assert [record["rank_offset"] for record in records] == [1, 2]
    assert all(record["world_size"] == 3 and record["packed"] for record in records)


def test_the_records_are_those_that_this_vllm_knows(engines):
    """Of vLLM's CUDA backends only the records can be made here: their fields are the contract."""
    import ray

    def make(worker):
        from vllm.distributed.weight_transfer import ipc_engine, nccl_engine

        from actors.weights import transfer

        fakes, transfer.TRAINER_RECORDS = transfer.TRAINER_RECORDS, {"nccl": transfer._nccl, "ipc": transfer._ipc}
        try:
            nccl, ipc = (Rendezvous(backend, "10.0.0.1", 4000, 3) for backend in ("nccl", "ipc"))
            update = {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}
            nccl_engine.NCCLWeightTransferUpdateInfo(**update)
            told = nccl_engine.NCCLWeightTransferInitInfo(**nccl.engine(2))
            trainers = [(t.backend, t.rank, t.packed) for t in (nccl.trainer(1), ipc.trainer(0))]
            return (
                trainers,
                (told.rank_offset, told.packed),
                ipc_engine.IPCWeightTransferInitInfo(**ipc.engine(1)).packed,
            )
        finally:
            transfer.TRAINER_RECORDS = fakes

    (actor,) = engines(tied=True)._actors
    trainers, told, packed = ray.get(actor.__ray_call__.remote(make), timeout=60)
    assert trainers == [("nccl", 1, True), ("ipc", 0, True)]
    assert told == (2, True) and packed


class FakeLLM:
    """Records what is asked of it."""

    def __init__(self):
        self.calls = []
        config = SimpleNamespace(hf_config=SimpleNamespace(tie_word_embeddings=False))
        self.llm_engine = SimpleNamespace(model_config=config)

    def __getattr__(self, name):
        return lambda *arguments, **named: self.calls.append((name, *arguments, *named.values()))


def test_a_sleeping_engine_refuses_weights_until_its_weights_are_awake():
    llm = FakeLLM()
    receiver = Receiver(llm, dict, on_cpu=False)
    shipment = Shipment(1, "nccl", update={"names": []})
    receiver.sleep()
    for refused in (lambda: receiver.receive(shipment), lambda: receiver.step("start_weight_update")):
        with pytest.raises(EngineAsleep):
            refused()
    assert llm.calls == [("sleep", 1)]
    receiver.wake("weights")
    receiver.receive(shipment)
    updates = ["start_weight_update", "update_weights", "finish_weight_update"]
    assert [call[0] for call in llm.calls] == ["sleep", "wake_up", *updates, "wake_up"]
    assert [call[1] for call in llm.calls if call[0] == "wake_up"] == [["weights"], ["kv_cache"]]
    receiver.wake("weights")
    assert len(llm.calls) == 6, "one that is awake is left alone"


def test_under_ipc_the_engine_waits_for_nothing_because_it_was_led_before():
    llm = FakeLLM()
    Receiver(llm, dict, on_cpu=False).receive(Shipment(1, "ipc"))
    assert llm.calls == []
