"""Policy-gradient algorithms in pure torch, one file each, chosen by name and composed by the configuration.

A batch is built by ``actors.batching.make_batch`` (shaping, filters, advantages). The learner gives each row its
``token_weights`` and adds up ``policy_loss`` over micro-batches and ranks: the sum is the batch loss.
"""

from __future__ import annotations

from actors.algorithms.aggregation import token_weights
from actors.algorithms.loss import policy_loss, training_metrics
from actors.algorithms.objective import Objective
from actors.algorithms.tokens import Tokens

__all__ = ["Objective", "Tokens", "policy_loss", "token_weights", "training_metrics"]
