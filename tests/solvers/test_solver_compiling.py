"""Kernels are compiled once per machine, wherever a Ray job's working directory is unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import solvers

REPORT = """
import sys, solvers
assert not {"numba", "torch", "ray", "vllm"} & set(sys.modules), "heavy import"
solvers.warm_up()
from solvers.kernels.label import label_batch
stats = label_batch.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), solvers.__file__)
"""


def test_a_copy_with_other_paths_and_times_does_not_compile_again(tmp_path):
    solvers.warm_up()
    copy = tmp_path / "elsewhere" / "solvers"
    shutil.copytree(Path(solvers.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for source in copy.rglob("*.py"):
        os.utime(source, (1_000_000_000, 1_000_000_000))
    output = subprocess.run(
        [sys.executable, "-c", REPORT], cwd=copy.parent, capture_output=True, text=True, check=True, timeout=200
    ).stdout.split()
    assert output == ["1", "0", str(copy / "__init__.py")]


def test_every_accepted_input_uses_the_one_compiled_kernel():
    """Read-only arrays come out of Ray's object store, transposed and narrow ones out of a user's hands."""
    from solvers.kernels.label import label_batch

    solvers.warm_up()
    frozen = np.zeros((1, 4, 4), bool)
    frozen.flags.writeable = False
    starts = np.array([[0], [1]], np.int32).T
    goals = np.array([[2, 3]], np.uint8)
    goals.flags.writeable = False
    solvers.solve_batch(frozen, starts, goals)
    solvers.solve_batch(np.zeros((4, 4, 1), np.int64).T, starts, goals)
    assert len(label_batch.signatures) == 1
