"""Rows packed into one sequence side by side, in which a prompt that several rows share is computed once.

The tokens of a pack lie one after the other; ``positions`` start anew in each row. Attention works on *runs*: a run's
tokens see each other causally and, if it has a prefix, all of the prefix. A prompt of one row is a run together with
that row's generated tokens; a prompt of several rows is a run, and each row's generated tokens are one more with the
prompt as their prefix. The gradient of a shared prompt is then the sum over its rows, which is what they add up to.

Everything outside of attention works on each token by itself, so it needs no change. Attention of a pack is either the
device's kernel for sequences of varying length or, where there is none, a padded grid used in attention only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from actors.records import Row
from actors.sequences import EMPTY

if TYPE_CHECKING:
    import torch

ATTENTION = "envwright_runs"
"""The name under which transformers finds ``attend``."""


class Runs(Protocol):
    """Consecutive runs of tokens and what each sees."""

    def to(self, device: Any) -> Runs:
        """The same on another device."""
        ...

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """(run tokens, heads, width) queries and the pack's (tokens, key heads, width) keys and values → outputs."""
        ...


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens and positions int64 (tokens,); ``predicting`` int64 (targets,) indexes the states that predict ``labels``.

    ``runs`` cover the tokens in order, each with its number of tokens. Padding follows them, and the states of padding
    follow those of the labels.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    predicting: torch.Tensor
    labels: torch.Tensor
    runs: tuple[tuple[int, Runs], ...]

    def to(self, device: Any) -> Packed:
        """The same on another device."""
        names = ("tokens", "positions", "predicting", "labels")
        moved = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **moved, runs=tuple((count, runs.to(device)) for count, runs in self.runs))

    def hidden(self, backbone: Callable[..., Any]) -> torch.Tensor:
        """Last hidden states (targets and padding, width): where generated tokens are predicted, then padding."""
        states: torch.Tensor = backbone(
            input_ids=self.tokens[None], position_ids=self.positions[None], use_cache=False, runs=self.runs
        ).last_hidden_state
        return states[0].index_select(0, self.predicting)

    def targets(self) -> torch.Tensor:
        """Those generated tokens, int64 (targets,)."""
        return self.labels


@dataclass(frozen=True, slots=True)
class Grid:
    """Runs as rows of a padded grid: ``queries`` (runs, width) are indices among the runs' tokens, ``keys`` (runs, key
    width) among all, and ``back`` (run tokens,) takes the cells that are tokens. ``mask`` (runs, 1, width, key width),
    or None where it is plainly causal: right padding is then never seen."""

    queries: torch.Tensor
    keys: torch.Tensor
    back: torch.Tensor
    mask: torch.Tensor | None

    def to(self, device: Any) -> Grid:
        """The same on another device."""
        mask = None if self.mask is None else self.mask.to(device)
        return Grid(self.queries.to(device), self.keys.to(device), self.back.to(device), mask)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """Scaled dot-product attention on the grid."""
        from torch.nn.functional import scaled_dot_product_attention

        def spread(tokens: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return tokens.index_select(0, grid.flatten()).unflatten(0, grid.shape).transpose(1, 2)

        out = scaled_dot_product_attention(
            spread(query, self.queries),
            spread(key, self.keys),
            spread(value, self.keys),
            attn_mask=self.mask,
            is_causal=self.mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.back)


@dataclass(frozen=True, slots=True)
class Varlen:
    """Runs for torch's variable-length attention (flash, half precision on CUDA): token indices of all keys, or None
    where they are the queries; cumulated lengths int32 (runs + 1,) and the longest of both sides."""

    keys: torch.Tensor | None
    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int

    def to(self, device: Any) -> Varlen:
        """The same on another device."""
        keys = None if self.keys is None else self.keys.to(device)
        return replace(self, keys=keys, query_ends=self.query_ends.to(device), key_ends=self.key_ends.to(device))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """Causal attention aligned at the end: a run's last token sees all of its keys."""
        from torch.nn.attention.varlen import varlen_attn

        if self.keys is None:
            key, value = key[: len(query)], value[: len(query)]
        else:
            key, value = key.index_select(0, self.keys), value.index_select(0, self.keys)
        out: torch.Tensor = varlen_attn(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            self.query_ends,
            self.key_ends,
            self.longest_query,
            self.longest_key,
            scale=scale,
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float,
    runs: tuple[tuple[int, Runs], ...],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a pack, as transformers calls it: query (1, heads, tokens, width) → (1, tokens, heads, width)."""
    import torch

    queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    out, first = [], 0
    for count, run in runs:
        out.append(run.attend(queries[first : first + count], keys, values, scaling))
        first += count
    if padding := len(queries) - first:
        out.append(values.new_zeros(padding, queries.shape[1], values.shape[2]))
    return torch.cat(out)[None], None


def packable(model: Any) -> bool:
    """Whether a model's attention can be replaced: full causal attention in every layer, through transformers' hook."""
    config = model.config
    full = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    plain = full and not getattr(config, "sliding_window", None) and not getattr(config, "attn_logit_softcapping", None)
    return plain and bool(getattr(model, "_supports_attention_backend", False))


def use_packing(model: Any) -> None:
    """Make a model's attention read packs (and nothing else)."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    model.set_attn_implementation(ATTENTION)


def packs(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Cut rows into lists of at most ``max_tokens`` computed tokens (at least one row each).

    Rows of one prompt stay together, those with the longest row first: a grid is as wide as its longest run.
    """
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt_ids, []).append(row)
    out: list[list[Row]] = []
    used, prompt = 0, None
    for group in sorted(groups.values(), key=lambda group: max(map(len, group)), reverse=True):
        for row in group:
            cost = len(row.token_ids) - 1 + (0 if row.prompt_ids == prompt else len(row.prompt_ids))
            if not out or used + cost > max_tokens:
                out.append([])
                used, cost = 0, len(row) - 1
            out[-1].append(row)
            used, prompt = used + cost, row.prompt_ids
    return out


@dataclass(frozen=True, slots=True)
class Run:
    """``length`` tokens from index ``first`` on, with a prefix of ``prefix_length`` tokens from ``prefix`` on."""

    first: int
    length: int
    prefix: int = 0
    prefix_length: int = 0


def pack(rows: Sequence[Row], *, varlen: bool, multiple: int = 1) -> Packed:
    """One pack of the rows; ``varlen`` where the device has a kernel for it. Tokens and states fill a ``multiple``.

    A row's last token is left out: it predicts nothing.
    """
    uses = Counter(row.prompt_ids for row in rows)
    tokens: list[int] = []
    positions: list[int] = []

    def append(ids: Sequence[int], position: int) -> int:
        tokens.extend(ids)
        positions.extend(range(position, position + len(ids)))
        return len(tokens) - len(ids)

    prompts: dict[tuple[int, ...], Run] = {}
    for row in rows:
        if row.prompt_ids not in prompts:
            ids = row.prompt_ids if uses[row.prompt_ids] > 1 else row.prompt_ids + row.token_ids[:-1]
            prompts[row.prompt_ids] = Run(append(ids, 0), len(ids))
    branches: list[Run] = []
    predicting: list[int] = []
    for row in rows:
        first, size, more = prompts[row.prompt_ids].first, len(row.prompt_ids), len(row.token_ids) - 1
        if row is EMPTY or more < 0:
            continue
        begin = first + size
        if uses[row.prompt_ids] > 1 and more:
            begin = append(row.token_ids[:-1], size)
            branches.append(Run(begin, more, first, size))
        predicting += (first + size - 1, *range(begin, begin + more))
    labels = [token for row in rows if row is not EMPTY for token in row.token_ids]
    blocks = [block for block in (list(prompts.values()), branches) if block]
    runs = tuple((sum(run.length for run in block), (_varlen if varlen else _grid)(block)) for block in blocks)
    for values in (tokens, positions, predicting):
        values += [0] * _padding(len(values), multiple)
    return Packed(_integers(tokens), _integers(positions), _integers(predicting), _integers(labels), runs)


def room(max_tokens: int, multiple: int) -> int:
    """Tokens that a pack may have so that with its padding it has at most ``max_tokens``."""
    return max_tokens if multiple == 1 else max(1, max_tokens // multiple * multiple - 2)


def _padding(count: int, multiple: int) -> int:
    """So many more make a multiple: two at least, since compiled layers take none and one for cases of their own."""
    few = -count % multiple
    return few + multiple if few < 2 <= multiple else few


def _integers(values: Sequence[int]) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.long)


def _keys(run: Run) -> list[int]:
    own = range(run.first, run.first + run.length)
    return [*range(run.prefix, run.prefix + run.prefix_length), *own]


def _grid(block: Sequence[Run]) -> Grid:
    """Key columns: the prefixes, as wide as the longest, then the runs' own tokens."""
    import torch

    first, length, prefix, prefix_length = (
        _integers([getattr(run, name) for run in block])[:, None] for name in Run.__dataclass_fields__
    )
    width, before = int(length.max()), int(prefix_length.max())
    column = torch.arange(width)
    own = first + torch.minimum(column, length - 1)
    back = (column < length).flatten().nonzero().squeeze(1)
    queries = own - block[0].first
    if not before:
        return Grid(queries, own, back, None)
    earlier = torch.arange(before)
    seen = (earlier < prefix_length)[:, None, None].expand(-1, 1, width, -1)
    causal = (column <= column[:, None])[None, None].expand(len(block), 1, -1, -1)
    keys = torch.cat([prefix + torch.minimum(earlier, prefix_length - 1), own], dim=1)
    return Grid(queries, keys, back, torch.cat([seen, causal], dim=3))


def _varlen(block: Sequence[Run]) -> Varlen:
    import torch

    def ends(lengths: Sequence[int]) -> torch.Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)

    queries = [run.length for run in block]
    sizes = [run.length + run.prefix_length for run in block]
    keys = _integers([key for run in block for key in _keys(run)]) if sizes != queries else None
    return Varlen(keys, ends(queries), ends(sizes), max(queries), max(sizes))
