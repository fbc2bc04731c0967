"""Supervised warm start of a new model: boards with the solver's plans, and engineer dialogues with the controller's
replies, so that the same weights can play both roles. Cached by content, since nothing trained is shipped."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.records import Row
from environments.base import Environment, Message, Task, digest, stream
from orchestrator.config import NewModelConfig
from orchestrator.dialogues import dialogues
from orchestrator.evidence import EnvInfo, Modules, vocabulary

BLOCKS = 16
"""Boards come in this many blocks: every other one from the default configuration, so that most are ordinary, the rest
each from its own random configuration, so that no difficulty is missed."""

DIALOGUE_WEIGHT = 1.0
"""Weight of the dialogue term beside the board term (each a mean over its own tokens)."""

PADDED_TOKENS = 2048
"""Rows of like length share a forward pass of this size: short ones are not padded to the longest of the step."""

Progress = Callable[[int, int, dict[str, float]], None]
"""Called with (step, steps, metrics)."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """What a warm start imitates: the environment it is for, and the engineer's context."""

    environment: Environment
    settings: dict[str, Any]
    info: EnvInfo
    modules: Modules


def cached_model(config: NewModelConfig, curriculum: Curriculum, progress: Progress, cache: Path | None = None) -> Path:
    """The directory of the warm-started model, made now if the cache does not hold it.

    The key covers everything the weights depend on: the configuration, the environment with its settings and version,
    and the source of what is imitated. A directory appears whole or not at all.
    """
    root = cache or models_folder()
    target = root / model_key(config, curriculum)
    if not (target / "config.json").exists():
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
        try:
            make_model(config, curriculum, scratch, progress)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def models_folder() -> Path:
    """``ENVWRIGHT_MODELS``, else ``envwright/models`` in the user's cache folder."""
    if given := os.environ.get("ENVWRIGHT_MODELS"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envwright" / "models"


def model_key(config: NewModelConfig, curriculum: Curriculum) -> str:
    """Content hash of all that decides the weights."""
    here = Path(__file__).parent
    sources = [here / "new_model.py", here / "warm_start.py", here / "dialogues.py", here / "evidence.py"]
    sources += sorted((here / "engineer").glob("*.py"))
    code = hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).hexdigest()
    environment = curriculum.environment
    return digest(
        {
            "config": config.model_dump(mode="json", exclude={"threads"}),
            "environment": [environment.name, environment.version, curriculum.settings],
            "modules": sorted(curriculum.modules),
            "code": code,
        }
    )


def make_model(config: NewModelConfig, curriculum: Curriculum, directory: Path, progress: Progress) -> None:
    """Build, warm-start and save a model directory."""
    import torch

    from orchestrator.new_model import build_model, build_tokenizer, save

    torch.set_num_threads(config.threads)
    words = (*curriculum.environment.vocabulary(), *vocabulary(curriculum.info))
    tokenizer = build_tokenizer(list(dict.fromkeys(words)))
    model = build_model(config, len(tokenizer))
    if config.steps:
        train(model, config, examples(config, curriculum, tokenizer), progress)
    save(model, tokenizer, directory)


def examples(config: NewModelConfig, curriculum: Curriculum, tokenizer: Any) -> Iterator[tuple[list[Row], list[Row]]]:
    """One (boards, dialogues) pair of row lists per step; a pure function of configuration and curriculum."""
    environment = curriculum.environment
    tasks = board_tasks(config, environment)
    rng = stream(config.seed, "warm start dialogues")
    for step in range(config.steps):
        chosen = tasks[step * config.tasks_per_step : (step + 1) * config.tasks_per_step]
        boards = [encode(tokenizer, environment.prompt(t), environment.answer(t)) for t in chosen]
        spoken = dialogues(curriculum.info, rng, config.dialogues_per_step, curriculum.modules)
        yield boards, [encode(tokenizer, prompt, reply) for prompt, reply in spoken]


def board_tasks(config: NewModelConfig, environment: Environment) -> list[Task]:
    """The boards of a warm start. None is in a frozen set: the generator never emits a reserved board."""
    per_block = -(-config.steps // BLOCKS) * config.tasks_per_step
    usual = environment.default_knobs()
    blocks = [
        environment.generate(
            environment.random_knobs(stream(config.seed, "warm start", block)) if block % 2 else usual,
            config.seed,
            0,
            per_block,
            split="warm_start",
            stage=block,
        )
        for block in range(BLOCKS)
    ]
    # Interleaved: every step sees every block, in place of sixteen phases that would be forgotten in turn.
    return [task for together in zip(*blocks, strict=True) for task in together]


def encode(tokenizer: Any, prompt: Sequence[Message], reply: str) -> Row:
    """A chat and its reply as a training row; the reply ends with the end-of-turn token."""
    asked = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=True, return_dict=True)
    said = tokenizer.encode(reply, add_special_tokens=False)
    return Row(tuple(asked["input_ids"]), (*said, tokenizer.eos_token_id))


def train(model: Any, config: NewModelConfig, steps: Iterator[tuple[list[Row], list[Row]]], progress: Progress) -> None:
    """AdamW on the mean negative log-likelihood of replies, cosine decay after a short warm-up."""
    import torch

    from actors.sequences import micro_batches, pad, policy_module

    policy = policy_module(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.01)
    warmup = max(1, config.steps // 20)
    for step, (boards, spoken) in enumerate(steps):
        fraction = (step + 1) / config.steps
        factor = min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * fraction)))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * factor
        metrics: dict[str, float] = {}
        for name, rows, weight in (("boards", boards, 1.0), ("dialogues", spoken, DIALOGUE_WEIGHT)):
            tokens = sum(len(row.token_ids) for row in rows)
            for chunk in micro_batches(rows, PADDED_TOKENS):
                logprobs, _ = policy(pad(chunk), 1.0)
                loss = -logprobs.sum() / tokens
                (weight * loss).backward()
                metrics[f"nll/{name}"] = metrics.get(f"nll/{name}", 0.0) + loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress(step + 1, config.steps, metrics)
