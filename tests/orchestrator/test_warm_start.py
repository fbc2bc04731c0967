from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from environments.base import Task
from environments.mapf_frozenlake.board import Board, CanonicalForm, canonical_form
from environments.registry import load_environment
from orchestrator import warm_start
from orchestrator.ask import Reader
from orchestrator.config import NewModelConfig
from orchestrator.counterfactual import sound_out
from orchestrator.engineer.controller import ControllerEngineer
from orchestrator.engineer.policy import PolicyEngineer
from orchestrator.evidence import DEFAULT_MODULES, describe, vocabulary
from orchestrator.new_model import build_tokenizer
from orchestrator.warm_start import Curriculum, cached_model, encode, examples, model_key

SETTINGS = {"agents": 2, "sizes": [3, 4], "template": "compact"}
ENVIRONMENT = load_environment("mapf_frozenlake", SETTINGS)
CURRICULUM = Curriculum(ENVIRONMENT, SETTINGS, describe(ENVIRONMENT), DEFAULT_MODULES)
TINY = NewModelConfig(hidden=32, layers=1, heads=1, steps=2, tasks_per_step=8, dialogues_per_step=4, threads=1)


def canonical(task: Task) -> CanonicalForm:
    return canonical_form(Board.from_payload(task.data()))


def silent(step: int, steps: int, metrics: dict[str, float]) -> None:
    """Progress that nobody reads."""


def test_the_same_configuration_imitates_the_same_rows() -> None:
    tokenizer = build_tokenizer([*ENVIRONMENT.vocabulary(), *vocabulary(CURRICULUM.info)])
    first, second = (list(examples(TINY, CURRICULUM, tokenizer)) for _ in range(2))
    assert first == second
    assert [(len(boards), len(spoken)) for boards, spoken in first] == [(8, 4), (8, 4)]


def test_a_reply_ends_with_the_end_of_turn_token() -> None:
    tokenizer = build_tokenizer(ENVIRONMENT.vocabulary())
    row = encode(tokenizer, [{"role": "user", "content": "3x3"}], "1: UP")
    assert row.token_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(row.token_ids[:-1]) == "1: UP"


def test_the_cache_key_covers_what_the_weights_depend_on_and_not_the_threads() -> None:
    key = model_key(TINY, CURRICULUM)
    assert model_key(TINY.model_copy(update={"threads": 2}), CURRICULUM) == key
    assert model_key(TINY.model_copy(update={"seed": 1}), CURRICULUM) != key
    other = Curriculum(ENVIRONMENT, {**SETTINGS, "sizes": [3]}, CURRICULUM.info, DEFAULT_MODULES)
    assert model_key(TINY, other) != key


def test_a_cached_model_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(warm_start, "train", fail)
        with pytest.raises(RuntimeError, match="disk full"):
            cached_model(TINY, CURRICULUM, silent, tmp_path)
    assert not list(tmp_path.iterdir())
    made = cached_model(TINY, CURRICULUM, silent, tmp_path)
    assert sorted(tmp_path.iterdir()) == [made]
    with monkeypatch.context() as patch:
        patch.setattr(warm_start, "make_model", fail)
        assert cached_model(TINY, CURRICULUM, silent, tmp_path) == made


def test_warm_start_boards_are_none_of_the_frozen_ones() -> None:
    config = TINY.model_copy(update={"steps": 16, "tasks_per_step": 32})
    frozen = {canonical(task) for s in (ENVIRONMENT.validation(), ENVIRONMENT.held_out()) for task in s.tasks}
    seen = {canonical(task) for task in warm_start.board_tasks(config, ENVIRONMENT)}
    assert len(seen) > 100
    assert not seen & frozen


def test_a_small_model_learns_to_read_evidence(tmp_path: Path) -> None:
    """Swap the results of the two strata: the reply follows the controller's change in far more cells than chance."""
    config = NewModelConfig(
        hidden=96, layers=3, heads=3, steps=500, tasks_per_step=0, dialogues_per_step=40, lr=3e-3, threads=1
    )
    made = cached_model(config, CURRICULUM, silent, tmp_path)
    engineer = PolicyEngineer(Reader(made), CURRICULUM.info, style="compact")
    controller = ControllerEngineer(CURRICULUM.info, DEFAULT_MODULES)
    total = sound_out(engineer, controller, CURRICULUM.info, seed=7, pieces=40)
    # 40 swaps ask about 150 cells; random numbers follow under half of them, so 60 % is far outside chance.
    assert total.cells > 80
    assert total.followed > 0.6 * total.cells, total
