"""How much of raw vLLM's rate is left of a rollout worker that tokenises, records and scores."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.small_model import SPEC, write_model

GROUPS, GROUP_SIZE, NEW_TOKENS, REPEATS = 32, 8, 24, 5


def run() -> dict[str, float]:
    """Interleaved repeats on one engine; medians. ``ratio`` = worker rate ÷ raw rate with the same parameters."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    from actors.config import RolloutConfig
    from actors.records import Request, Sampling
    from actors.rollout import RolloutWorker
    from environments.registry import load_environment

    with tempfile.TemporaryDirectory() as folder:
        config = RolloutConfig(dtype="float32", max_prompt_tokens=96, max_new_tokens=32, concurrency=128)
        worker = RolloutWorker("bench", write_model(Path(folder)), config, SPEC)
        environment = load_environment(*SPEC)
        tasks = environment.generate(environment.default_knobs(), 0, 0, GROUPS)
        requests = [Request(t, tuple(range(i * 100, i * 100 + GROUP_SIZE))) for i, t in enumerate(tasks)]
        prompts = [worker._tokenize(environment.prompt(r.task)) for r in requests for _ in r.seeds]
        seeds = [seed for r in requests for seed in r.seeds]
        rates: dict[str, list[float]] = {"worker": [], "raw": [], "raw_plain": []}
        for _ in range(REPEATS + 1):
            started = time.perf_counter()
            _, report = worker.rollout(requests, Sampling(1.0, NEW_TOKENS))
            rates["worker"].append(report.tokens / (time.perf_counter() - started))
            rates["raw"].append(_raw(worker, prompts, seeds, logprobs=0))
            rates["raw_plain"].append(_raw(worker, prompts, [None] * len(seeds), logprobs=None))
    rate = {name: statistics.median(values[1:]) for name, values in rates.items()}
    return {
        "ratio": rate["worker"] / rate["raw"],
        "worker_tokens_per_s": rate["worker"],
        "raw_tokens_per_s": rate["raw"],
        "raw_without_seeds_and_logprobs_tokens_per_s": rate["raw_plain"],
    }


def _raw(worker: object, prompts: list[list[int]], seeds: list[int | None] | list[int], logprobs: int | None) -> float:
    from vllm import SamplingParams

    parameters = [
        SamplingParams(temperature=1.0, max_tokens=NEW_TOKENS, seed=s, logprobs=logprobs, detokenize=False)
        for s in seeds
    ]
    requests = [{"prompt_token_ids": ids} for ids in prompts]
    started = time.perf_counter()
    outputs = worker._engine._llm.generate(requests, parameters, use_tqdm=False)  # type: ignore[attr-defined]
    return sum(len(o.outputs[0].token_ids) for o in outputs) / (time.perf_counter() - started)
