"""Settings of the three kinds of actors. Frozen, ``extra="forbid"``; every field has a reader."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from actors.algorithms.objective import Objective
from actors.algorithms.resolution import resolve


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
    update_in_flight: bool = Field(
        False,
        description="load new weights between two decoding steps of what is being sampled, instead of after it; long "
        "completions then span versions, and a run no longer repeats exactly",
    )
    compile: bool | None = Field(
        None,
        description="let vLLM compile the model (null: on GPUs). On CPUs sampling takes a tenth less time, the first "
        "start on a machine half a minute more, later ones ten seconds",
    )
    kv_cache_mib: int = Field(64, ge=8, description="KV cache per engine on the CPU backend, MiB")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of GPU memory the engine may use")
    deadline_s: float = Field(600.0, gt=0, description="longest wait for one batch of completions")
    start_deadline_s: float = Field(600.0, gt=0, description="longest wait for an engine to start")


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021) beside linear layers; W + alpha / rank · B · A is what the engines sample."""

    rank: int = Field(16, ge=1, description="inner width of an adapter")
    alpha: int = Field(32, ge=1, description="adapters are multiplied by alpha / rank")
    targets: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear", description="names of the layers that get one, such as q_proj; all-linear: all but the head"
    )


class LearnerConfig(Section):
    """DeepSpeed learner ranks."""

    ranks: int = Field(1, ge=1, description="data-parallel ranks, one Ray actor each")
    cpus: float = Field(1.0, gt=0, description="CPU cores reserved per rank")
    gpus: float = Field(0.0, ge=0, description="GPUs per rank; 0 trains on CPU with gloo")
    threads: int = Field(1, ge=1, description="compute threads per rank on CPU")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0,
        description="DeepSpeed ZeRO stage; in bfloat16, 0 adds micro-batches up in bfloat16, the others in float32",
    )
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    offload: Literal["none", "optimizer"] = Field(
        "none", description="optimizer: AdamW and its state stay in the host's memory; needs zero_stage 1 or more"
    )
    lora: LoraConfig | None = Field(None, description="train low-rank adapters in place of all weights")
    lr: float = Field(1e-6, ge=0, description="AdamW learning rate; 0 changes nothing and shows the mismatch alone")
    warmup_steps: int = Field(0, ge=0, description="linear warm-up updates")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="learning rate after warm-up: as it is, or falling to zero at the run's last update, "
        "in a line or along a half cosine",
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    beta2: float = Field(0.95, gt=0, lt=1, description="AdamW second moment decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping norm")
    micro_batch_tokens: int = Field(
        16384, ge=1, description="computed tokens of one forward and backward pass per rank, padding of rows included"
    )
    packing: Literal["auto", "packed", "none"] = Field(
        "auto",
        description="packed: no row is padded, rows of one prompt compute it once; auto: where the model's attention "
        "is full and causal in every layer",
    )
    compile: bool = Field(
        False,
        description="compile the decoder layers (torch.compile). On CPUs an update takes a sixth less time, the first "
        "one on a machine half a minute more, that of later runs ten seconds",
    )
    gradient_checkpointing: bool = Field(False, description="compute activations again in the backward pass")
    replay_weight: float = Field(0.0, ge=0, description="weight of the imitation term on replayed dialogues")
    deadline_s: float = Field(600.0, gt=0, description="longest wait for one update")
    start_deadline_s: float = Field(600.0, gt=0, description="longest wait for the ranks to start")

    @model_validator(mode="after")
    def _consistent(self) -> LearnerConfig:
        if self.offload != "none" and not self.zero_stage:
            raise ValueError(
                f"learner.offload = {self.offload} needs learner.zero_stage = 1, 2 or 3 (now 0): DeepSpeed keeps no "
                "optimizer part of its own without ZeRO"
            )
        if self.compile and self.zero_stage == 3:
            raise ValueError(
                "learner.compile = true cannot be with learner.zero_stage = 3, which fetches weights inside a layer: "
                "turn compile off or take stage 0, 1 or 2"
            )
        return self


class CorrectionConfig(Section):
    """Importance weights for rollouts of another policy than the learner before its update: numerics, older weights."""

    level: Literal["auto", "none", "token", "sequence", "geometric"] = Field(
        "auto",
        description="what one weight covers: a token, a completion (product or geometric mean of its tokens' ratios); "
        "auto: token when rollouts may lag behind the learner, else none",
    )
    mode: Literal["truncate", "mask"] = Field(
        "truncate", description="weights outside of low..high: moved to the bound, or set to 0"
    )
    low: float | None = Field(
        None,
        ge=0,
        le=1,
        description="lowest weight; 1 is no mismatch (null: 0; mask: 0.5 for tokens, 0.99 for geometric)",
    )
    high: float | None = Field(
        None, ge=1, description="highest weight; 1 is no mismatch (null: 2; mask: 5 for tokens, 1.01 for geometric)"
    )


class KlConfig(Section):
    """Penalty for leaving the frozen initial weights; a coefficient of 0 needs no copy of them."""

    coefficient: float = Field(0.0, ge=0, description="weight of the penalty per token, in nats; 0: none")
    estimator: Literal["k1", "k2", "k3"] | None = Field(
        None,
        description="d, d²/2 or e^-d - 1 + d of the log-prob difference d (null: k3; k1 for reinforce_plus_plus); "
        "the gradient of k1 in the loss is zero in the mean",
    )
    place: Literal["loss", "reward"] | None = Field(
        None, description="a term of the loss, or subtracted from rewards (null: loss; reward for reinforce_plus_plus)"
    )


class FilterConfig(Section):
    """Which groups are trained on."""

    zero_variance: bool | None = Field(
        None, description="drop groups of equal rewards (null: true; false for reinforce_plus_plus)"
    )
    snr: float | None = Field(
        None,
        gt=0,
        le=1,
        description="keep the fewest groups that hold this share of the summed reward variance (RAGEN-2: 0.9)",
    )


class OverlongConfig(Section):
    """Reward lost near the token limit (DAPO, Yu et al. 2025)."""

    buffer: float | None = Field(
        None,
        ge=0,
        le=1,
        description="last share of rollout.max_new_tokens, over which it grows (null: 0; 0.2 for dapo)",
    )
    penalty: float = Field(1.0, gt=0, description="what a completion at the limit loses")


class DynamicSamplingConfig(Section):
    """Further prompts in place of groups without a signal (DAPO, Yu et al. 2025)."""

    rounds: int | None = Field(
        None, ge=0, description="how often a step may ask for more prompts (null: 0; 3 for dapo)"
    )


class AlgorithmConfig(Section):
    """The policy-gradient algorithm. A setting left out (null) has the named algorithm's own value."""

    name: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus"] = Field(
        "grpo", description="sets advantages, surrogate and every setting below that is null"
    )
    clip_low: float | None = Field(
        None, gt=0, le=1, description="lower clip of the importance ratio (null: 0.2; gspo 0.0003; cispo 1)"
    )
    clip_high: float | None = Field(
        None, gt=0, description="upper clip of the importance ratio (null: 0.2; dapo 0.28; gspo 0.0004; cispo 4)"
    )
    normalise_std: bool | None = Field(
        None, description="divide advantages by the deviation of rewards (null: true; false for dr_grpo and rloo)"
    )
    aggregation: Literal["token", "sequence", "constant"] | None = Field(
        None,
        description="what counts the same: tokens, completions, or tokens as if each completion were max_new_tokens "
        "long (null: sequence for grpo and gspo; constant for dr_grpo and rloo; token for the others)",
    )
    updates_per_batch: int = Field(1, ge=1, description="optimizer updates on each batch of rollouts")
    old_logprobs: Literal["rollout", "learner"] | None = Field(
        None,
        description="whose log-probs the ratio compares with: as sampled, or the learner's before the batch's first "
        "update (null: learner where a correction is active, else rollout)",
    )
    correction: CorrectionConfig = CorrectionConfig()
    kl: KlConfig = KlConfig()
    filters: FilterConfig = FilterConfig()
    outcome_weights: dict[str, float] = Field(
        default_factory=dict, description="factors on the advantages of completions with these outcomes"
    )
    overlong: OverlongConfig = OverlongConfig()
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> AlgorithmConfig:
        negative = {name: value for name, value in self.outcome_weights.items() if not 0 <= value < math.inf}
        if negative:
            raise ValueError(f"algorithm.outcome_weights must be finite and at least 0, not {negative}")
        self.resolved(lag=1)
        return self

    def resolved(self, lag: int) -> Objective:
        """Every choice made, for rollouts up to ``lag`` updates behind the learner."""
        return resolve(self, lag)


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

    transport: Literal["auto", "shared_memory", "object_store", "disk", "nccl", "ipc"] = Field(
        "auto",
        description="how weights travel: memory of one node, Ray's object store between nodes, files on a shared disk, "
        "NCCL between GPUs, CUDA IPC within one; auto takes the quickest that the placement allows",
    )
    directory: str | None = Field(None, description="folder on a disk that all nodes share, for transport = disk")
    bucket_mib: int = Field(256, ge=1, description="weights gathered and moved at once, MiB")
    check_tokens: int = Field(64, ge=1, description="sampled tokens recomputed in the learner after each sync")
    tolerance: float = Field(
        0.05, gt=0, description="largest allowed mean |log-prob difference| (nats) of those tokens"
    )
    deadline_s: float = Field(300.0, gt=0, description="longest wait for all engines to hold the new weights")

    @model_validator(mode="after")
    def _disk_has_a_directory(self) -> SyncConfig:
        if (self.transport == "disk") != (self.directory is not None):
            raise ValueError(
                f"sync.directory = {self.directory!r} with sync.transport = {self.transport}: disk needs a directory "
                "that all nodes share, and no other transport writes to one"
            )
        return self
