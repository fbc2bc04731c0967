"""Weight synchronisation on CPU by stage, beside the copies that cannot be avoided."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.small_model import SPEC, write_model

REPEATS = 5


def run() -> dict[str, float]:
    """Medians of one learner rank and one engine. ``ratio`` = publish and load ÷ two plain copies of the same bytes
    (into the object store, and out of it into the engine)."""
    import ray

    from actors.config import AlgorithmConfig, LearnerConfig, RolloutConfig, SyncConfig
    from actors.learner_group import LearnerGroup
    from actors.rollout import RolloutPool
    from actors.weight_sync import synchronise
    from cluster.config import ClusterConfig
    from cluster.session import connect
    from environments.registry import load_environment
    from orchestrator.config import NewModelConfig

    def place(name: str, attempt: int) -> dict[str, Any]:
        return {"num_cpus": 0.5}

    with (
        tempfile.TemporaryDirectory() as folder,
        connect(ClusterConfig(dashboard=False, object_store_mib=1024), "sync"),
    ):
        model = write_model(Path(folder), NewModelConfig(hidden=512, layers=10, heads=8))
        tasks = load_environment(*SPEC).validation().tasks[:4]
        engines = RolloutConfig(dtype="float32", max_prompt_tokens=96, max_new_tokens=32)
        rollouts = RolloutPool(model, engines, SPEC, place)
        learner = LearnerGroup(model, LearnerConfig(dtype="float32"), AlgorithmConfig(), 1.0, place)
        learner.start()
        rollouts.wait_ready()
        times: dict[str, list[float]] = {"publish": [], "load": [], "whole": [], "copy": []}
        for _ in range(REPEATS + 1):
            started = time.perf_counter()
            refs = learner.publish()
            times["publish"].append(time.perf_counter() - started)
            started = time.perf_counter()
            rollouts.load(0, refs, 300.0)
            times["load"].append(time.perf_counter() - started)
            started = time.perf_counter()
            synchronise(learner, rollouts, tasks, SyncConfig(tolerance=1e-3))
            times["whole"].append(time.perf_counter() - started)
            words = [packed.words for ref in refs for packed in ray.get(ref)]
            times["copy"].append(_copy(words))
        size = sum(array.nbytes for array in words)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {
        "ratio": (median["publish"] + median["load"]) / (2 * median["copy"]),
        "bytes": float(size),
        "publish_s": median["publish"],
        "load_s": median["load"],
        "check_s": median["whole"] - median["publish"] - median["load"],
        "one_copy_s": median["copy"],
    }


def _copy(words: list[np.ndarray[Any, Any]]) -> float:
    targets = [np.empty_like(array) for array in words]
    for target in targets:
        target.fill(0)  # touch the pages: a first write would measure the kernel, not the copy
    started = time.perf_counter()
    for target, array in zip(targets, words, strict=True):
        np.copyto(target, array)
    return time.perf_counter() - started
