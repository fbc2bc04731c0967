"""A chat as a model's template writes it: the tokens of a prompt, and a thought that the template opens itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from environments.base import Message


def prompt_ids(tokenizer: Any, messages: Sequence[Message], *, thinking: bool) -> list[int]:
    """Token ids of a chat up to where the completion begins."""
    encoded = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=True, enable_thinking=thinking
    )
    return list(encoded["input_ids"])


def opened_thought(tokenizer: Any, *, thinking: bool) -> str:
    """The ``<think>`` that ends every prompt of a template which opens the thought itself; empty for any other.

    A completion goes on from there. Read without it, one that is cut inside the thought looks like an answer.
    """
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False, enable_thinking=thinking
    )
    opening = re.search(r"<think>\s*\Z", prompt)
    return opening[0] if opening else ""
