"""Ask a run's model for a redesign again, outside the run: dry, on CPU, without a cluster.

Shows what it proposes from the evidence a run stored, and how far it reads evidence at all: synthetic evidence, the
results of two strata swapped, and whether the proposal follows (see :mod:`orchestrator.counterfactual`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from actors.chat import opened_thought, prompt_ids
from environments.base import Message
from orchestrator.config import RunConfig
from orchestrator.counterfactual import Counterfactual, sound_out
from orchestrator.engineer.controller import ControllerEngineer
from orchestrator.engineer.policy import PolicyEngineer
from orchestrator.engineer.replies import Constraint
from orchestrator.evidence import EnvInfo, check_modules, describe
from orchestrator.records import Evidence, HistoryEntry, Proposal, StratumResult
from orchestrator.run import make_environment


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said, after the ``<think>`` of a prompt that ends with one.

    ``tokens`` counts those generated, the one that ends it included; ``truncated`` if the limit ended it.
    """

    text: str
    tokens: int
    truncated: bool


class Reader:
    """A Hugging Face model that answers chats, greedily and on CPU. It is also ``generate`` of an engineer: it is not
    constrained then, so that the reply is its own."""

    def __init__(self, directory: str | Path, *, thinking: bool = False) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._thinking = thinking

    @property
    def context(self) -> int:
        """Most tokens that prompt and completion may have together."""
        return int(self._model.config.max_position_embeddings)

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        """The prompt as token ids, as a rollout worker makes it."""
        return prompt_ids(self.tokenizer, messages, thinking=self._thinking)

    @cached_property
    def _thought(self) -> str:
        return opened_thought(self.tokenizer, thinking=self._thinking)

    def complete(self, ids: Sequence[int], max_tokens: int) -> Completion:
        """The greedy completion of a prompt."""
        import torch

        prompt = torch.tensor([list(ids)])
        greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        with torch.no_grad():
            out = self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens, **greedy
            )
        said = out[0, len(ids) :].tolist()
        ends = self._model.generation_config.eos_token_id
        ended = said and said[-1] in (ends if isinstance(ends, list) else [ends])
        text = str(self.tokenizer.decode(said, skip_special_tokens=True))
        return Completion(self._thought + text, len(said), len(said) >= max_tokens and not ended)

    def __call__(
        self, messages: list[Message], constraint: Constraint, *, max_tokens: int, temperature: float, seed: int
    ) -> str:
        """One reply."""
        return self.complete(self.tokenize(messages), max_tokens).text


def engineer_of(config: RunConfig, directory: str | Path) -> tuple[PolicyEngineer, ControllerEngineer, EnvInfo]:
    """The model in ``directory`` as the run's engineer, the controller beside it, and what both know."""
    info = describe(make_environment(config))
    modules = check_modules(config.engineer.modules)
    reader = Reader(directory, thinking=config.rollout.thinking)
    engineer = PolicyEngineer(reader, info, style=config.engineer.style, modules=modules)
    return engineer, ControllerEngineer(info, modules), info


def stored_proposal(config: RunConfig, directory: str | Path, record: Mapping[str, Any]) -> Proposal:
    """What the model proposes now from a stage's stored evidence."""
    engineer, _, _ = engineer_of(config, directory)
    return engineer.propose(read_evidence(record))


def reads_evidence(config: RunConfig, directory: str | Path, swaps: int) -> Counterfactual:
    """Swap neighbouring strata in ``swaps`` pieces of synthetic evidence and count the cells that follow."""
    engineer, controller, info = engineer_of(config, directory)
    return sound_out(engineer, controller, info, config.seed, swaps)


def read_evidence(record: Mapping[str, Any]) -> Evidence:
    """An :class:`Evidence` from its stored JSON form."""

    def results(rows: list[dict[str, Any]]) -> tuple[StratumResult, ...]:
        return tuple(StratumResult(**row) for row in rows)

    history = tuple(HistoryEntry(h["stage"], h["knobs"], results(h["results"])) for h in record["history"])
    plain = {**record, "strata": tuple(record["strata"]), "results": results(record["results"]), "history": history}
    return Evidence(**plain)
