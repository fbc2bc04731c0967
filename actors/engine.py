"""A vLLM engine in the calling process: sample tokens with their log-probs, load weights, know its version.

How new weights get into the model is in ``actors/weights``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from actors.config import RolloutConfig
from actors.lora import base_weights
from actors.records import Arrival, Constraint, Delivery, Row
from actors.weights import transfer
from actors.weights.check import compare
from actors.weights.errors import SyncError
from actors.weights.receiver import Receiver


class Engine:
    """One vLLM engine. Heavy: importing vLLM and loading the model takes seconds."""

    def __init__(self, model: str, config: RolloutConfig) -> None:
        from vllm import LLM
        from vllm.config import WeightTransferConfig

        options: dict[str, Any] = {
            "model": model,
            "dtype": config.dtype,
            "max_num_seqs": config.concurrency,
            "max_model_len": config.max_prompt_tokens + config.max_new_tokens,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "disable_log_stats": True,
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            "seed": 0,
            "enforce_eager": not (config.gpus if config.compile is None else config.compile),
        }
        if config.gpus:
            options |= {
                "gpu_memory_utilization": config.gpu_memory_utilization,
                "distributed_executor_backend": "uni",
                "enable_sleep_mode": config.gpus < 1,
            }
        else:
            # A prompt cut by chunked prefill rewinds its seeded generator, which CPU generators cannot do.
            options |= {
                "kv_cache_memory_bytes": config.kv_cache_mib << 20,
                "enable_chunked_prefill": False,
                # The smallest its attention knows. Only full blocks of a prompt are shared by its group.
                "block_size": 32,
                "max_num_batched_tokens": max(16384, config.max_prompt_tokens + config.max_new_tokens),
            }
        if backend := transfer.backend_of(config.gpus):
            options["weight_transfer_config"] = WeightTransferConfig(backend=backend)
        self._llm = LLM(**options)
        self.weights = Receiver(self._llm, lambda: base_weights(model), on_cpu=not config.gpus)
        self._row_limit = options["max_model_len"]
        self._salted = config.update_in_flight
        self._turn, self._callers_waiting, self._held = threading.RLock(), 0, False
        self._finished: dict[str, Any] = {}
        self.version = 0
        self._llm.update_weight_version("0")

    @property
    def tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        return self._llm.get_tokenizer()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        *,
        temperature: float,
        max_new_tokens: int,
        constraint: Constraint | None = None,
    ) -> list[Any]:
        """One vLLM ``CompletionOutput`` per prompt, in order, each drawn with its own seed.

        Its ``logprobs`` are flat, of the sampled tokens only.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structured = None if constraint is None else StructuredOutputsParams(**{constraint[0]: constraint[1]})
        parameters = [
            SamplingParams(
                temperature=temperature,
                max_tokens=max_new_tokens,
                seed=seed if temperature > 0 else None,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                structured_outputs=structured,
                output_kind=RequestOutputKind.FINAL_ONLY,
                skip_clone=structured is None,  # each is of one request and holds nothing that another could change
            )
            for seed in seeds
        ]
        return [output.outputs[0] for output in self._run(prompts, parameters)]

    def _run(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> list[Any]:
        """Step the engine until all of these requests are done; their ``RequestOutput`` in order.

        Where weights may change under running requests, the cache cannot be reset then; so its prefixes are salted with
        the weight version, and what old weights computed is never read with new ones. It costs 5 % of the rate.
        """
        salt = {"cache_salt": str(self.version)} if self._salted else {}
        requests = [{"prompt_token_ids": list(ids), **salt} for ids in prompts]
        engine = self._llm.llm_engine
        with self._turn:
            # Outputs carry the number of their request; the engine's own id has a random tail behind it.
            ids = [i.partition("-")[0] for i in self._llm.enqueue(requests, list(parameters), use_tqdm=False)]
            while open_ids := set(ids) - self._finished.keys():
                if not engine.has_unfinished_requests():
                    raise RuntimeError(f"the engine has finished, but not requests {sorted(open_ids)[:5]}")
                self._finished |= {output.request_id: output for output in engine.step() if output.finished}
                # Whoever has the engine to oneself lets nobody in between.
                while self._callers_waiting and not self._held:
                    self._turn.release()
                    time.sleep(0.001)
                    self._turn.acquire()
            return [self._finished.pop(i) for i in ids]

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Have the engine to oneself: at once if it is idle, else after the decoding step that is running.

        Other requests that finish meanwhile keep their outputs until their own caller asks.
        """
        self._callers_waiting += 1
        with self._turn:
            self._callers_waiting -= 1
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def score(self, rows: Sequence[Row]) -> list[list[float]]:
        """Log-probs (nats, temperature 1) of each row's generated tokens, computed anew in one batch."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        longest = max((len(row) for row in rows), default=0)
        if longest >= self._row_limit:
            raise ValueError(
                f"a probe row has {longest} tokens and the engine scores up to {self._row_limit - 1}: "
                "lower sync.check_tokens or raise rollout.max_new_tokens"
            )
        parameters = SamplingParams(
            prompt_logprobs=0,
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        outputs = self._run([row.prompt_ids + row.token_ids for row in rows], [parameters] * len(rows))
        found = []
        for row, output in zip(rows, outputs, strict=True):
            steps = output.prompt_logprobs[len(row.prompt_ids) :]
            found.append([step[token].logprob for step, token in zip(steps, row.token_ids, strict=True)])
        return found

    def load(self, worker: str, delivery: Delivery) -> Arrival:
        """Replace all weights, drop every cache of the old ones, and prove on the delivery's probes which are in use.

        Raises ``SyncError`` if the engine sleeps, cannot read the shipment, or does not compute as the learner does.
        """
        started = time.perf_counter()
        self.weights.receive(delivery.shipment)
        self._llm.update_weight_version(str(delivery.version))
        if not self._llm.reset_prefix_cache() and not self._salted:
            raise SyncError(f"{worker} could not drop what its old weights had computed: requests are running")
        self.version = delivery.version
        loaded = time.perf_counter()
        check = compare(
            worker,
            self.score(delivery.probes),
            delivery.expected,
            version=delivery.version,
            tolerance=delivery.tolerance,
        )
        return Arrival(
            worker=worker,
            version=self.version,
            mean=check.mean,
            worst=check.worst,
            tokens=check.tokens,
            load_s=loaded - started,
            check_s=time.perf_counter() - loaded,
        )
