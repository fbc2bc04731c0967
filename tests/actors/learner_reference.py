"""What learner tests compare with: a training loop in plain PyTorch, and how far two sets of weights are apart."""

from __future__ import annotations

import math
from typing import Any

from actors.config import AlgorithmConfig
from actors.records import Batch, Row

ALGORITHM = AlgorithmConfig(clip_low=0.2, clip_high=0.28, aggregation="token")
OPTIMIZER: dict[str, Any] = {"lr": 2e-3, "warmup_steps": 2, "weight_decay": 0.1, "beta2": 0.95, "max_grad_norm": 0.05}
REPLAY_WEIGHT = 0.3
TEMPERATURE = 0.7


def load(directory: Any) -> Any:
    """The causal LM of a directory, float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory)


def log_probs(model: Any, row: Row, temperature: float = TEMPERATURE) -> tuple[Any, Any]:
    """Log-probs (nats) of a row's generated tokens and the entropies there: no padding, no packing, all logits."""
    import torch

    ids = torch.tensor([row.prompt_ids + row.token_ids])
    logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1] / temperature
    distribution = logits.log_softmax(-1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, torch.tensor(row.token_ids).unsqueeze(-1)).squeeze(-1), entropy


def frozen_log_probs(model: Any, rows: Any) -> list[Any]:
    """The same without gradient, for several rows."""
    import torch

    with torch.no_grad():
        return [log_probs(model, row)[0] for row in rows]


def policy_sums(
    model: Any, batch: Batch, old: list[Any], initial: list[Any] | None, coefficient: float
) -> dict[str, float]:
    """Backward passes of the clipped surrogate (token mean), one row at a time; sums of its statistics.

    ``old``: log-probs that ratios are to. ``initial``: the reference's, for ``coefficient`` times the k3 estimate.
    """
    import torch

    low, high = 1 - ALGORITHM.clip_low, 1 + ALGORITHM.clip_high
    tokens = sum(len(row.token_ids) for row in batch.rows)
    sums = dict.fromkeys(("loss", "kl_loss", "kl_reference", "entropy", "clipped", "kl", "mismatch"), 0.0)
    for i, row in enumerate(batch.rows):
        now, entropy = log_probs(model, row)
        sampled = torch.tensor(row.logprobs, dtype=now.dtype)
        ratio = (now - old[i]).exp()
        surrogate = torch.minimum(ratio * row.advantage, ratio.clamp(low, high) * row.advantage)
        loss = -surrogate.sum() / tokens
        sums["loss"] += loss.item()
        if initial is not None:
            away = initial[i] - now
            penalty = (away.exp() - 1 - away).sum()
            loss = loss + coefficient * penalty / tokens
            sums["kl_reference"] += penalty.item() / tokens
            sums["kl_loss"] += coefficient * penalty.item() / tokens
        loss.backward()
        since = now.detach() - sampled
        sums["entropy"] += entropy.sum().item() / tokens
        sums["clipped"] += (ratio > high if row.advantage > 0 else ratio < low).sum().item() / tokens
        sums["kl"] += (since.exp() - 1 - since).sum().item() / tokens
        sums["mismatch"] += since.abs().sum().item() / tokens
    return sums


def replay_loss(model: Any, batch: Batch, weight: float) -> float:
    """Backward passes of the imitation term; its mean negative log-likelihood (nats) before the weight."""
    tokens, total = sum(len(row.token_ids) for row in batch.replay), 0.0
    for row in batch.replay:
        nll = -log_probs(model, row)[0].sum()
        (weight * nll / tokens).backward()
        total += nll.item() / tokens
    return total


def bare_loop(
    model: Any,
    batch: Batch,
    updates: int,
    *,
    replay_weight: float = 0.0,
    per_batch: int = 1,
    kl: float = 0.0,
    **settings: Any,
) -> list[dict[str, float]]:
    """AdamW in plain PyTorch on a model, in place. Returns the metrics of each update.

    ``per_batch`` > 1: ratios are to the model before each such block of updates, not to the sampled log-probs.
    """
    import torch

    chosen = {**OPTIMIZER, **settings}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=chosen["lr"], betas=(0.9, chosen["beta2"]), weight_decay=chosen["weight_decay"]
    )
    curve = []
    initial = frozen_log_probs(model, batch.rows) if kl else None
    old = [torch.tensor(row.logprobs) for row in batch.rows]
    for update in range(updates):
        if per_batch > 1 and update % per_batch == 0:
            old = frozen_log_probs(model, batch.rows)
        sums = policy_sums(model, batch, old, initial, kl)
        imitated = replay_loss(model, batch, replay_weight)
        norm = torch.nn.utils.clip_grad_norm_(trained, chosen["max_grad_norm"])
        warmup = chosen["warmup_steps"]
        for group in optimizer.param_groups:
            group["lr"] = chosen["lr"] * (min(1.0, (update + 1) / warmup) if warmup else 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curve.append(
            {
                "loss/policy": sums["loss"],
                "loss/replay": imitated,
                "policy/entropy": sums["entropy"],
                "policy/clip_share": sums["clipped"],
                "policy/kl_rollout": sums["kl"],
                "policy/mismatch": sums["mismatch"],
                "policy/masked_share": 0.0,
                "policy/effective_sample_size": 1.0,
                "policy/grad_norm": norm.item(),
                "policy/learning_rate": optimizer.param_groups[0]["lr"],
            }
            | ({"loss/kl": sums["kl_loss"], "policy/kl_reference": sums["kl_reference"]} if kl else {})
        )
    return curve


def weights_of(group: Any) -> dict[str, Any]:
    """What a group's rank 0 would send to the engines."""
    import ray

    def collect(rank: Any) -> dict[str, Any]:
        return {name: tensor.cpu().clone() for name, tensor in rank.weights()}

    return ray.get([rank.__ray_call__.remote(collect) for rank in group._ranks], timeout=240)[0]


def moved_alike(before: dict[str, Any], found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Distance of two weight sets, relative to how far ``expected`` has moved from ``before``."""
    assert found.keys() == expected.keys()
    apart = sum((found[name].double() - expected[name].double()).square().sum().item() for name in expected)
    moved = sum((expected[name].double() - before[name].double()).square().sum().item() for name in expected)
    assert moved > 0
    return math.sqrt(apart / moved)


def parameters(model: Any) -> dict[str, Any]:
    """A model's weights by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train(group: Any, batch: Batch, updates: int) -> list[dict[str, float]]:
    """Metrics of updates on the same batch."""
    return [group.update(batch).metrics for _ in range(updates)]
