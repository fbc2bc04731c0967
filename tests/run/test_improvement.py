"""The laptop recipe's small model gets better on held-out boards, whatever the algorithm. Minutes each."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.store import RunStore
from tests.run.conftest import RECIPE, envwright

SETTINGS = {
    "grpo": [],
    "dapo": ["algorithm={name: dapo, normalise_std: false}"],
    # With one update a batch all ratios are 1 and its gradient is GRPO's: the second one is where they part.
    "gspo": ["algorithm={name: gspo, normalise_std: false, updates_per_batch: 2}"],
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_small_model_improves_on_held_out_boards(name: str, tmp_path: Path, cache: Path) -> None:
    """The recipe as it ships but for the algorithm: the paired 95 % interval of the change lies above zero."""
    done = envwright(cache, "train", str(RECIPE), f"output={tmp_path}", f"name={name}", *SETTINGS[name], timeout=3500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = RunStore.open(tmp_path / name).read_summary()
    assert summary is not None
    pooled = summary["before_after"][-1]
    assert pooled["n"] >= 1000
    assert pooled["low"] > 0, pooled
