"""Model FLOPs utilisation of the learner on one GPU, with packed and with padded rows. Needs CUDA."""

from __future__ import annotations

import dataclasses
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.learner import free_port

PROMPTS, SIBLINGS, REPEATS = 8, 8, 4


def run() -> dict[str, float]:
    """A Qwen3-0.6B of random weights, bfloat16, ZeRO 1: medians of ``packed`` and ``padded`` updates on the same batch.

    ``*_mfu`` is the useful arithmetic of that kind ÷ the device's peak, where that is known. Packing needs less of it,
    so ``speedup`` (padded ÷ packed seconds) says more.
    """
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("the benchmark mfu needs an NVIDIA GPU; on CPU see: python -m benchmarks learner")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        port = free_port()
        for name, packing in (("packed", "packed"), ("padded", "none")):
            found = measure(folder, port, packing)
            figures |= {f"{name}_{key}": value for key, value in found.items()}
    figures["speedup"] = figures["padded_update_s"] / figures["packed_update_s"]
    return figures


def measure(model: str, port: int, packing: Any, **settings: Any) -> dict[str, float]:
    """Median seconds of an update, batch tokens per second, and MFU where the device's peak is known."""
    from actors.config import AlgorithmConfig, LearnerConfig
    from actors.learner import LearnerRank
    from actors.records import Batch

    chosen = {"gpus": 1, "zero_stage": 1, "micro_batch_tokens": 16384, "gradient_checkpointing": True, **settings}
    learner = LearnerRank(model, LearnerConfig(packing=packing, **chosen), AlgorithmConfig(aggregation="token"), 1.0)
    learner.setup(0, "127.0.0.1", port)
    rows = batch_rows()
    batch = Batch(tuple(dataclasses.replace(r, logprobs=tuple(s)) for r, s in zip(rows, learner.score(rows))))
    seconds, curve = [], []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        curve.append(learner.update(batch).metrics)  # they are read back from the device, so it is done
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    found = {"update_s": median, "tokens_per_s": sum(map(len, rows)) / median}
    if "perf/mfu" in curve[0]:
        found["mfu"] = statistics.median(metrics["perf/mfu"] for metrics in curve[1:])
    return found


def batch_rows() -> list[Any]:
    """Groups of eight: prompts of 300 tokens, 400 to 1 200 generated."""
    from actors.records import Row

    rng = random.Random(0)
    out = []
    for _ in range(PROMPTS):
        prompt = tuple(rng.randrange(1000) for _ in range(300))
        for _ in range(SIBLINGS):
            generated = tuple(rng.randrange(1000) for _ in range(rng.randint(400, 1200)))
            out.append(Row(prompt, generated, rng.gauss(0, 1)))
    return out


def write_model(directory: Path) -> None:
    """Random weights in the shape of Qwen3-0.6B."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151936}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**shape, **heads, tie_word_embeddings=True)).to(torch.bfloat16).save_pretrained(
        directory
    )
