"""One DeepSpeed rank of the learner: algorithm-blind apart from the loss function it calls.

It gets rows of tokens with advantages and makes one optimizer update. Every rank receives the whole batch, takes its
own stripe, and runs the same number of forward and backward passes as its peers (a collective would hang otherwise).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from actors.config import AlgorithmConfig, LearnerConfig
from actors.grpo import policy_loss
from actors.records import Batch, Row, UpdateResult
from actors.sequences import EMPTY, collate, micro_batches, policy_module


class LearnerRank:
    """One rank. Ray places it; ``setup`` joins the group."""

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        temperature: float,
        total_updates: int | None = None,
    ) -> None:
        """``total_updates`` is the length of the run, which a falling learning rate needs to know."""
        if config.schedule == "linear" and total_updates is None:
            raise ValueError("learner.schedule = linear needs total_updates, the length of the run")
        self._model_path, self._config, self._algorithm = model, config, algorithm
        self._temperature, self._total_updates = temperature, total_updates
        self.version = 0

    # ------------------------------------------------------------------------------------------------------- lifecycle

    def address(self) -> tuple[str, int]:
        """Host and a free port of this rank, for rank 0 to be the meeting point."""
        import socket

        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def setup(self, rank: int, host: str, port: int) -> None:
        """Join the process group and build model, optimizer and DeepSpeed engine."""
        config = self._config
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
        from transformers import AutoModelForCausalLM

        if not config.gpus:
            torch.set_num_threads(config.threads)
            # The shared-memory op needs a C++ compile of a minute; gloo alone does the same work.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        torch.manual_seed(0)
        deepspeed.init_distributed(dist_backend="nccl" if config.gpus else "gloo", verbose=False)
        self.rank = rank
        self.device = torch.device("cuda" if config.gpus else "cpu")
        model = AutoModelForCausalLM.from_pretrained(self._model_path, dtype=getattr(torch, config.dtype))
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        model.train()  # gradient checkpointing works in training mode only
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # dropout would make learner and engine disagree on every log-prob
        self.model = model
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.lr, betas=(0.9, config.beta2), weight_decay=config.weight_decay
        )
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=policy_module(model), optimizer=optimizer, config=self._deepspeed_config()
        )

    def _deepspeed_config(self) -> dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self._config.max_grad_norm,
            "bf16": {"enabled": self._config.dtype == "bfloat16"},
            "zero_optimization": {"stage": self._config.zero_stage},
            "steps_per_print": 10**9,
        }

    # -------------------------------------------------------------------------------------------------------- training

    def update(self, batch: Batch) -> UpdateResult:
        """One optimizer update on a batch. Each loss term is divided by its own global token count."""
        import torch

        reinforced = sum(len(row.token_ids) for row in batch.rows)
        imitated = sum(len(row.token_ids) for row in batch.replay)
        passes = [("policy", rows) for rows in self._stripe(batch.rows)]
        passes += [("replay", rows) for rows in self._stripe(batch.replay)]
        totals: dict[str, torch.Tensor] = {}
        self._set_learning_rate()
        for i, (term, rows) in enumerate(passes):
            loss, statistics = self._term(term, rows)
            scale = 1.0 / reinforced if term == "policy" else self._config.replay_weight / imitated
            self.engine.set_gradient_accumulation_boundary(i == len(passes) - 1)
            # DeepSpeed averages gradients over ranks; the terms are sums over the global batch.
            self.engine.backward(loss * scale * self._config.ranks)
            self.engine.step()
            for name, value in statistics.items():
                totals[name] = totals.get(name, torch.zeros((), device=self.device)) + value.float()
        self.version += 1
        return UpdateResult(self.version, self._metrics(totals, reinforced, imitated))

    def _set_learning_rate(self) -> None:
        """Linear warm-up, then the schedule: a function of the version alone."""
        warmup, total = self._config.warmup_steps, self._total_updates
        factor = min(1.0, (self.version + 1) / warmup) if warmup else 1.0
        if self._config.schedule == "linear" and total:
            factor *= max(0.0, 1.0 - self.version / total)
        for group in self.optimizer.param_groups:
            group["lr"] = self._config.lr * factor

    def _term(self, term: str, rows: list[Row]) -> tuple[Any, dict[str, Any]]:
        logprobs, entropy, behaviour, advantages = self._forward(rows)
        if term == "replay":
            return -logprobs.sum(), {"replay_nll": -logprobs.detach().sum()}
        algorithm = self._algorithm
        loss, statistics = policy_loss(
            logprobs, behaviour, advantages, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high
        )
        return loss, {**statistics, "loss": loss.detach(), "entropy": entropy.detach().sum()}

    def _stripe(self, rows: Sequence[Row]) -> list[list[Row]]:
        """This rank's micro-batches; all ranks get the same number of them."""
        if not rows:
            return []
        ranks, limit = self._config.ranks, self._config.micro_batch_tokens
        stripes = [micro_batches(rows[r::ranks], limit) for r in range(ranks)]
        count = max(len(stripe) for stripe in stripes)
        return stripes[self.rank] + [[EMPTY]] * (count - len(stripes[self.rank]))

    def _forward(self, rows: list[Row]) -> tuple[Any, Any, Any, Any]:
        """Log-probs and entropies of the generated tokens, flat, beside their sampled log-probs and advantages."""
        import torch

        tokens, mask = collate(rows)
        behaviour: list[float] = []
        advantages: list[float] = []
        for row in rows:
            if row is not EMPTY:
                behaviour.extend(row.logprobs or (0.0,) * len(row.token_ids))
                advantages.extend([row.advantage] * len(row.token_ids))
        logprobs, entropy = self.engine(tokens.to(self.device), mask.to(self.device), self._temperature)
        flat = [torch.tensor(x, dtype=torch.float32, device=self.device) for x in (behaviour, advantages)]
        return logprobs, entropy, flat[0], flat[1]

    def _metrics(self, totals: dict[str, Any], reinforced: int, imitated: int) -> dict[str, float]:
        import torch
        import torch.distributed as dist

        names = sorted(totals)
        values = torch.stack([totals[name] for name in names]) if names else torch.zeros(0)
        if self._config.ranks > 1:
            dist.all_reduce(values)
        sums = dict(zip(names, values.tolist(), strict=True))
        norm = self.engine.get_global_grad_norm()
        out = {"policy/learning_rate": float(self.optimizer.param_groups[0]["lr"])}
        if norm is not None:
            out["policy/grad_norm"] = float(norm)
        if reinforced:
            out |= {
                "loss/policy": sums["loss"] / reinforced,
                "policy/entropy": sums["entropy"] / reinforced,
                "policy/clip_share": sums["clipped"] / reinforced,
                "policy/kl_rollout": sums["kl"] / reinforced,
                "policy/mismatch": sums["mismatch"] / reinforced,
            }
        if imitated:
            out["loss/replay"] = sums["replay_nll"] / imitated
        return out

    def score(self, rows: Sequence[Row]) -> list[list[float]]:
        """Log-probs (nats) of each row's generated tokens under the current weights. All ranks must be called."""
        import torch

        with torch.no_grad():
            logprobs, *_ = self._forward(list(rows))
        flat, out = logprobs.tolist(), []
        for row in rows:
            out.append(flat[: len(row.token_ids)])
            flat = flat[len(row.token_ids) :]
        return out

    # --------------------------------------------------------------------------------------------------------- weights

    def weights(self) -> Iterator[tuple[str, Any]]:
        """(Hugging Face name, tensor) pairs; a collective under ZeRO-3, so every rank must iterate to the end."""
        import deepspeed

        sharded = self._config.zero_stage == 3
        for name, parameter in self.model.named_parameters():
            gather = deepspeed.zero.GatheredParameters([parameter]) if sharded else nullcontext()
            with gather:
                yield name, parameter.detach()

    def save(self, directory: str) -> None:
        """DeepSpeed checkpoint (model, optimizer, version). All ranks must be called."""
        self.engine.save_checkpoint(directory, tag="state", client_state={"version": self.version})

    def load(self, directory: str) -> int:
        """Load a checkpoint of the same number of ranks; returns its version."""
        if not (Path(directory) / "state").is_dir():
            raise FileNotFoundError(f"no learner state under {directory}")
        _, state = self.engine.load_checkpoint(directory, tag="state")
        self.version = int(state["version"])
        return self.version

    def export(self, directory: str) -> None:
        """Hugging Face model directory with the current weights and the tokenizer. All ranks must be called."""
        from transformers import AutoTokenizer

        state = {name: tensor.cpu().clone() for name, tensor in self.weights()}
        if self.rank == 0:
            if self.model.config.tie_word_embeddings:
                state["lm_head.weight"] = state["model.embed_tokens.weight"]
            self.model.save_pretrained(Path(directory), state_dict=state)
            AutoTokenizer.from_pretrained(self._model_path).save_pretrained(directory)
