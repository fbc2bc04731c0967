"""Rows of tokens as padded tensors, and the forward pass that reads them. Shared by learner and warm start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.records import Row

EMPTY = Row(prompt_ids=(0,), token_ids=(0,), logprobs=(0.0,))
"""Pads a stripe so that all ranks run the same number of micro-batches; its tokens are masked out."""


def micro_batches(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Cut rows, longest first, into lists of at most ``max_tokens`` padded tokens (at least one row each)."""
    out: list[list[Row]] = []
    width = 0
    for row in sorted(rows, key=len, reverse=True):
        if not out or width * (len(out[-1]) + 1) > max_tokens:
            out.append([])
            width = len(row)
        out[-1].append(row)
    return out


def collate(rows: Sequence[Row]) -> tuple[Any, Any]:
    """Right-padded token ids, int64 (rows, width), and a bool mask of the positions that predict a generated token.

    Position t predicts token t + 1. Under causal attention right padding never reaches a real token.
    """
    import torch

    width = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        if row is not EMPTY:
            tokens[i, : len(row)] = torch.tensor(row.prompt_ids + row.token_ids)
            mask[i, len(row.prompt_ids) - 1 : len(row) - 1] = True
    return tokens, mask


def policy_module(model: Any) -> Any:
    """Wrap a causal LM so that one forward gives the log-probs and entropies of masked positions' next tokens."""
    import torch

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any, mask: Any, temperature: float) -> tuple[Any, Any]:
            """(rows, width) tokens and mask → flat log-probs and entropies of token t + 1 where mask[t]."""
            hidden = self.model.model(input_ids=tokens, use_cache=False).last_hidden_state
            # Heads run on generated positions only: prompts would cost as much and teach nothing.
            logits = self.model.lm_head(hidden[mask]).float() / temperature
            logprobs = logits.log_softmax(-1)
            targets = tokens[:, 1:][mask[:, :-1]]
            entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
            return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy

    return Policy()
