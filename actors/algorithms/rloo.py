"""RLOO (Kool et al. 2019; Ahmadian et al. 2024, "Back to basics", arXiv 2402.14740).

REINFORCE whose baseline is the mean reward of the group's other completions, so that it does not depend on the sample
it is subtracted from. The completion is one action: log-probs are summed, not averaged, over its tokens; ``constant``
does that, times 1 / ``max_new_tokens``. The paper updates once per batch, where PPO's clip is inactive and the gradient
is REINFORCE's; with more updates the clip bounds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.algorithms.advantages import centre, standardise
from actors.algorithms.clipping import token_surrogate
from actors.algorithms.objective import Algorithm, Defaults


def leave_one_out(groups: Sequence[Sequence[float]], normalise_std: bool) -> list[list[float]]:
    """Reward minus the mean of the others in its group; the deviation, if asked for, is that of these differences.

    With n members that is n / (n - 1) times the difference to the mean of all. A lone member has advantage 0.
    """
    out = []
    for rewards in groups:
        factor = len(rewards) / max(1, len(rewards) - 1)
        differences = [factor * c for c in centre(rewards)]
        out.append(standardise(differences) if normalise_std else differences)
    return out


ALGORITHM = Algorithm(leave_one_out, token_surrogate, Defaults(normalise_std=False, aggregation="constant"))
