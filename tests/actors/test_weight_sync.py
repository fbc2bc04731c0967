"""Weights from a DeepSpeed learner into a vLLM engine, and the check that says so: real actors, tied and untied."""

import math
import mmap
import os
from dataclasses import replace

import numpy as np
import pytest

from actors.config import AlgorithmConfig, SyncConfig
from actors.records import Batch, Delivery
from actors.weight_sync import SyncError, choose_route
from actors.weights.check import compare
from actors.weights.shipment import Route

TOLERANCE = 1e-4
"""Both sides compute in float32: log-probs agree to about 1e-6 nats."""

# ------------------------------------------------------------------------------------------------------------ the check


def check(measured, expected):
    return compare("rollout-1", measured, expected, version=3, tolerance=0.01)


def test_equal_log_probs_pass_and_the_differences_are_reported():
    """Differences 0.001, 0.003 and 0: worst 0.003, mean 0.004 / 3."""
    found = check([[-1.0, -2.0], [-0.5]], [[-1.001, -1.997], [-0.5]])
    assert found.worst == pytest.approx(0.003)
    assert found.mean == pytest.approx(0.004 / 3)
    assert found.tokens == 3


@pytest.mark.parametrize("side", ["engine", "learner"])
def test_a_log_prob_that_is_no_number_is_refused(side):
    values = [[[-1.0, math.nan]], [[-1.0, -1.0]]]
    measured, expected = values if side == "engine" else reversed(values)
    with pytest.raises(SyncError, match="nan nats"):
        check(measured, expected)


def test_a_mean_difference_above_the_tolerance_is_refused_with_its_numbers():
    with pytest.raises(
        SyncError, match=r"rollout-1 .*version 3 .*0\.02 nats .*2 probe tokens \(sync\.tolerance = 0\.01"
    ):
        check([[-1.0, -2.0]], [[-1.04, -2.0]])


def test_one_far_token_passes_where_the_mean_is_within_the_tolerance():
    """Reduced precision moves single tokens further than the mean."""
    assert check([[-1.0] * 10], [[-1.05] + [-1.0] * 9]).worst == pytest.approx(0.05)


def test_rows_of_other_lengths_are_no_match():
    with pytest.raises(ValueError, match="longer"):
        check([[-1.0]], [[-1.0, -1.0]])


def test_a_delivery_without_probes_is_not_checked():
    assert check([], []).tokens == 0


# ------------------------------------------------------------------------------------------------------------ the route


def route(transport="auto", engines=("here", "here"), learner_gpus=0.0, engine_gpus=0.0, **settings):
    config = SyncConfig(transport=transport, **settings)
    return choose_route(
        config, learner_gpus=learner_gpus, engine_gpus=engine_gpus, learner="here", engines=engines
    ).transport


def test_auto_takes_the_quickest_transport_that_the_placement_allows():
    assert route() == "shared_memory"
    assert route(engines=("here", "there")) == "object_store"
    assert route(learner_gpus=1, engine_gpus=1) == "nccl"
    assert route(learner_gpus=0.5, engine_gpus=0.5) == "ipc"
    assert route(learner_gpus=1, engine_gpus=0) == "shared_memory"


def test_adapters_are_pulled_on_gpus_too():
    config = SyncConfig()
    found = choose_route(config, learner_gpus=1, engine_gpus=1, learner="a", engines=["b"], adapters=True)
    assert found.transport == "object_store"


def test_a_transport_that_cannot_work_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"sync.transport = nccl needs a whole GPU.*rollout.gpus = 0.5.*auto"):
        route("nccl", learner_gpus=0.5, engine_gpus=0.5)
    with pytest.raises(ValueError, match=r"sync.transport = ipc needs a GPU that.*share"):
        route("ipc")
    with pytest.raises(ValueError, match=r"sync.transport = shared_memory needs .*one node.*object_store or disk"):
        route("shared_memory", engines=("there",))
    with pytest.raises(ValueError, match=r"sync.directory = None with sync.transport = disk"):
        SyncConfig(transport="disk")
    with pytest.raises(ValueError, match=r"sync.directory = '/x' with sync.transport = auto"):
        SyncConfig(directory="/x")


def test_the_route_carries_directory_and_bucket_size():
    config = SyncConfig(transport="disk", directory="/shared", bucket_mib=2)
    found = choose_route(config, learner_gpus=0, engine_gpus=0, learner="a", engines=["b"])
    assert found == Route("disk", "/shared", 2 << 20)


# ---------------------------------------------------------------------------------------------- real engine and learner


class Pair:
    """A learner and an engine, and what brings the engine to the learner's weights."""

    def __init__(self, group, pool, rows, tasks):
        self.group, self.pool, self._rows = group, pool, rows
        self.probes = tuple(pool.probe(tasks[:4], 8))

    def update(self):
        scores = self.group.score(self._rows)
        rows = (replace(row, logprobs=tuple(found)) for row, found in zip(self._rows, scores, strict=True))
        self.group.update(Batch(tuple(rows)))

    def delivery(self, shipment=None, **changes):
        """The learner's weights, or ``shipment`` in their place."""
        expected = tuple(map(tuple, self.group.score(self.probes, 1.0)))
        shipment = shipment or self.group.publish()
        found = Delivery(self.group.version, shipment, self.probes, expected, TOLERANCE)
        return replace(found, **changes)

    def sync(self, delivery=None):
        self.pool.deliver(delivery or self.delivery(), 60.0)
        (arrival,) = self.pool.settle()
        return arrival

    def refused(self, delivery=None, match="not using the weights it was sent"):
        with pytest.raises(SyncError, match=match):
            self.sync(delivery)

    def inside(self, change):
        """The result of ``change(worker)`` in the process of the engine."""
        import ray

        return ray.get(self.pool._actors[0].__ray_call__.remote(change), timeout=60)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def pair(request, learner, engines, model_directory, tasks, some_rows):
    """A learner one update ahead of its engine."""
    group = learner(1)(model_directory(tied=request.param), AlgorithmConfig(), lr=0.02)
    pair = Pair(group, engines(tied=request.param), some_rows, tasks)
    pair.sync()
    pair.update()
    return pair


tied_only = pytest.mark.parametrize("pair", [True], indirect=True, ids=["tied"])
untied_only = pytest.mark.parametrize("pair", [False], indirect=True, ids=["untied"])


def alter(shipment, name, change):
    """Change one tensor (float32) of a shipment in shared memory, where it lies."""
    ((parcel, entry),) = [(p, e) for p in shipment.parcels for e in p.entries if e.name == name]
    descriptor = os.open(parcel.place, os.O_RDWR)
    memory = mmap.mmap(descriptor, 0)
    os.close(descriptor)
    words = np.frombuffer(memory, np.float32, entry.size // 4, entry.offset)
    words[:] = change(words)
    return shipment


def test_after_every_update_the_engine_computes_with_the_learners_weights(pair):
    for version in (1, 2, 3):
        arrival = pair.sync()
        assert pair.group.version == arrival.version == version
        assert arrival.tokens == sum(len(row.token_ids) for row in pair.probes) >= 4
        assert arrival.mean <= arrival.worst < TOLERANCE
        pair.update()


def test_the_old_weights_do_not_pass_for_the_new_ones(pair):
    """The check can tell one small update apart."""
    before = pair.inside(lambda worker, rows=pair.probes: worker._engine.score(rows))
    expected = pair.group.score(pair.probes, 1.0)
    with pytest.raises(SyncError):
        compare("rollout-0", before, expected, version=1, tolerance=TOLERANCE)
    pair.sync()


@pytest.mark.parametrize("name", ["embed_tokens", "layers.1.mlp.down_proj", "layers.0.self_attn.q_norm", "norm"])
def test_one_corrupted_tensor_is_noticed(pair, name):
    shipment = alter(pair.group.publish(), f"model.{name}.weight", lambda words: words * 0.9)
    pair.refused(pair.delivery(shipment))
    pair.sync()


@untied_only
def test_a_corrupted_head_is_noticed(pair):
    shipment = alter(pair.group.publish(), "lm_head.weight", lambda words: words * 0.9)
    pair.refused(pair.delivery(shipment))
    pair.sync()


def test_one_corrupted_bucket_is_noticed(pair):
    """The third of several buckets has its tensors turned round; the engine recovers with the next sync."""
    shipment = pair.group.publish(Route(bucket_bytes=16 << 10))
    assert len(shipment.parcels) > 3
    for entry in shipment.parcels[2].entries:
        alter(shipment, entry.name, lambda words: words[::-1])
    pair.refused(pair.delivery(shipment))
    pair.sync(pair.delivery(pair.group.publish(Route(bucket_bytes=16 << 10))))


def test_weights_that_are_no_numbers_are_noticed(pair):
    shipment = alter(pair.group.publish(), "model.norm.weight", lambda words: words * math.nan)
    pair.refused(pair.delivery(shipment), match="nan nats")
    pair.sync()


def test_the_weights_of_the_update_before_are_noticed(pair):
    old = pair.group.publish()
    pair.update()
    pair.refused(pair.delivery(old))
    pair.sync()


def test_held_weights_come_back_after_later_ones_were_published(pair):
    """As those of a frozen base model: held by the driver, they are written over by none of three later versions."""
    kept = pair.delivery()
    for _ in range(3):
        pair.update()
        pair.sync()
    assert pair.sync(kept).worst < TOLERANCE
    assert pair.sync().version > kept.version


def test_the_memory_of_shipments_that_nobody_holds_is_used_again(pair):
    slots = [pair.group.publish().slot for _ in range(3)]
    assert len(set(slots)) == 1
    first, second = pair.group.publish(), pair.group.publish()
    assert first.slot != second.slot


def test_weights_that_were_written_over_before_they_arrived_are_refused(pair):
    """A shipment that outlives its lease: the driver's copy is gone, the engine's is not."""
    delivery = pair.delivery()
    worn = replace(delivery, shipment=replace(delivery.shipment))
    del delivery
    pair.update()
    pair.group.publish()
    pair.refused(worn, match="holds version")
    pair.sync()


@pytest.mark.parametrize("transport", ["object_store", "disk"])
def test_the_other_ways_lead_to_the_same_weights(pair, transport, tmp_path):
    way = Route(transport, str(tmp_path) if transport == "disk" else "", 16 << 10)
    for _ in range(3):
        assert pair.sync(pair.delivery(pair.group.publish(way))).worst < TOLERANCE
        pair.update()


def test_an_engine_that_keeps_its_old_weights_is_noticed(pair):
    """It takes the version and drops the load, as a backend that ignores the call would do."""
    pair.inside(lambda worker: setattr(worker._engine.weights, "_install", lambda tensors: None))
    try:
        pair.refused()
    finally:
        pair.inside(lambda worker: delattr(worker._engine.weights, "_install"))
    pair.sync()


# ----------------------------------------------------------------------------------------------- into the vLLM model


def reload_publicly(pair, publicly=True):
    """Have the engine use vLLM's own reload, as for a model whose layout is not known, or the quick way again."""

    def change(worker):
        receiver = worker._engine.weights
        receiver.__dict__.pop("installer", None)
        if publicly:
            receiver.installer = None

    pair.inside(change)


def test_the_quick_way_is_known_for_this_vllm_and_gives_the_same_log_probs_as_its_own_reload(pair):
    """If a new vLLM has other layers, this says so; the engines reload the public way then."""
    assert pair.inside(lambda worker: worker._engine.weights.installer is not None)
    pair.sync()
    quick = pair.inside(lambda worker, rows=pair.probes: worker._engine.score(rows))
    reload_publicly(pair)
    try:
        pair.sync()
        assert quick == pair.inside(lambda worker, rows=pair.probes: worker._engine.score(rows))
        pair.update()
        pair.sync()
    finally:
        reload_publicly(pair, publicly=False)
    pair.sync()


@tied_only
@pytest.mark.parametrize("way", ["quick", "public"])
def test_a_tied_head_that_keeps_its_packed_old_weights_is_noticed(pair, way):
    """On CPU the head computes with a packed copy of the embedding: vLLM's reload forgets it unless it is sent too."""

    def forget(worker):
        receiver = worker._engine.weights
        if way == "public":
            receiver.installer, receiver.tied = None, False
        else:
            kept = [t for t in receiver.installer._targets if type(t.module).__name__ != "ParallelLMHead"]
            receiver.installer._targets = tuple(kept)

    def restore(worker):
        worker._engine.weights.tied = True
        worker._engine.weights.__dict__.pop("installer")

    pair.inside(forget)
    try:
        pair.refused()
    finally:
        pair.inside(restore)
    pair.sync()


def test_adapters_are_added_to_the_base_weights_in_the_engine(pair, model_directory, request):
    """What a LoRA learner publishes: W' = W + B · A, against the same sum made here."""
    import torch
    from transformers import AutoModelForCausalLM

    from actors.weights.transports import Publisher

    tied = "untied" not in request.node.name
    model = AutoModelForCausalLM.from_pretrained(str(model_directory(tied=tied)), dtype=torch.float32)
    layer = "model.layers.1.mlp.down_proj"
    weight = model.get_submodule(layer).weight
    down, up = torch.randn(2, weight.shape[1]), torch.randn(weight.shape[0], 2)
    publisher = Publisher()
    adapters = [(f"{layer}.lora_A.weight", down), (f"{layer}.lora_B.weight", up)]
    shipment = publisher.publish(adapters, 5, Route())
    with torch.no_grad():
        weight += up @ down
        rows = [torch.tensor([row.prompt_ids + row.token_ids]) for row in pair.probes]
        logits = [model(ids).logits[0].log_softmax(-1) for ids in rows]
    expected = tuple(
        tuple(scores[len(row.prompt_ids) - 1 + i, token].item() for i, token in enumerate(row.token_ids))
        for row, scores in zip(pair.probes, logits, strict=True)
    )
    assert pair.sync(Delivery(5, shipment, pair.probes, expected, TOLERANCE)).worst < TOLERANCE
    pair.sync()


def test_a_probe_that_fills_the_engine_is_refused_by_its_setting(pair):
    from actors.records import Row

    row = Row((5,) * 80, (6,) * 8)
    with pytest.raises(ValueError, match=r"a probe row has 88 tokens .* 87: lower sync.check_tokens"):
        pair.inside(lambda worker: worker._engine.score([row]))
    assert len(pair.inside(lambda worker: worker._engine.score([Row((5,) * 80, (6,) * 7)]))[0]) == 7
