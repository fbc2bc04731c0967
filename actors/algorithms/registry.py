"""The algorithms by the name that the configuration gives them."""

from __future__ import annotations

from actors.algorithms import cispo, dapo, dr_grpo, grpo, gspo, reinforce_plus_plus, rloo
from actors.algorithms.objective import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": grpo.ALGORITHM,
    "dr_grpo": dr_grpo.ALGORITHM,
    "dapo": dapo.ALGORITHM,
    "gspo": gspo.ALGORITHM,
    "cispo": cispo.ALGORITHM,
    "rloo": rloo.ALGORITHM,
    "reinforce_plus_plus": reinforce_plus_plus.ALGORITHM,
}
