from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.registry import load_environment
from orchestrator.config import NewModelConfig
from orchestrator.evidence import describe, vocabulary
from orchestrator.new_model import build_model, build_tokenizer, save

ENVIRONMENT = load_environment("mapf_frozenlake", {"agents": 2, "sizes": [3, 4, 5], "template": "compact"})
WORDS = list(dict.fromkeys((*ENVIRONMENT.vocabulary(), *vocabulary(describe(ENVIRONMENT)))))
TOKENIZER: Any = build_tokenizer(WORDS)


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_tokenisation(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == text.encode("utf-8", "ignore").decode()


def test_every_word_of_the_environment_is_one_token_with_and_without_a_space() -> None:
    for word in WORDS:
        assert len(TOKENIZER.encode(word, add_special_tokens=False)) == 1, word
        assert len(TOKENIZER.encode(f" {word}", add_special_tokens=False)) == 1, word


def test_a_prompt_costs_one_token_per_word_and_newline() -> None:
    task = ENVIRONMENT.generate(ENVIRONMENT.default_knobs(), 0, 0, 1)[0]
    chat = ENVIRONMENT.prompt(task)
    text = chat[0]["content"]
    ids = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    assert len(ids) == len(text.split()) + text.count("\n") + 2


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_loads_with_the_same_weights(tied: bool, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = build_model(NewModelConfig(hidden=32, layers=1, heads=1, tied=tied), len(TOKENIZER))
    save(model, TOKENIZER, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert again.config.tie_word_embeddings is tied
    for (name, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == TOKENIZER.chat_template
