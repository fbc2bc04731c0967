"""How much of a bare PyTorch loop's rate is left of a DeepSpeed learner rank on the same batch."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.small_model import write_model

ROWS, REPEATS = 256, 5


def run() -> dict[str, float]:
    """Interleaved repeats in one process, one thread; medians. ``ratio_1`` = rank rate ÷ bare rate, one rank."""
    from actors.config import AlgorithmConfig, LearnerConfig
    from actors.learner import LearnerRank
    from actors.records import Batch, Row

    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder))
        config = LearnerConfig(dtype="float32", lr=3e-4)
        rank = LearnerRank(model, config, AlgorithmConfig(), 1.0)
        rank.setup(0, "127.0.0.1", rank_port())
        rng = random.Random(0)
        shapes = [(rng.choice((40, 50, 60)), rng.randint(8, 24)) for _ in range(ROWS)]
        rows = [Row(_tokens(rng, p), _tokens(rng, n), rng.gauss(0, 1)) for p, n in shapes]
        rows = [
            Row(r.prompt_ids, r.token_ids, r.advantage, tuple(s)) for r, s in zip(rows, rank.score(rows), strict=True)
        ]
        bare = bare_loop(model, config, rows)
        times: dict[str, list[float]] = {"rank": [], "bare": []}
        for _ in range(REPEATS + 1):
            times["rank"].append(_seconds(lambda: rank.update(Batch(tuple(rows)))))
            times["bare"].append(_seconds(bare))
    tokens = sum(len(row) for row in rows)
    rate = {name: tokens / statistics.median(values[1:]) for name, values in times.items()}
    return {
        "ratio_1": rate["rank"] / rate["bare"],
        "rank_tokens_per_s": rate["rank"],
        "bare_tokens_per_s": rate["bare"],
    }


def bare_loop(model: str, config: Any, rows: list[Any]) -> Callable[[], None]:
    """The same update without DeepSpeed: forward, clipped loss, backward, clip, AdamW."""
    import torch
    from transformers import AutoModelForCausalLM

    from actors.grpo import policy_loss
    from actors.sequences import collate, micro_batches, policy_module

    causal = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    policy = policy_module(causal)
    optimizer = torch.optim.AdamW(causal.parameters(), lr=config.lr, betas=(0.9, config.beta2), weight_decay=0.0)
    total = sum(len(row.token_ids) for row in rows)

    def step() -> None:
        for chunk in micro_batches(rows, config.micro_batch_tokens):
            logprobs, _ = policy(*collate(chunk), 1.0)
            behaviour = torch.tensor([x for row in chunk for x in row.logprobs])
            advantages = torch.tensor([row.advantage for row in chunk for _ in row.token_ids])
            loss, _ = policy_loss(logprobs, behaviour, advantages, clip_low=0.2, clip_high=0.2)
            (loss / total).backward()
        torch.nn.utils.clip_grad_norm_(causal.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rank_port() -> int:
    """A free port for the process group of one."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(300) for _ in range(count))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
