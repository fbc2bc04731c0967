"""The laptop recipe's model with random weights, for measurements."""

from __future__ import annotations

from pathlib import Path

from environments.registry import load_environment
from orchestrator.config import NewModelConfig
from orchestrator.evidence import describe, vocabulary
from orchestrator.new_model import build_model, build_tokenizer, save

SPEC = ("mapf_frozenlake", {"agents": 2, "sizes": [3, 4, 5], "template": "compact"})


def write_model(directory: Path, config: NewModelConfig | None = None) -> str:
    """Write a model directory and return its path."""
    environment = load_environment(*SPEC)
    words = dict.fromkeys((*environment.vocabulary(), *vocabulary(describe(environment))))
    tokenizer = build_tokenizer(list(words))
    save(build_model(config or NewModelConfig(), len(tokenizer)), tokenizer, directory)
    return str(directory)
