"""Ask a run's model for a redesign again, outside the run: dry, on CPU, without a cluster.

Shows what it proposes from the evidence a run stored, and how far it reads evidence at all: synthetic evidence, the
results of two strata swapped, and whether the proposal follows (see :mod:`orchestrator.counterfactual`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments.base import Message
from orchestrator.config import RunConfig
from orchestrator.counterfactual import Counterfactual, sound_out
from orchestrator.engineer.controller import ControllerEngineer
from orchestrator.engineer.policy import PolicyEngineer
from orchestrator.engineer.replies import Constraint
from orchestrator.evidence import EnvInfo, check_modules, describe
from orchestrator.records import Evidence, HistoryEntry, Proposal, StratumResult
from orchestrator.run import make_environment


class Reader:
    """A Hugging Face model as ``generate`` of an engineer: greedy, and not constrained, so the reply is its own."""

    def __init__(self, directory: str | Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def __call__(
        self, messages: list[Message], constraint: Constraint, *, max_tokens: int, temperature: float, seed: int
    ) -> str:
        """One reply."""
        import torch

        encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        ids = encoded["input_ids"]
        with torch.no_grad():
            out = self._model.generate(torch.tensor([ids]), max_new_tokens=max_tokens, do_sample=False)
        return str(self._tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))


def engineer_of(config: RunConfig, directory: str | Path) -> tuple[PolicyEngineer, ControllerEngineer, EnvInfo]:
    """The model in ``directory`` as the run's engineer, the controller beside it, and what both know."""
    info = describe(make_environment(config))
    modules = check_modules(config.engineer.modules)
    engineer = PolicyEngineer(Reader(directory), info, style=config.engineer.style, modules=modules)
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
