"""Rows of tokens as tensors, and the forward pass that reads them. Shared by learner and warm start.

A layout says how rows lie in a tensor: ``Padded`` here, side by side and right-padded, or ``Packed`` in ``packing.py``.
Both give the hidden states of the positions that predict a generated token, row by row in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from actors.records import Row

if TYPE_CHECKING:
    import torch

EMPTY = Row(prompt_ids=(0,), token_ids=(0,), logprobs=(0.0,))
"""Pads a rank's work so that all ranks run the same number of micro-batches; none of its tokens counts."""


ENTROPY_TOKENS = 1024


class Layout(Protocol):
    """How the rows of a micro-batch lie in a tensor."""

    def to(self, device: Any) -> Layout:
        """The same on another device."""
        ...

    def hidden(self, backbone: Callable[..., Any]) -> torch.Tensor:
        """Last hidden states (targets, width) at the positions that predict a generated token; padding may follow."""
        ...

    def targets(self) -> torch.Tensor:
        """Those generated tokens, int64 (targets,)."""
        ...


@dataclass(frozen=True, slots=True)
class Padded:
    """Right-padded token ids, int64 (rows, width), and a bool mask of the positions that predict a generated token.

    Position t predicts token t + 1. Under causal attention right padding never reaches a real token.
    """

    tokens: torch.Tensor
    mask: torch.Tensor

    def to(self, device: Any) -> Padded:
        """The same on another device."""
        return Padded(self.tokens.to(device), self.mask.to(device))

    def hidden(self, backbone: Callable[..., Any]) -> torch.Tensor:
        """Last hidden states (targets, width) at the positions that predict a generated token."""
        states: torch.Tensor = backbone(input_ids=self.tokens, use_cache=False).last_hidden_state
        return states[self.mask]

    def targets(self) -> torch.Tensor:
        """Those generated tokens, int64 (targets,)."""
        return self.tokens[:, 1:][self.mask[:, :-1]]


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


def pad(rows: Sequence[Row]) -> Padded:
    """The rows side by side, as wide as the longest."""
    import torch

    width = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        if row is not EMPTY:
            tokens[i, : len(row)] = torch.tensor(row.prompt_ids + row.token_ids)
            mask[i, len(row.prompt_ids) - 1 : len(row) - 1] = True
    return Padded(tokens, mask)


def policy_module(model: Any) -> Any:
    """Wrap a causal LM so that one forward gives the log-probs and entropies of a layout's generated tokens."""
    import torch

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, layout: Layout, temperature: float) -> tuple[Any, Any]:
            """Flat log-probs (nats, with gradient) and entropies (without) of the layout's targets, (targets,) each."""
            hidden = layout.hidden(self.model.model)
            # Heads run on generated positions only: prompts would cost as much and teach nothing.
            logits = self.model.lm_head(hidden).float()
            if temperature != 1.0:
                logits = logits / temperature
            logprobs = logits.log_softmax(-1)
            targets = layout.targets()
            count = len(targets)
            targets = torch.nn.functional.pad(targets, (0, len(hidden) - count))
            with torch.no_grad():  # by parts: whole, it takes twice the room of the log-probs
                entropy = torch.cat([-(part.exp() * part).sum(-1) for part in logprobs.split(ENTROPY_TOKENS)])
            return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)[:count], entropy[:count]

    return Policy()
