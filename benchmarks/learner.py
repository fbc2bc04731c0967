"""How much of a bare PyTorch loop's rate is left of DeepSpeed learner ranks on the same batches: one rank and two.

The bare loop is what one writes by hand: padded micro-batches, longest rows first, backward, clip, AdamW; with two
ranks torch's DistributedDataParallel over gloo, gradients exchanged once per update. Both sides take turns in the same
processes, one thread each; a figure is the median over the turns of their ratio.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.small_model import write_model

ROWS, SIBLINGS, REPEATS = 256, 8, 5


def run() -> dict[str, float]:
    """``ratio_1``, ``ratio_2``: one and two ranks ÷ the bare loop on as many; each row has a prompt of its own.

    ``grouped_1``, ``grouped_2``: the same on batches as a run makes them, eight rows a prompt, computed once.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder))
        for ranks in (1, 2):
            port, spawn = free_port(), multiprocessing.get_context("spawn")
            with spawn.Pool(ranks) as pool:
                each = pool.starmap(measure, [(rank, ranks, port, model) for rank in range(ranks)], chunksize=1)
            for name, times in each[0].items():
                figures[f"{name}_{ranks}"] = statistics.median(bare / ours for ours, bare in times)
                figures[f"{name}_{ranks}_tokens_per_s"] = tokens(name) / statistics.median(ours for ours, _ in times)
    return figures


def measure(rank: int, ranks: int, port: int, model: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds of (learner, bare loop) per turn by kind of batch, in one of ``ranks`` processes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch.distributed as dist

    from actors.config import AlgorithmConfig, LearnerConfig
    from actors.learner import LearnerRank
    from actors.records import Batch

    # The laptop recipe's budget; larger ones cost the padded loop more.
    config = LearnerConfig(ranks=ranks, dtype="float32", lr=3e-4, micro_batch_tokens=4096)
    algorithm = AlgorithmConfig(aggregation="token")
    learner = LearnerRank(model, config, algorithm, 1.0)
    learner.setup(rank, "127.0.0.1", port)
    found: dict[str, list[tuple[float, float]]] = {}
    for name in ("ratio", "grouped"):
        rows = [replace_logprobs(row, scored) for row, scored in zip(batch_rows(name), learner.score(batch_rows(name)))]
        bare = bare_loop(model, config, algorithm, rows, rank)
        batch = Batch(tuple(rows))

        def timed(call: Callable[[], object]) -> float:
            dist.barrier()
            started = time.perf_counter()
            call()
            dist.barrier()
            return time.perf_counter() - started

        turns = [(timed(lambda batch=batch: learner.update(batch)), timed(bare)) for _ in range(REPEATS + 1)]
        found[name] = turns[1:]
    return found


def bare_loop(model: str, config: Any, algorithm: Any, rows: list[Any], rank: int) -> Callable[[], None]:
    """The same update without DeepSpeed, packing or Envwright's learner."""
    import torch
    from transformers import AutoModelForCausalLM

    from actors.algorithms import Tokens, policy_loss
    from actors.sequences import micro_batches, pad, policy_module

    causal = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(causal.parameters(), lr=config.lr, betas=(0.9, config.beta2), weight_decay=0.0)
    policy: Any = policy_module(causal)
    if config.ranks > 1:
        policy = torch.nn.parallel.DistributedDataParallel(policy)
    total, objective = sum(len(row.token_ids) for row in rows), algorithm.resolved(0)
    mine = sorted(rows, key=len, reverse=True)[rank :: config.ranks]

    def step() -> None:
        chunks = micro_batches(mine, config.micro_batch_tokens)
        for i, chunk in enumerate(chunks):
            quiet = policy.no_sync() if config.ranks > 1 and i < len(chunks) - 1 else nullcontext()
            with quiet:
                logprobs, _ = policy(pad(chunk), 1.0)
                sampled = torch.tensor([x for row in chunk for x in row.logprobs])
                advantages = torch.tensor([row.advantage for row in chunk for _ in row.token_ids])
                sequence = torch.tensor([k for k, row in enumerate(chunk) for _ in row.token_ids])
                weights = torch.full_like(sampled, config.ranks / total)
                made = Tokens(logprobs, sampled, sampled, None, advantages, weights, sequence)
                policy_loss(made, objective)[0].backward()
        torch.nn.utils.clip_grad_norm_(causal.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def batch_rows(name: str) -> list[Any]:
    """Rows as long as the laptop recipe's: prompts of 40 to 60 tokens, 8 to 24 generated."""
    from actors.records import Row

    rng = random.Random(0)
    rows, prompt = [], ()
    for i in range(ROWS):
        if name == "ratio" or i % SIBLINGS == 0:
            prompt = _tokens(rng, rng.choice((40, 50, 60)))
        rows.append(Row(prompt, _tokens(rng, rng.randint(8, 24)), rng.gauss(0, 1)))
    return rows


def replace_logprobs(row: Any, logprobs: list[float]) -> Any:
    """The row as if it had been sampled with these log-probs."""
    from dataclasses import replace

    return replace(row, logprobs=tuple(logprobs))


def tokens(name: str) -> int:
    """Tokens of a batch, prompts counted in each row."""
    return sum(map(len, batch_rows(name)))


def free_port() -> int:
    """A free port for the process group."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(300) for _ in range(count))
