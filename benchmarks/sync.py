"""Weight synchronisation on CPU by stage, each beside the same copy, repack or forward pass measured alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from actors.records import Delivery, Row
from actors.weights.shipment import Shipment
from benchmarks.small_model import SPEC, write_model

ROUNDS = 15
TOLERANCE = 1e-3


def run() -> dict[str, float]:
    """Least seconds of several rounds with one learner rank and one engine, in which all of it takes turns.

    ``ratio`` = one whole sync as the driver makes it (every stage, calls between processes included) ÷ the sum of what
    cannot be left out, each measured alone in warm memory: one copy of all weights, one of those that the engine does
    not pack, the packing of the others, and the forward passes of the check on either side. ``move_ratio`` leaves the
    check out of both.
    """
    from actors.config import AlgorithmConfig, LearnerConfig, RolloutConfig
    from actors.learner_group import LearnerGroup
    from actors.rollout_pool import RolloutPool
    from cluster.config import ClusterConfig
    from cluster.session import connect
    from environments.registry import load_environment
    from orchestrator.config import NewModelConfig

    def place(name: str, attempt: int) -> dict[str, Any]:
        return {"num_cpus": 0.5}

    with (
        tempfile.TemporaryDirectory() as folder,
        connect(ClusterConfig(dashboard=False, object_store_mib=256), "sync"),
    ):
        model = write_model(Path(folder), NewModelConfig(hidden=512, layers=10, heads=8))
        tasks = load_environment(*SPEC).validation().tasks[:4]
        engines = RolloutConfig(dtype="float32", max_prompt_tokens=96, max_new_tokens=32)
        rollouts = RolloutPool(model, engines, SPEC, place)
        learner = LearnerGroup(model, LearnerConfig(dtype="float32"), AlgorithmConfig(), 1.0, place)
        learner.start()
        rollouts.wait_ready()
        probes = tuple(rollouts.probe(tasks, 16))
        rounds = [_round(learner, rollouts, probes) for _ in range(ROUNDS)]
    least = {name: min(found[name] for found in rounds) for name in rounds[0]}
    moved = ("put", "read", "load", "repack")
    copies = least["put_alone_s"] + least["load_alone_s"] + least["repack_alone_s"]
    alone = copies + least["expect_alone_s"] + least["check_alone_s"]
    return {
        "ratio": least["whole_s"] / alone,
        "move_ratio": (least["gather_s"] + sum(least[f"{stage}_s"] for stage in moved)) / copies,
        "unavoidable_s": alone,
        **least,
    }


def _round(learner: Any, rollouts: Any, probes: Sequence[Row]) -> dict[str, float]:
    import ray

    started = time.perf_counter()
    shipment = learner.publish()
    expected = tuple(map(tuple, learner.score(probes, 1.0)))
    rollouts.deliver(Delivery(learner.version, shipment, tuple(probes), expected, TOLERANCE), 300.0)
    rollouts.settle()
    found = {"whole_s": time.perf_counter() - started, "bytes": float(shipment.size)}
    for actor, measure in ((learner._ranks[0], _learner_stages), (rollouts._actors[0], _engine_stages)):
        found |= ray.get(actor.__ray_call__.remote(measure, shipment, probes), timeout=300)
    return found


def _learner_stages(rank: Any, shipment: Shipment, probes: Sequence[Row]) -> dict[str, float]:
    """gather: go through the weights; put: write them; expect: their log-probs of the probes."""
    import torch

    from actors.micro_batch import build
    from actors.weights.shipment import SHARED_MEMORY

    tensors = dict(rank.weights())
    copies = _warm(tensors)
    layout = build(list(probes), dict.fromkeys(map(id, probes), 0.0), rank._layout, rank.device).layout

    def put() -> None:
        rank._publisher.publish(tensors.items(), shipment.version, SHARED_MEMORY, [shipment.slot])

    def forward() -> None:
        with torch.no_grad():
            rank.model.lm_head(layout.hidden(rank.model.model)).float().log_softmax(-1)

    put()  # the first time in this slot the pages are fresh
    return {
        "gather_s": _seconds(lambda: dict(rank.weights())),
        "put_s": _seconds(put),
        "put_alone_s": _seconds(lambda: _copy(copies, tensors)),
        "expect_s": _seconds(lambda: rank.score(probes, 1.0)),
        "expect_alone_s": _seconds(forward),
    }


def _engine_stages(worker: Any, shipment: Shipment, probes: Sequence[Row]) -> dict[str, float]:
    """read: map and view; load: copy what is not packed; repack: the rest; check: log-probs of the probes."""
    receiver = worker._engine.weights

    def read() -> None:
        with receiver.opened(shipment):
            pass

    found = {"read_s": _seconds(read)}
    with receiver.opened(shipment) as tensors:
        found["load_s"] = _seconds(lambda: receiver.installer.copy(tensors))
        found["repack_s"] = _seconds(lambda: receiver.installer.pack(tensors))
        plain, packed = _apart(receiver.installer, tensors)
        copies = _warm(plain)
        found["load_alone_s"] = _seconds(lambda: _copy(copies, plain))
    found["repack_alone_s"] = _seconds(lambda: _pack(packed))
    found["check_s"] = _seconds(lambda: worker._engine.score(probes))
    prompts = [row.prompt_ids + row.token_ids for row in probes]
    prefill = lambda: worker._engine.generate(prompts, [0] * len(prompts), temperature=0.0, max_new_tokens=1)  # noqa: E731
    worker._engine._llm.reset_prefix_cache()
    found["check_alone_s"] = _seconds(prefill)
    return found


def _apart(installer: Any, tensors: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """What the engine reads as it is, and (method, own copy of the stacked weight) of each module that packs."""
    import torch

    plain: dict[str, Any] = {}
    packed = []
    for target in installer._targets:
        if target.kept:
            plain |= {name: tensors[name] for name in target.sources}
        if target.packs:
            parts = [tensors[name] for name in target.sources] or [target.module.weight]
            packed.append((target.module.quant_method, torch.cat(parts)))
    return plain, packed


_HELD: list[Any] = []
"""Packed weights of the round before: each is let go when its successor is there, as an engine does."""


def _pack(weights: Sequence[tuple[Any, Any]]) -> None:
    import torch

    for i, (method, weight) in enumerate(weights):
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        method.process_weights_after_loading(layer)
        _HELD[i : i + 1] = [layer]


def _warm(tensors: dict[str, Any]) -> dict[str, Any]:
    """Room for copies whose pages have been touched: a first write would measure the kernel, not the copy."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _copy(targets: dict[str, Any], tensors: dict[str, Any]) -> None:
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
