"""How the tokens of a batch become one mean: the share of each."""

from __future__ import annotations

from collections.abc import Sequence

from actors.algorithms.objective import Objective
from actors.records import Row


def token_weights(rows: Sequence[Row], objective: Objective, max_new_tokens: int) -> list[float]:
    """The weight of each generated token of each row; weighted sums over the whole batch are the batch's means.

    ``token``: every token counts the same, 1 / all tokens (DAPO, Yu et al. 2025). ``sequence``: every completion
    counts the same, 1 / (rows · its length) (GRPO, Shao et al. 2024). ``constant``: 1 / (rows · ``max_new_tokens``),
    so that the length of a completion does not change what its tokens weigh (Dr. GRPO, Liu et al. 2025).
    ``rows`` is the whole batch, not a rank's part of it.
    """
    count = max(1, len(rows))
    if objective.aggregation == "token":
        return [1.0 / max(1, sum(len(row.token_ids) for row in rows))] * len(rows)
    if objective.aggregation == "constant":
        return [1.0 / (count * max_new_tokens)] * len(rows)
    return [1.0 / (count * max(1, len(row.token_ids))) for row in rows]
