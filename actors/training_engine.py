"""The model of one rank inside DeepSpeed: how it is loaded, sharded and stepped."""

from __future__ import annotations

import os
from typing import Any

from actors.config import LearnerConfig
from actors.lora import inject
from actors.packing import packable, use_packing
from actors.sequences import policy_module


def join(rank: int, host: str, port: int, config: LearnerConfig) -> None:
    """Join the process group of all ranks, which meet at rank 0's address."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(config.ranks),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
    if not config.gpus:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch

    if not config.gpus:
        torch.set_num_threads(config.threads)
        # The shared-memory op needs a C++ compile of a minute; gloo alone does the same work.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="nccl" if config.gpus else "gloo", verbose=False)


def load_model(path: str, config: LearnerConfig) -> Any:
    """The causal LM in the learner's dtype, without dropout: with it, learner and engine would disagree everywhere."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, config.dtype))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    return model


def pack_rows(model: Any, config: LearnerConfig) -> bool:
    """Make the model read packed rows if it should, and say so. Raises :class:`ValueError` if it must and cannot."""
    if config.packing == "packed" and not packable(model):
        raise ValueError(
            f"learner.packing = packed needs full causal attention in every layer, which {type(model).__name__} "
            "does not have: use auto or none"
        )
    packed = config.packing != "none" and packable(model)
    if packed:
        use_packing(model)
    return packed


def has_varlen_kernel(config: LearnerConfig) -> bool:
    """Whether torch has a kernel for sequences of different length here: flash attention, bfloat16, Ampere or newer."""
    if not config.gpus or config.dtype != "bfloat16":
        return False
    from importlib.util import find_spec

    import torch

    return find_spec("torch.nn.attention.varlen") is not None and torch.cuda.get_device_capability() >= (8, 0)


def use_products(model: Any, config: LearnerConfig) -> int:
    """Give a model that reads packs the quickest matrix products; what a pack's tokens are padded to for them."""
    from actors import products

    if not products.usable(config):
        return 1
    products.use_onednn(model)
    return products.ROWS


def start(model: Any, config: LearnerConfig) -> tuple[Any, Any]:
    """Wrap a loaded model: (DeepSpeed engine, its optimizer)."""
    import deepspeed
    import torch

    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora:
        inject(model, config.lora)
    if config.compile:
        compile_layers(model)
    model.train()  # gradient checkpointing works in training mode only
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=0.0,  # set before each update; DeepSpeed makes an empty step now, which must not decay the weights
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
    )
    engine, optimizer, _, _ = deepspeed.initialize(
        model=policy_module(model), optimizer=optimizer, config=deepspeed_config(config)
    )
    if not config.zero_stage:
        engine.basic_optimizer.state.clear()  # that step would count as one in Adam's bias correction
    return engine, optimizer


def compile_layers(model: Any) -> None:
    """Each decoder layer by itself, for any number of tokens: alike as they are, they share what one is compiled to."""
    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:
            module.compile(dynamic=True)


def step(engine: Any, config: LearnerConfig, *, last: bool) -> float | None:
    """End a pass; after an update's ``last`` the weights move, and the gradient's norm before clipping comes back."""
    import torch

    norm: Any = None
    if last and not clips_itself(config):
        parameters = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
    engine.step()
    if last and clips_itself(config):
        norm = engine.get_global_grad_norm()
    return None if norm is None else float(norm)


def clips_itself(config: LearnerConfig) -> bool:
    """Whether DeepSpeed clips the gradient. Without ZeRO in float32 it would, but keep no norm to report."""
    return config.zero_stage > 0 or config.dtype == "bfloat16"


def deepspeed_config(config: LearnerConfig) -> dict[str, Any]:
    """DeepSpeed's settings. Micro-batches vary in size, so the learner sets accumulation boundaries itself."""
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": bool(config.gpus)}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.max_grad_norm if clips_itself(config) else 0.0,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "zero_optimization": zero,
        # Its own CPU optimizer would be compiled at the first start; torch's AdamW steps on the host as well.
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    if config.dtype == "bfloat16" and config.zero_stage:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}  # without ZeRO DeepSpeed has no such choice
    return settings
