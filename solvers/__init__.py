"""Exact ground truth for multi-agent path finding on boards of 3x3 to 10x10 with up to five agents.

In reading order:

- `labels`: the vocabulary of the answers. `instances`: what a well-formed question is.
- `batch`: the front door, `solve_batch`.
- `validator`: certifies a plan without sharing code with the search.
- `compiling`: the door to numba and the content-keyed compile cache.
- `kernels/`: `label` (one instance) asks `group` (one component), which uses `board` (distances), `pairs` (exact
  two-agent tables), `search` (joint A*; open list in `store`, lower bounds in `bounds`), `conflicts` (conflict-based
  search for the sum of costs; low level in `replan`) and `reach` (proof of unsolvability); `workspace` is the memory
  of one worker.

Importing this package imports neither numba nor anything of the learner; numba is loaded by the first solve.
"""

from solvers.batch import ALL_LABELS, NODE_BUDGET, solve, solve_batch, warm_up
from solvers.labels import ACTIONS, BatchLabels, Labels, Plan, Status
from solvers.validator import PlanCheck, validate_plan

__all__ = [
    "ACTIONS",
    "ALL_LABELS",
    "NODE_BUDGET",
    "BatchLabels",
    "Labels",
    "Plan",
    "PlanCheck",
    "Status",
    "solve",
    "solve_batch",
    "validate_plan",
    "warm_up",
]
