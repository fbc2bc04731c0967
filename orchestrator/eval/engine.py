"""A checkpoint in a vLLM engine of this process: the rollout worker of training, asked from here."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from actors.config import RolloutConfig
from environments.base import Environment, Failure
from environments.mapf_frozenlake.settings import stratum_name
from orchestrator.case import check_words
from orchestrator.config import ConfigError
from orchestrator.eval.records import Keep, Question, Reply, Sampling
from orchestrator.eval.sets import cell_of, make_environment

Dtype = Literal["float32", "bfloat16"]

MAX_NEW_TOKENS = 8192
"""Of a model about which no run says how long it may speak; half its context if that is less."""
BATCH = 512
"""Questions given to the engine at once: what a crash can cost."""
CACHE_SEQUENCES, LEAST_CACHE_MIB, MOST_CACHE_MIB = 16, 64, 4096
"""The CPU engine's cache holds this many sequences of full length, within these bounds, and at least two."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory, and how the run that made it asked it; without a run, ``settings`` is empty.

    ``dtype`` None is float32 on CPU and bfloat16 on a GPU.
    """

    name: str
    directory: Path
    max_new_tokens: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool = False
    dtype: Dtype | None = None


def find_checkpoint(name: str, environment: str) -> Checkpoint:
    """A finished run on ``environment``, or a Hugging Face model directory. Raises :class:`ConfigError`."""
    folder = Path(name)
    if (folder / "run.yaml").is_file():
        return _of_run(name, environment)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{name!r} is no checkpoint: give a finished run or a Hugging Face model directory")
    context = architecture(folder).get("max_position_embeddings", 2 * MAX_NEW_TOKENS)
    return Checkpoint(folder.resolve().name, folder, min(MAX_NEW_TOKENS, int(context) // 2))


def _of_run(name: str, environment: str) -> Checkpoint:
    from orchestrator.config import validate
    from orchestrator.store import RunStore

    store = RunStore.open(name)
    config = validate(store.read_config(), f"{name}/run.yaml")
    if config.environment.name != environment:
        raise ConfigError(f"{name} was trained on {config.environment.name}: evaluations exist for {environment}")
    model = Path(store.path("model"))
    if not (model / "config.json").is_file():
        raise ConfigError(f"{name} has no exported model: give a finished run")
    rollout, settings = config.rollout, config.environment.settings
    asked = {key: value for key, value in settings.items() if key not in ("agents", "sizes")}
    return Checkpoint(config.name, model, rollout.max_new_tokens, asked, rollout.thinking, rollout.dtype)


class LocalModel:
    """Answers with a checkpoint's model. vLLM is loaded by the first question."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        environment: Environment,
        settings: Mapping[str, Any],
        sampling: Sampling,
    ) -> None:
        """``settings`` are those of ``environment``, for the worker that makes its own."""
        self.name, self.deterministic = checkpoint.name, sampling.temperature == 0
        self._checkpoint, self._sampling = checkpoint, sampling
        self._environment, self._settings = environment, dict(settings)
        self._gpus = _gpus()
        self._dtype: Dtype = checkpoint.dtype or ("bfloat16" if self._gpus else "float32")

    def identity(self) -> dict[str, Any]:
        """The weights by content, and how they are run."""
        weights = weights_digest(self._checkpoint.directory)
        return {"kind": "engine", "weights": weights, "dtype": self._dtype, "thinking": self._checkpoint.thinking}

    def answer(self, questions: Sequence[Question], keep: Keep) -> None:
        """Batches of questions, samples of a task together. Raises :class:`ConfigError` if the model cannot answer."""
        from actors import records

        # Set before anything imports torch or vLLM; unset, the threads of a CPU engine fight over the cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        worker = self._worker(questions)
        draw = records.Sampling(self._sampling.temperature, self._sampling.max_new_tokens)
        for first in range(0, len(questions), BATCH):
            by_task: defaultdict[str, list[Question]] = defaultdict(list)
            for question in questions[first : first + BATCH]:
                by_task[question.task.id].append(question)
            requests = [records.Request(same[0].task, tuple(q.seed for q in same)) for same in by_task.values()]
            started = time.perf_counter()
            groups, _ = worker.rollout(requests, draw)
            each = (time.perf_counter() - started) / sum(len(request.seeds) for request in requests)
            for same, group in zip(by_task.values(), groups, strict=True):
                for question, member in zip(same, group.members, strict=True):
                    keep(question, _reply(member, each))

    def _worker(self, questions: Sequence[Question]) -> Any:
        from actors.rollout import RolloutWorker

        directory = self._checkpoint.directory
        config = self._engine_config(questions)
        try:
            return RolloutWorker("evaluation", str(directory), config, (self._environment.name, self._settings))
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"{self.name}: vLLM cannot run the model in {directory}: {_first_line(error)}") from None

    def _engine_config(self, questions: Sequence[Question]) -> RolloutConfig:
        """An engine that holds the longest prompt and a completion after it, within the model's context."""
        checkpoint, wanted = self._checkpoint, self._sampling.max_new_tokens
        longest = self._longest_prompt(questions)
        shape = architecture(checkpoint.directory)
        context = int(shape.get("max_position_embeddings", longest + wanted))
        if longest + wanted > context:
            raise ConfigError(
                f"{self.name}: the model reads {context} tokens and the longest prompt has {longest}: give "
                f"--max-new-tokens of at most {max(0, context - longest)} instead of {wanted}, or smaller boards"
            )
        return RolloutConfig(
            gpus=self._gpus,
            dtype=self._dtype,
            max_prompt_tokens=longest,
            max_new_tokens=wanted,
            thinking=checkpoint.thinking,
            kv_cache_mib=cache_mib(shape, longest + wanted, self._dtype),
        )

    def _longest_prompt(self, questions: Sequence[Question]) -> int:
        from transformers import AutoTokenizer

        directory = self._checkpoint.directory
        try:
            tokenizer = AutoTokenizer.from_pretrained(directory)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.name}: no tokenizer in {directory}: {_first_line(error)}") from None
        if not tokenizer.chat_template:
            raise ConfigError(f"{self.name}: the tokenizer in {directory} has no chat template to ask with")
        tasks = {question.task.id: question.task for question in questions}
        if self._settings.get("template") == "compact":
            self._check_words(tokenizer, {cell_of(task) for task in tasks.values()})
        encoded = tokenizer.apply_chat_template(
            [list(self._environment.prompt(task)) for task in tasks.values()],
            add_generation_prompt=True,
            return_dict=True,
            enable_thinking=self._checkpoint.thinking,
        )
        return max(map(len, encoded["input_ids"]))

    def _check_words(self, tokenizer: Any, cells: set[tuple[int, int]]) -> None:
        """A small model that was never shown five agents reads them as bytes: that is no measurement."""
        for agents, size in sorted(cells):
            words = make_environment({**self._settings, "agents": agents, "sizes": [size]}).vocabulary()
            check_words(self.name, tokenizer, words, stratum_name(size), agents)


def _reply(member: Any, latency_s: float) -> Reply | Failure:
    """A scored sample as a reply; its verdict is made again by the loop, like everyone's."""
    sample = member.sample
    if sample is None:
        failure: Failure = member.result
        return failure
    return Reply(sample.text, sample.finish_reason, latency_s, len(sample.prompt_ids), len(sample.token_ids))


def architecture(directory: Path) -> dict[str, Any]:
    """The language model's part of ``config.json``. Raises :class:`ConfigError` if it cannot be read."""
    try:
        record = json.loads((directory / "config.json").read_text("utf-8"))
        shape: dict[str, Any] = record.get("text_config") or record
        return shape
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{directory / 'config.json'} cannot be read as JSON: {error}") from None


def cache_mib(shape: Mapping[str, Any], tokens: int, dtype: Dtype) -> int:
    """MiB of KV cache for sequences of ``tokens`` tokens; see ``CACHE_SEQUENCES``."""
    heads = int(shape.get("num_attention_heads", 1))
    width = int(shape.get("head_dim") or int(shape.get("hidden_size", 0)) // heads)
    values = 2 * int(shape.get("num_hidden_layers", 0)) * int(shape.get("num_key_value_heads", heads)) * width
    one = values * tokens * (4 if dtype == "float32" else 2) / 2**20
    bounded = min(MOST_CACHE_MIB, max(LEAST_CACHE_MIB, CACHE_SEQUENCES * one))
    return int(max(bounded, 2 * one)) + 1


def weights_digest(directory: Path) -> str:
    """blake2b over names and content of the files that make the model: weights, configuration, tokenizer."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, hashlib.blake2b).hexdigest()
            total.update(f"{path.name} {content}\n".encode())
    return total.hexdigest()


def _gpus() -> float:
    """One GPU if there is one and the installed vLLM can use it."""
    from cluster import machine
    from cluster.preflight import installed

    return 1.0 if machine.gpus() and "vllm" in installed() else 0.0


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
