"""A small Qwen3-architecture model with its own word-level tokenizer, made from nothing.

Text is the concatenation of its tokens (byte-level BPE without merges), so any string round-trips, an engine's grammar
constraints see the true bytes, and a known word costs one token with or without the space before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import NewModelConfig

PAD, USER, ASSISTANT, SYSTEM, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
SPECIAL = (PAD, USER, ASSISTANT, SYSTEM, END)

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(words: Sequence[str]) -> Any:
    """A ``PreTrainedTokenizerFast`` in which each of ``words`` is one token, with and without a leading space.

    Every other text falls back to bytes. Order of ``words`` decides ids, so pass them in a fixed order.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    for word in words:
        for spelling in (word, "Ġ" + word):
            vocabulary.setdefault(spelling, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n| ?[^\s]+|\s"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(config: NewModelConfig, vocabulary_size: int) -> Any:
    """A randomly initialised Qwen3 causal LM, float32. The vocabulary is padded to a multiple of 64."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(config.seed)
    architecture = Qwen3Config(
        vocab_size=-(-vocabulary_size // 64) * 64,
        hidden_size=config.hidden,
        intermediate_size=3 * config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=config.tied,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )
    return Qwen3ForCausalLM(architecture).to(torch.float32)


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write a Hugging Face model directory that ``transformers`` and vLLM load."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # one shard of a few megabytes
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
