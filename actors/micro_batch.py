"""From a batch to the forward and backward passes of one rank. Every rank runs the same number of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from actors.algorithms import Tokens
from actors.packing import pack, packs
from actors.records import Row
from actors.sequences import EMPTY, Layout, micro_batches, pad

if TYPE_CHECKING:
    import torch

LayoutKind = Literal["padded", "grid", "varlen"]
"""How rows lie in a pass: padded, or packed with attention on a grid or by a kernel for varying lengths."""


@dataclass(slots=True)
class MicroBatch:
    """One pass: where its rows lie, and what the loss reads beside the log-probs. Tensors are (tokens,).

    ``old`` and ``reference`` are filled in by the learner when the objective wants them.
    """

    rows: list[Row]
    layout: Layout
    behaviour: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    sequence: torch.Tensor
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None

    def tokens(self, logprobs: torch.Tensor, *, proximal: bool) -> Tokens:
        """What ``policy_loss`` reads. ``proximal``: ratios are to the learner before its first update on the batch."""
        old = self.behaviour
        if proximal:
            old = logprobs.detach() if self.old is None else self.old
        return Tokens(
            logprobs=logprobs,
            old=old,
            behaviour=self.behaviour,
            reference=self.reference,
            advantages=self.advantages,
            weights=self.weights,
            sequence=self.sequence,
        )


def deal(rows: Sequence[Row], ranks: int) -> list[list[int]]:
    """Numbers of the rows of each rank: about as many tokens for each, rows of one prompt together where possible.

    The rows in the order of their prompts' first appearance are cut where a rank has its share; a prompt counts once.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.prompt_ids, []).append(i)
    costs = [
        (i, len(rows[i].token_ids) + (0 if k else len(prompt)))
        for prompt, members in groups.items()
        for k, i in enumerate(members)
    ]
    total = sum(cost for _, cost in costs)
    out: list[list[int]] = [[] for _ in range(ranks)]
    before = 0
    for i, cost in costs:
        # By its middle, a row belongs to the rank in whose share that lies.
        out[min(ranks - 1, (2 * before + cost) * ranks // (2 * total))].append(i)
        before += cost
    return out


def cut(rows: Sequence[Row], ranks: int, rank: int, max_tokens: int, *, packed: bool) -> list[list[Row]]:
    """This rank's micro-batches of the rows, as many as on every other rank: the missing ones are empty passes."""
    if not rows:
        return []
    split = packs if packed else micro_batches
    parts = [split([rows[i] for i in numbers], max_tokens) for numbers in deal(rows, ranks)]
    count = max(map(len, parts))
    return parts[rank] + [[EMPTY]] * (count - len(parts[rank]))


def build(
    rows: list[Row], weights: Mapping[int, float], kind: LayoutKind, device: Any, *, multiple: int = 1
) -> MicroBatch:
    """The tensors of one pass; ``weights`` has the loss weight of a generated token by the ``id`` of its row. A pack is
    padded to a ``multiple`` of tokens."""
    import torch

    layout = pad(rows) if kind == "padded" else pack(rows, varlen=kind == "varlen", multiple=multiple)
    real = [row for row in rows if row is not EMPTY and row.token_ids]
    sequence = torch.arange(len(real)).repeat_interleave(torch.tensor([len(row.token_ids) for row in real]).long())

    def floats(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return MicroBatch(
        rows=rows,
        layout=layout.to(device),
        behaviour=floats([x for row in real for x in (row.logprobs or (0.0,) * len(row.token_ids))]).to(device),
        advantages=floats([row.advantage for row in real])[sequence].to(device),
        weights=floats([weights[id(row)] for row in real])[sequence].to(device),
        sequence=sequence.to(device),
    )
