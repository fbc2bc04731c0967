"""How much memory a run needs, from the model's size and the placement, before anything is started."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import RunConfig

MIB = 1 << 20
BYTES = {"float32": 4, "bfloat16": 2}
ENGINE_BASE_MIB = 800
"""Resident memory of a vLLM process before any weight (measured on CPU, vLLM 0.32)."""
RANK_BASE_MIB = 450
"""The same for a DeepSpeed rank."""
ADAPTER_SHARE = 0.001
"""Parameters of LoRA adapters on all linear layers beside the model's, per rank: 0.0011 for Qwen3-0.6B, 0.0003 for
8B."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters, and where the number comes from."""

    parameters: int
    source: str


def model_size(config: RunConfig) -> ModelSize | None:
    """Parameters of the policy: counted from a ``config.json``, else read off a name such as ``Qwen3-4B``."""
    path = config.model.path
    if path is None:
        new = config.model.new
        per_layer = (2 + 2 * new.kv_heads / new.heads + 9) * new.hidden**2
        return ModelSize(round(new.layers * per_layer) + 1024 * new.hidden, "architecture of model.new")
    shape = Path(path) / "config.json"
    if shape.is_file():
        return ModelSize(_count(json.loads(shape.read_text())), f"{shape}")
    found = re.search(r"(\d+(?:\.\d+)?)\s*([BM])(?![a-z])", path, re.IGNORECASE)
    if not found:
        return None
    scale = 1e9 if found[2].upper() == "B" else 1e6
    return ModelSize(round(float(found[1]) * scale), f"the name {path}")


def _count(shape: dict[str, int]) -> int:
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads = shape["num_attention_heads"]
    width = shape.get("head_dim") or hidden // heads
    attention = 2 * hidden * heads * width + 2 * hidden * shape.get("num_key_value_heads", heads) * width
    embeddings = shape["vocab_size"] * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    return layers * (attention + 3 * hidden * shape["intermediate_size"]) + embeddings


def memory_rows(config: RunConfig, size: ModelSize) -> list[tuple[str, float, str]]:
    """(actor, MiB, what for) per actor: engine and learner rank.

    AdamW in mixed precision keeps 16 bytes a parameter (weight 2, gradient 2, float32 master and two moments 12), with
    ZeRO 18, since micro-batches add up in float32 there; in float32 16. ZeRO 1 shards the optimizer's part over the
    ranks, 2 the gradients too, 3 everything (Rajbhandari et al. 2020). A KL penalty needs the initial weights beside
    them; adapters need gradients and optimizer only for themselves, taken as 0.1 % of the parameters per rank.
    """
    learner, rollout = config.learner, config.rollout
    weight, half = BYTES[learner.dtype], learner.dtype == "bfloat16"
    share = learner.ranks
    trained = min(1.0, ADAPTER_SHARE * learner.lora.rank) if learner.lora else 1.0
    gradient = 4 if half and learner.zero_stage else weight
    parts = {
        "weights": weight / (share if learner.zero_stage >= 3 else 1),
        "gradients": trained * gradient / (share if learner.zero_stage >= 2 else 1),
        "optimizer": trained * (12 if half else 8) / (share if learner.zero_stage >= 1 else 1),
    }
    if config.algorithm.kl.coefficient and not learner.lora:
        parts["reference"] = weight
    mib = {name: value * size.parameters / MIB for name, value in parts.items()}
    detail = ", ".join(f"{name} {value:,.0f}" for name, value in mib.items())
    engine = BYTES[rollout.dtype] * size.parameters / MIB
    cache = "the rest of the GPU" if rollout.gpus else f"{rollout.kv_cache_mib:,}"
    base = 0 if rollout.gpus else ENGINE_BASE_MIB + rollout.kv_cache_mib
    elsewhere = mib["optimizer"] if learner.gpus and learner.offload == "optimizer" else 0.0
    rank = sum(mib.values()) - elsewhere + (0 if learner.gpus else RANK_BASE_MIB)
    note = "; the optimizer's in RAM" if elsewhere else ""
    return [
        ("rollout (each)", engine + base, f"weights {engine:,.0f}, KV cache {cache}"),
        ("learner (each)", rank, f"{detail}{note}; activations come on top"),
    ]


def memory_table(config: RunConfig) -> str:
    """The estimate as text."""
    size = model_size(config)
    if size is None:
        return f"unknown: the size of {config.model.path} is neither in a local config.json nor in its name"
    lines = [f"model: {size.parameters / 1e6:,.1f} M parameters ({size.source})"]
    where = {"rollout (each)": config.rollout.gpus, "learner (each)": config.learner.gpus}
    for actor, mib, detail in memory_rows(config, size):
        kind = "GPU" if where[actor] else "RAM"
        lines.append(f"{actor:<15} {mib:>10,.0f} MiB {kind}  ({detail})")
    return "\n".join(lines)
