"""A vLLM engine in the calling process: sample tokens with their log-probs, load weights, know its version.

CPU facts that shaped this file (vLLM 0.32): linear layers are repacked at load, so weights must go through the
layer-wise reload; a tied ``lm_head`` keeps its old packed copy unless the pair is sent explicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from actors.config import RolloutConfig
from actors.records import Constraint


class Engine:
    """One vLLM engine. Heavy: importing vLLM and loading the model takes seconds."""

    def __init__(self, model: str, config: RolloutConfig) -> None:
        from vllm import LLM

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
        }
        if config.gpus:
            options |= {
                "gpu_memory_utilization": config.gpu_memory_utilization,
                "distributed_executor_backend": "uni",
            }
        else:
            # A prompt cut by chunked prefill rewinds its seeded generator, which CPU generators cannot do.
            options |= {
                "kv_cache_memory_bytes": config.kv_cache_mib << 20,
                "enforce_eager": True,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(16384, config.max_prompt_tokens + config.max_new_tokens),
            }
        self._llm = LLM(**options)
        self._tied = bool(getattr(self._llm.llm_engine.model_config.hf_config, "tie_word_embeddings", False))
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
        """One vLLM ``CompletionOutput`` per prompt, in order, each drawn with its own seed."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structured = None if constraint is None else StructuredOutputsParams(**{constraint[0]: constraint[1]})
        parameters = [
            SamplingParams(
                temperature=temperature,
                max_tokens=max_new_tokens,
                seed=seed if temperature > 0 else None,
                logprobs=0,
                detokenize=False,
                structured_outputs=structured,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for seed in seeds
        ]
        requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = self._llm.generate(requests, parameters, use_tqdm=False)
        return [output.outputs[0] for output in outputs]

    def load(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Replace all weights by (Hugging Face name, torch tensor) pairs and drop every cache of the old ones."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._with_head(weights)})
        self._llm.update_weight_version(str(version))
        self._llm.reset_prefix_cache()
        self.version = version

    def _with_head(self, weights: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
        for name, tensor in weights:
            yield name, tensor
            if self._tied and name == "model.embed_tokens.weight":
                yield "lm_head.weight", tensor
