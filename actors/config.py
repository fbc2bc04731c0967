"""Settings of the three kinds of actors. Frozen, ``extra="forbid"``; every field has a reader."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every configuration section."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RolloutConfig(Section):
    """vLLM rollout workers: one in-process engine per Ray actor."""

    workers: int = Field(1, ge=1, description="number of engines")
    cpus: float = Field(1.0, gt=0, description="CPU cores reserved per engine (fractions share a core)")
    gpus: float = Field(0.0, ge=0, description="GPUs per engine; 0 uses vLLM's CPU backend")
    threads: int = Field(1, ge=1, description="compute threads per engine on the CPU backend")
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_prompt_tokens: int = Field(512, ge=1, description="longest prompt accepted")
    max_new_tokens: int = Field(256, ge=1, description="token limit of a completion")
    temperature: float = Field(1.0, gt=0, description="sampling temperature in training")
    thinking: bool = Field(False, description="let a chat template that knows a thinking mode use it")
    concurrency: int = Field(256, ge=1, description="sequences an engine decodes at once (vLLM max_num_seqs)")
    kv_cache_mib: int = Field(64, ge=8, description="KV cache per engine on the CPU backend, MiB")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of GPU memory the engine may use")
    deadline_s: float = Field(600.0, gt=0, description="longest wait for one batch of completions")
    start_deadline_s: float = Field(600.0, gt=0, description="longest wait for an engine to start")


class LearnerConfig(Section):
    """DeepSpeed learner ranks."""

    ranks: int = Field(1, ge=1, description="data-parallel ranks, one Ray actor each")
    cpus: float = Field(1.0, gt=0, description="CPU cores reserved per rank")
    gpus: float = Field(0.0, ge=0, description="GPUs per rank; 0 trains on CPU with gloo")
    threads: int = Field(1, ge=1, description="compute threads per rank on CPU")
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="DeepSpeed ZeRO stage")
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    lr: float = Field(1e-6, gt=0, description="AdamW learning rate")
    warmup_steps: int = Field(0, ge=0, description="linear warm-up updates")
    schedule: Literal["constant", "linear"] = Field(
        "constant", description="learning rate after warm-up: as it is, or falling to zero at the run's last update"
    )
    weight_decay: float = Field(0.0, ge=0)
    beta2: float = Field(0.95, gt=0, lt=1, description="AdamW second moment decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping norm")
    micro_batch_tokens: int = Field(16384, ge=1, description="padded tokens of one forward and backward pass per rank")
    gradient_checkpointing: bool = False
    replay_weight: float = Field(0.0, ge=0, description="weight of the imitation term on replayed dialogues")
    deadline_s: float = Field(600.0, gt=0, description="longest wait for one update")
    start_deadline_s: float = Field(600.0, gt=0, description="longest wait for the ranks to start")


class AlgorithmConfig(Section):
    """GRPO (Shao et al. 2024) and the two corrections most runs want."""

    name: Literal["grpo"] = "grpo"
    clip_low: float = Field(0.2, gt=0, lt=1, description="lower clip of the importance ratio")
    clip_high: float = Field(0.2, gt=0, description="upper clip of the importance ratio (larger = clip-higher)")
    normalise_std: bool = Field(True, description="divide advantages by the group's reward deviation")
    updates_per_batch: int = Field(1, ge=1, description="optimizer updates on each batch of rollouts")


class GroundTruthConfig(Section):
    """The pool of solver processes."""

    workers: int = Field(1, ge=1, description="solver processes, one Ray actor each")
    cpus: float = Field(1.0, gt=0, description="CPU cores reserved per solver process")
    chunk: int = Field(128, ge=1, description="instances per request; eight times as many where they move as arrays")
    deadline_s: float = Field(60.0, gt=0, description="longest wait for one request before its process is replaced")
    start_deadline_s: float = Field(600.0, gt=0, description="longest wait for a process to start")
    retries: int = Field(2, ge=0, description="how often a request is sent again after a time-out or a dead process")


class SyncConfig(Section):
    """Weight synchronisation and its check."""

    check_tokens: int = Field(64, ge=1, description="sampled tokens recomputed in the learner after each sync")
    tolerance: float = Field(
        0.05, gt=0, description="largest allowed mean |log-prob difference| (nats) of those tokens"
    )
    deadline_s: float = Field(300.0, gt=0, description="longest wait for all engines to hold the new weights")
