"""One DeepSpeed rank of the learner: algorithm-blind apart from the loss function it calls.

It gets rows of tokens with advantages and makes the optimizer updates of a batch. Every rank receives the whole batch,
takes its own part, and runs the same number of forward and backward passes as its peers (a collective would hang
otherwise).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors import checkpoints, flops, lora, training_engine
from actors.algorithms import policy_loss, token_weights, training_metrics
from actors.config import AlgorithmConfig, LearnerConfig
from actors.micro_batch import LayoutKind, MicroBatch, build, cut, deal
from actors.packing import room
from actors.records import Batch, Row, UpdateResult
from actors.schedule import rate_factor
from actors.sequences import policy_module
from actors.weights.gathering import gathered

if TYPE_CHECKING:
    import torch


class LearnerRank:
    """One rank. Ray places it; ``setup`` joins the group."""

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        temperature: float,
        total_updates: int | None = None,
        *,
        lag: int = 0,
        max_new_tokens: int | None = None,
    ) -> None:
        """``total_updates`` is the run's number of optimizer updates, which a falling learning rate needs to know;
        ``lag`` how many batches rollouts may be behind; ``max_new_tokens`` the token limit of a completion."""
        rate_factor(0, config.schedule, warmup=config.warmup_steps, total=total_updates)
        self._objective = algorithm.resolved(lag)
        if self._objective.aggregation == "constant" and max_new_tokens is None:
            raise ValueError("algorithm.aggregation = constant needs max_new_tokens, the limit of a completion")
        self._model_path, self._config = model, config
        self._temperature, self._total_updates, self._max_new_tokens = temperature, total_updates, max_new_tokens or 0
        self.version = self.updates = 0

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
        training_engine.join(rank, host, port, config)
        import torch

        self.rank = rank
        self.device = torch.device("cuda" if config.gpus else "cpu")
        self.model = training_engine.load_model(self._model_path, config)
        self._packed = training_engine.pack_rows(self.model, config)
        self._layout: LayoutKind = "padded"
        if self._packed:
            self._layout = "varlen" if training_engine.has_varlen_kernel(config) else "grid"
        self._multiple = training_engine.use_products(self.model, config) if self._packed else 1
        self._room = room(config.micro_batch_tokens, self._multiple)
        self.engine, self.optimizer = training_engine.start(self.model, config)
        self._frozen: Any = None
        if self._objective.kl.coefficient and not config.lora:
            frozen = training_engine.load_model(self._model_path, config)
            training_engine.pack_rows(frozen, config)
            self._frozen = policy_module(frozen.requires_grad_(False).eval().to(self.device))

    # -------------------------------------------------------------------------------------------------------- training

    def update(self, batch: Batch) -> UpdateResult:
        """All optimizer updates on a batch; metrics are their means. Each loss term has its own global token count."""
        started = time.perf_counter()
        policy, replay = self._policy_passes(batch.rows), self._replay_passes(batch.replay)
        if self._objective.old_logprobs == "learner" and self._objective.updates_per_batch > 1:
            for item in policy:
                item.old = self._log_probs(item)
        if self._objective.kl.in_loss():
            with self._reference() as module:
                for item in policy:
                    item.reference = self._log_probs(item, module)
        curve = [self._optimize(policy, replay, batch) for _ in range(self._objective.updates_per_batch)]
        self.version += 1
        metrics = {name: sum(values[name] for values in curve) / len(curve) for name in curve[0]}
        return UpdateResult(self.version, metrics | self._utilisation(policy + replay, time.perf_counter() - started))

    def _policy_passes(self, rows: Sequence[Row]) -> list[MicroBatch]:
        shares = token_weights(rows, self._objective, self._max_new_tokens)
        return self._passes(rows, {id(row): share for row, share in zip(rows, shares, strict=True)})

    def _replay_passes(self, rows: Sequence[Row]) -> list[MicroBatch]:
        tokens = sum(len(row.token_ids) for row in rows)
        return self._passes(rows, {id(row): self._config.replay_weight / tokens for row in rows})

    def _passes(self, rows: Sequence[Row], weights: dict[int, float]) -> list[MicroBatch]:
        config = self._config
        parts = cut(rows, config.ranks, self.rank, self._room, packed=self._packed)
        return [self._build(part, weights) for part in parts]

    def _build(self, rows: list[Row], weights: dict[int, float]) -> MicroBatch:
        return build(rows, weights, self._layout, self.device, multiple=self._multiple)

    def _optimize(self, policy: list[MicroBatch], replay: list[MicroBatch], batch: Batch) -> dict[str, float]:
        """One optimizer update; its metrics, global over the ranks."""
        totals: dict[str, torch.Tensor] = {}
        factor = rate_factor(
            self.updates, self._config.schedule, warmup=self._config.warmup_steps, total=self._total_updates
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self._config.lr * factor
        passes = [(self._policy_term, item) for item in policy] + [(self._replay_term, item) for item in replay]
        norm: float | None = None
        for i, (term, item) in enumerate(passes):
            loss, statistics = term(item)
            self.engine.set_gradient_accumulation_boundary(i == len(passes) - 1)
            # DeepSpeed averages gradients over ranks; the terms are sums over the global batch.
            self.engine.backward(loss * self._config.ranks)
            norm = training_engine.step(self.engine, self._config, last=i == len(passes) - 1)
            for name, value in statistics.items():
                totals[name] = totals[name] + value.float() if name in totals else value.float()
        self.updates += 1
        metrics = self._metrics(totals, batch)
        if norm is not None:
            metrics["policy/grad_norm"] = norm
        return metrics | {"policy/learning_rate": self._config.lr * factor}

    def _policy_term(self, item: MicroBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logprobs, entropy = self.engine(item.layout, self._temperature)
        tokens = item.tokens(logprobs, proximal=self._objective.old_logprobs == "learner")
        loss, statistics = policy_loss(tokens, self._objective)
        return loss, {**statistics, "loss": loss.detach(), "entropy": entropy.sum()}

    def _replay_term(self, item: MicroBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logprobs, _ = self.engine(item.layout, self._temperature)
        return -(logprobs * item.weights).sum(), {"replay_nll": -logprobs.detach().sum()}

    def _metrics(self, totals: dict[str, torch.Tensor], batch: Batch) -> dict[str, float]:
        import torch
        import torch.distributed as dist

        if not totals:
            return {}
        names = sorted(totals)
        values = torch.stack([totals[name] for name in names])
        if self._config.ranks > 1:
            dist.all_reduce(values)
        sums = dict(zip(names, values.tolist(), strict=True))
        out: dict[str, float] = {}
        if batch.rows:
            count = sum(len(row.token_ids) for row in batch.rows)
            out |= training_metrics(sums, count)
            out["loss/policy"] = sums["loss"] - sums.get("kl_loss", 0.0)
            out["policy/entropy"] = sums["entropy"] / count
        if batch.replay:
            out["loss/replay"] = sums["replay_nll"] / sum(len(row.token_ids) for row in batch.replay)
        return out

    def _utilisation(self, passes: list[MicroBatch], seconds: float) -> dict[str, float]:
        """MFU of this rank, on a GPU whose peak is known. Passes without gradient count in the time only."""
        if not self._config.gpus:
            return {}
        import torch

        peak = flops.peak_flops(torch.cuda.get_device_name())
        if peak is None:
            return {}
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in self.model.parameters())
        work = flops.work([item.rows for item in passes], shared=self._packed)
        useful = flops.training_flops(self.model.config, parameters, work, frozen=self._config.lora is not None)
        return {"perf/mfu": self._objective.updates_per_batch * useful / (seconds * peak)}

    # --------------------------------------------------------------------------------------------------------- scoring

    def score(self, rows: Sequence[Row], temperature: float | None = None) -> list[list[float]]:
        """Log-probs (nats) of each row's generated tokens under the current weights, by default at the sampling
        temperature. Every rank computes all rows, and all ranks must be called."""
        parts = cut(rows, 1, 0, self._room, packed=self._packed)
        found = self._by_row(parts, lambda item: self._log_probs(item, temperature=temperature))
        return [found[id(row)] for row in rows]

    def reference(self, rows: Sequence[Row]) -> dict[int, list[float]]:
        """The same under the frozen initial weights, of this rank's part of the rows by their number.

        Raises :class:`ValueError` if no KL term asked for those weights.
        """
        config = self._config
        with self._reference() as module:
            parts = cut(rows, config.ranks, self.rank, self._room, packed=self._packed)
            found = self._by_row(parts, lambda item: self._log_probs(item, module))
        return {i: found[id(rows[i])] for i in deal(rows, config.ranks)[self.rank]} if rows else {}

    def _by_row(
        self, parts: list[list[Row]], log_probs: Callable[[MicroBatch], torch.Tensor]
    ) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for part in parts:
            flat = log_probs(self._build(part, {id(row): 0.0 for row in part})).tolist()
            for row in part:
                found[id(row)] = flat[: len(row.token_ids)]
                flat = flat[len(row.token_ids) :]
        return found

    def _log_probs(self, item: MicroBatch, module: Any = None, *, temperature: float | None = None) -> torch.Tensor:
        import torch

        with torch.no_grad():
            logprobs, _ = (module or self.engine)(item.layout, temperature or self._temperature)
        return logprobs

    def _reference(self) -> AbstractContextManager[Any]:
        """The frozen initial policy: a copy, or with adapters this model while they are switched off."""
        if self._config.lora:
            return lora.switched_off(self.model, self.engine)
        if self._frozen is None:
            raise ValueError("no reference model is held: it needs algorithm.kl.coefficient > 0")
        return nullcontext(self._frozen)

    # --------------------------------------------------------------------------------------------------------- weights

    def weights(self) -> Iterator[tuple[str, Any]]:
        """(Hugging Face name, tensor) pairs of what the engines need: all weights, or only the adapters.

        A collective under ZeRO-3, so every rank must iterate to the end. A tensor is valid until the next one.
        """
        trained = self._parameters(trained=True)
        return lora.adapters(trained, self._config.lora) if self._config.lora else trained

    def _parameters(self, *, trained: bool = False) -> Iterator[tuple[str, Any]]:
        named = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad or not trained)
        yield from gathered(named, sharded=self._config.zero_stage == 3)

    def save(self, directory: str) -> None:
        """DeepSpeed checkpoint (model or adapters, optimizer, version). All ranks must be called."""
        checkpoints.save(self.engine, directory, self._state(), rank=self.rank)

    def load(self, directory: str) -> int:
        """Load a checkpoint of any number of ranks; returns its version. All ranks must be called."""
        state = checkpoints.load(self.engine, directory, self._state(), rank=self.rank)
        self.version, self.updates = state.version, state.updates
        return self.version

    def _state(self) -> checkpoints.LearnerState:
        config = self._config
        return checkpoints.LearnerState(
            self.version, self.updates, config.ranks, config.zero_stage, config.lora is not None
        )

    def export(self, directory: str) -> None:
        """Hugging Face model directory with the current weights, adapters merged, and the tokenizer. All ranks must be
        called."""
        from transformers import AutoTokenizer

        pairs = [(name, tensor.cpu().clone()) for name, tensor in self._parameters()]
        if self.rank:
            return
        if self._config.lora:
            pairs = list(lora.merged(pairs, self._config.lora))
        state = dict(pairs)
        if self.model.config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.save_pretrained(Path(directory), state_dict=state)
        AutoTokenizer.from_pretrained(self._model_path).save_pretrained(directory)
