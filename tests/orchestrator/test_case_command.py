"""``envwright case``: two checkpoints on the same board, side by side."""

from __future__ import annotations

import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.cases import committed
from environments.mapf_frozenlake.pictures import WRITERS
from environments.registry import load_environment
from orchestrator import case
from orchestrator.ask import Completion
from orchestrator.cli import main
from orchestrator.config import NewModelConfig, dump, load
from orchestrator.store import RunStore

SETTINGS = {"agents": 2, "sizes": [3, 4, 5], "template": "compact"}
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "laptop.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights and the word tokenizer of two agents on boards up to 5x5."""
    from orchestrator.new_model import build_model, build_tokenizer, save

    tokenizer = build_tokenizer(load_environment("mapf_frozenlake", SETTINGS).vocabulary())
    directory = tmp_path_factory.mktemp("model")
    save(build_model(NewModelConfig(hidden=32, layers=1, heads=1), len(tokenizer)), tokenizer, directory)
    return directory


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """A finished run: its stored configuration and its exported model."""
    folder = tmp_path / "laptop"
    RunStore.create(folder, dump(load(RECIPE, ["rollout.max_new_tokens=5"])))
    shutil.copytree(model, folder / "model")
    return folder


def envwright(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The command's exit status."""
    monkeypatch.setattr(sys, "argv", ["envwright", "case", *words])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def rows(shown: str) -> dict[str, list[str]]:
    """The table's cells by letter, without the name of the checkpoint."""
    lines = (line.split() for line in shown.splitlines())
    return {words[0]: words[-6:] for words in lines if words and words[0] in ("A", "B")}


def test_the_oracle_against_itself_is_optimal_on_both_boards_of_the_paper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, payload in committed().items():
        assert envwright(monkeypatch, "oracle", "oracle", "--board", name) == 0
        shown = capsys.readouterr().out
        best = str(payload["makespan"])
        assert rows(shown) == {letter: ["-", "optimal", "yes", "yes", best, best] for letter in "AB"}
        assert shown.count(f"agent {len(payload['starts'])}: ") == 3, "once in the legend, once for each plan"


def test_pictures_of_both_are_written_in_every_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "pictures"
    assert envwright(monkeypatch, "oracle", "oracle", "--board", "paper-3x3", "--out", str(out), "--ascii") == 0
    assert {p.name for p in out.iterdir()} == {f"{letter}{ending}" for letter in "AB" for ending in WRITERS}
    ElementTree.parse(out / "A.svg")
    shown = capsys.readouterr().out
    assert shown.count("step 4") == 2 and (out / "B.txt").read_text().strip() in shown


def test_a_model_directory_and_a_run_answer_in_their_templates_and_limits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, run: Path
) -> None:
    options = ("--board", "paper-3x3", "--template", "compact", "--max-new-tokens", "7")
    assert envwright(monkeypatch, str(model), str(run), *options) == 0
    found = rows(capsys.readouterr().out)
    assert (found["A"][0], found["B"][0]) == ("7", "5"), "a run's own limit counts"
    assert {row[1] for row in found.values()} == {"truncated"}
    prompt = {"template": "compact", "objective": "makespan", "board_view": "both", "plan_format": "lines"}
    assert case.contestant(str(run), "text", 9).prompt == prompt
    assert case.contestant(str(model), None, None).prompt == {"template": "text"}


def test_what_a_model_says_is_carried_out_and_compared_with_the_optimum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    said = iter(["1: UP LEFT WAIT WAIT RIGHT\n2: RIGHT RIGHT UP UP", "1: LEFT\n2: RIGHT"])

    def complete(self: Any, ids: Any, max_tokens: int) -> Completion:
        return Completion(next(said), 12, False)

    monkeypatch.setattr(case.Reader, "complete", complete)
    assert envwright(monkeypatch, str(model), str(model), "--board", "paper-3x3", "--template", "compact") == 0
    shown = capsys.readouterr().out
    assert rows(shown) == {
        "A": ["12", "valid", "yes", "no", "5", "4"],
        "B": ["12", "vertex_conflict", "no", "no", "-", "4"],
    }
    assert "step 1: agents 1 and 2 meet at row 2, column 1" in shown


def test_a_run_trained_on_paths_is_judged_and_drawn_by_its_paths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path
) -> None:
    settings = ("board_view=coordinates", "plan_format=coordinates")
    overrides = [f"environment.settings.{setting}" for setting in settings]
    RunStore.create(tmp_path / "paths", dump(load(RECIPE, overrides)))
    shutil.copytree(model, tmp_path / "paths" / "model")
    plan = "1: r2c2 r1c2 r1c2 r1c1 r1c2\n2: r2c0 r2c1 r2c2 r1c2 r0c2"
    asked: list[str] = []

    def complete(self: Any, ids: Any, max_tokens: int) -> Completion:
        asked.append(self.tokenizer.decode(ids))
        return Completion(plan, 12, False)

    monkeypatch.setattr(case.Reader, "complete", complete)
    assert envwright(monkeypatch, "oracle", str(tmp_path / "paths"), "--board", "paper-3x3") == 0
    shown = capsys.readouterr().out
    assert "# r0c1" in asked[0], "the board is shown as coordinates"
    assert rows(shown)["B"] == ["12", "optimal", "yes", "yes", "4", "4"]
    assert "agent 1: r2c2 r1c2 r1c2 r1c1 r1c2" in shown.split("B: ")[1]


def test_a_thought_that_the_template_opens_stands_in_front_of_the_completion(model: Path) -> None:
    import torch

    reader = case.Reader(model)
    reader.tokenizer.chat_template += "{{ '<think>' }}"
    reader._model.generate = lambda prompt, **options: torch.cat([prompt, prompt[:, :1]], dim=1)
    assert reader.complete(reader.tokenizer.encode("1: UP"), 1).text.startswith("<think>")


def test_a_completion_counts_its_end_token_and_is_cut_only_by_the_limit(model: Path) -> None:
    import torch

    reader = case.Reader(model)
    ids = reader.tokenize(MapfFrozenLake(None).prompt(_task()))
    end = reader.tokenizer.eos_token_id

    def generate(prompt: Any, **options: Any) -> Any:
        return torch.cat([prompt, torch.tensor([[*reader.tokenizer.encode("1: UP"), end]])], dim=1)

    reader._model.generate = generate
    assert reader.complete(ids, 3) == Completion("1: UP", 3, False)
    reader._model.generation_config.eos_token_id = None
    assert reader.complete(ids, 3).truncated


def _task() -> Any:
    from environments.mapf_frozenlake.cases import load_case

    return load_case("paper-3x3")


def test_a_small_model_that_lacks_the_words_of_a_board_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert envwright(monkeypatch, "oracle", str(run), "--board", "paper-10x10", "--out", str(out)) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot read a 10x10 board with 5 agents: its vocabulary lacks 3:, 4:" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("first", "options", "message"),
    [
        ("nowhere", (), "'nowhere' is no checkpoint: give a finished run"),
        ("{empty}", (), "is no checkpoint"),
        ("{unfinished}", (), "has no exported model: give a finished run"),
        ("{other}", (), "was trained on other"),
        ("{broken}", (), "cannot be loaded"),
        ("oracle", ("--board", "nowhere.json"), "neither a file nor one of paper-3x3, paper-10x10"),
        ("oracle", ("--board", "{text}"), "cannot be read as JSON"),
        ("oracle", ("--out", "{text}"), "cannot be a folder for pictures"),
    ],
)
def test_bad_input_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    first: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    places = {name: str(tmp_path / name) for name in ("empty", "unfinished", "other", "broken", "text")}
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no board")
    RunStore.create(tmp_path / "unfinished", dump(load(RECIPE)))
    RunStore.create(tmp_path / "other", dump(load(RECIPE, ["environment.name=other"])))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    words = [word.format(**places) for word in (first, "oracle", "--board", "paper-3x3", *options)]
    assert envwright(monkeypatch, *words) == 1
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
