"""How much of raw vLLM's rate is left of a rollout actor that tokenises, samples, records and scores."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from actors.records import Request, Sampling
from actors.rollout import RolloutWorker
from benchmarks.small_model import SPEC, write_model

GROUPS, GROUP_SIZE, NEW_TOKENS, REPEATS = 32, 8, 24, 15

ROWS = {"raw": (True, True), "plain": (False, False), "seeds": (True, False), "logprobs": (False, True)}
"""Rows of raw vLLM: a seed per request, log-probs of the sampled tokens. ``raw`` samples as the actor does."""


class Cost(NamedTuple):
    """Tokens generated, seconds and CPU seconds."""

    tokens: int
    seconds: float
    cpu_s: float


class Measured(RolloutWorker):
    """A rollout actor that lets its engine be used directly too, so that both sides have the same engine and core."""

    def cpu_s(self) -> float:
        """CPU seconds of this process so far."""
        return time.process_time()

    def raw(self, requests: Sequence[Request], seeded: bool, logprobs: bool) -> Cost:
        """``LLM.generate`` on the prompts of ``requests``, tokenised before the clock starts."""
        from vllm import SamplingParams

        prompts, parameters = [], []
        for request in requests:
            ids = self._tokenize(self._environment.prompt(request.task))
            for seed in request.seeds:
                prompts.append({"prompt_token_ids": ids})
                parameters.append(
                    SamplingParams(
                        temperature=1.0,
                        max_tokens=NEW_TOKENS,
                        seed=seed if seeded else None,
                        logprobs=0 if logprobs else None,
                        flat_logprobs=logprobs,
                        detokenize=False,
                    )
                )
        started, cpu = time.perf_counter(), time.process_time()
        outputs = self._engine._llm.generate(prompts, parameters, use_tqdm=False)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return Cost(sum(len(output.outputs[0].token_ids) for output in outputs), seconds, cpu)


def run() -> dict[str, float]:
    """Interleaved repeats on one engine; medians. ``ratio`` = the actor's rate, as the driver sees it, ÷ the raw one
    with the same parameters. Per CPU second, which other programs hardly touch: ``cpu_ratio``, the same, and ``seeds``,
    ``logprobs`` and ``both``, the raw rate with them ÷ without.
    """
    import ray

    from actors.config import RolloutConfig
    from cluster.config import ClusterConfig
    from cluster.session import connect
    from environments.registry import load_environment

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(connect(ClusterConfig(dashboard=False, object_store_mib=150), "rollout"))
        config = RolloutConfig(dtype="float32", max_prompt_tokens=96, max_new_tokens=32, concurrency=128)
        variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
        actor: Any = (
            ray.remote(Measured)
            .options(num_cpus=1, runtime_env={"env_vars": variables})
            .remote("bench", write_model(folder), config, SPEC)
        )
        environment = load_environment(*SPEC)
        tasks = environment.generate(environment.default_knobs(), 0, 0, GROUPS)
        requests = [Request(t, tuple(range(i * 100, i * 100 + GROUP_SIZE))) for i, t in enumerate(tasks)]
        costs: dict[str, list[Cost]] = {"actor": [], **{row: [] for row in ROWS}}
        for _ in range(REPEATS + 1):
            costs["actor"].append(through_actor(actor, requests))
            for row, (seeded, logprobs) in ROWS.items():
                costs[row].append(ray.get(actor.raw.remote(requests, seeded, logprobs), timeout=600))
    return figures({row: found[1:] for row, found in costs.items()})


def through_actor(actor: Any, requests: Sequence[Request]) -> Cost:
    """One call as the pool makes it, from sending the requests to holding the groups."""
    import ray

    before = ray.get(actor.cpu_s.remote(), timeout=600)
    started = time.perf_counter()
    _, report = ray.get(actor.rollout.remote(requests, Sampling(1.0, NEW_TOKENS)), timeout=600)
    seconds = time.perf_counter() - started
    return Cost(report.tokens, seconds, ray.get(actor.cpu_s.remote(), timeout=600) - before)


def figures(costs: dict[str, list[Cost]]) -> dict[str, float]:
    """Ratios of paired repeats, and rates."""
    rate = {row: [c.tokens / c.seconds for c in found] for row, found in costs.items()}
    cpu_rate = {row: [c.tokens / c.cpu_s for c in found] for row, found in costs.items()}

    def ratio(rates: dict[str, list[float]], above: str, below: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[above], rates[below], strict=True))

    return {
        "ratio": ratio(rate, "actor", "raw"),
        "cpu_ratio": ratio(cpu_rate, "actor", "raw"),
        "seeds": ratio(cpu_rate, "seeds", "plain"),
        "logprobs": ratio(cpu_rate, "logprobs", "plain"),
        "both": ratio(cpu_rate, "raw", "plain"),
        **{f"{row}_tokens_per_s": statistics.median(found) for row, found in rate.items()},
    }
