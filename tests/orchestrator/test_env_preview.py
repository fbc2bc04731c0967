"""``envwright env preview``: what a recipe generates, and an exit status that says whether a run can use it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from environments.base import stream
from environments.mapf_frozenlake import item_cache
from environments.registry import load_environment
from orchestrator.cli import main
from orchestrator.config import ConfigError, load
from orchestrator.env_preview import FINISHED_ITEMS, choose_knobs, preview
from orchestrator.histograms import bars, strips

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "laptop.yaml"

ODD = """
import random
from environments import base
from environments.simple import SimpleEnvironment

class Outcome(base.Outcomes):
    WRONG = "wrong", "another number"
    RIGHT = "right", "twice the number"

class Doubles(SimpleEnvironment):
    name, Outcome, solved = "doubles", Outcome, frozenset({"right"})
    def stratum_names(self): return ("even", "odd")
    def draw(self, stratum, row, rng): return {"number": 2 * rng.randrange(5000) + (stratum == "odd")}
    def prompt(self, task): return [{"role": "user", "content": f"Double {task.data()['number']}"}]
    def answer(self, task): return str(2 * task.data()["number"])
    def score(self, task, completion, *, truncated=False):
        right = completion.strip() == str(2 * task.data()["number"])
        return base.Verdict(float(right), "right" if right else "wrong")

class Silent(Doubles):
    def answer(self, task): raise base.NoAnswer("it knows no answers")

class Leaky(Doubles):
    def validation(self):
        return base.FrozenSet("validation", tuple(self.generate(self.default_knobs(), 0, 0, 30)), "x")

class Unfixed(Doubles):
    def held_out(self): raise ValueError("it has no held-out tasks")

class Hashed(Doubles):
    def draw(self, stratum, row, rng):
        return {"number": 2 * (hash("seed") % 1000 + rng.randrange(5000)) + (stratum == "odd")}

class Gullible(Doubles):
    def score(self, task, completion, *, truncated=False):
        return base.Verdict(1.0, "right") if completion else super().score(task, completion)

class Stingy(Doubles):
    def score(self, task, completion, *, truncated=False):
        return base.Verdict(super().score(task, completion).reward / 2, "wrong")
"""


def shown(*overrides: str, count: int = 40, knobs: str = "stage-0") -> tuple[int, str]:
    """Exit status and text of a preview of the laptop recipe."""
    page = io.StringIO()
    status = preview(load(RECIPE, overrides), Console(file=page, width=100), count=count, knobs=knobs)
    return status, page.getvalue()


def failed(text: str) -> list[str]:
    return [line.partition(":")[0] for line in text.splitlines() if ": FAILED: " in line]


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that holds ``ODD``, where this process and its children find it."""
    (tmp_path / "odd_doubles.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_doubles", raising=False)
    return "odd_doubles"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cache") / "labels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FINISHED_ITEMS, str(folder))
        status, text = shown(count=70)
    assert status == 0, text
    assert FINISHED_ITEMS == item_cache.VARIABLE and not folder.exists(), "it measures how items are made"
    return text


def test_a_preview_shows_boards_lengths_shapes_yields_and_properties(laptop: str) -> None:
    for part in (
        "stratum  share %  hole_ratio %  wait_ratio %  tasks",
        "best answer to task",
        "tokens of the word tokenizer that model.new would make",
        "prompts, against rollout.max_prompt_tokens = 224",
        "plan length by stratum",
        "waits by stratum",
        "ms per kept",
        "none is in validation or held_out",
        "the same tasks and prompts in two fresh processes",
        "best answer: ok reward 1 (70 optimal)",
        "empty answer: ok reward 0 (70 parse_error)",
        "prompt echo: ok reward 0 (70 parse_error)",
    ):
        assert part in laptop
    assert laptop.count("optimum: makespan") == 3 and not failed(laptop)


def test_a_preview_fits_a_hundred_columns(laptop: str) -> None:
    _, text = shown("environment.settings={sizes: [10], plan_format: json}", "model.path=some/model", count=10)
    assert max(map(len, [*laptop.splitlines(), *text.splitlines()])) <= 100
    assert "lengths are in words: the tokenizer of some/model is not on this machine" in text


def test_the_knobs_are_those_that_the_run_draws_for_stage_0(laptop: str) -> None:
    config = load(RECIPE)
    drawn = load_environment("mapf_frozenlake", config.environment.settings).random_knobs(
        stream(config.seed, "stage 0")
    )
    for name, row in drawn.strata.items():
        (line,) = [line for line in laptop.splitlines() if line.split()[:1] == [name] and "%" not in line][:1]
        assert line.split()[1:4] == [str(row.share), str(row.hole_ratio), str(row.wait_ratio)]


def test_knobs_come_from_a_file_and_a_bad_one_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "knobs.yaml"
    config = load(RECIPE, ["environment.settings.sizes=[3]"])
    environment = load_environment("mapf_frozenlake", config.environment.settings)
    file.write_text("strata: {3x3: {share: 100, hole_ratio: 0, wait_ratio: 10}}")
    assert choose_knobs(str(file), environment, 0).strata["3x3"].hole_ratio == 0
    for content, words in {
        "strata: {3x3: {share: 7}}": "strata.3x3.share",
        "strata: {4x4: {}}": "this run has",
        "strata: {3x3: {hole_ratio: 50, wait_ratio: 100}, 9x9: {}}": "this run has",
        "strata: [": "knobs in",
        "hello": "knobs in",
    }.items():
        file.write_text(content)
        with pytest.raises(ConfigError, match=words):
            choose_knobs(str(file), environment, 0)
    with pytest.raises(ConfigError, match="must be stage-0, default or a file"):
        choose_knobs(str(tmp_path / "absent.yaml"), environment, 0)


def test_knobs_that_no_board_can_meet_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "knobs.json"
    file.write_text('{"strata": {"3x3": {"hole_ratio": 50}}}')
    environment = load_environment("mapf_frozenlake", {"sizes": [3], "agents": 5})
    with pytest.raises(ConfigError, match="cannot be met: 3x3"):
        choose_knobs(str(file), environment, 0)


def test_limits_that_are_too_low_fail_and_name_the_setting(odd: str) -> None:
    own = (f"environment.name={odd}:Doubles", "environment.settings={}")
    status, text = shown(*own, "rollout.max_new_tokens=1", "rollout.max_prompt_tokens=2", count=20)
    assert status == 1 and failed(text) == ["prompts", "answers"]
    assert "over rollout.max_new_tokens = 1" in text and "over rollout.max_prompt_tokens = 2" in text
    status, text = shown(*own, "rollout.max_prompt_tokens=4090", count=5)
    assert status == 1 and failed(text) == ["context"]


@pytest.mark.parametrize(
    ("name", "failures"),
    [
        ("Doubles", []),
        ("Silent", []),
        ("Leaky", ["overlap"]),
        ("Unfixed", ["overlap"]),
        ("Hashed", ["repeats"]),
        ("Gullible", ["garbage", "prompt echo"]),
        ("Stingy", ["best answer"]),
    ],
)
def test_an_environment_that_breaks_a_promise_is_found_out(name: str, failures: list[str], odd: str) -> None:
    status, text = shown(f"environment.name={odd}:{name}", "environment.settings={}", count=20, knobs="default")
    assert (status, failed(text)) == (int(bool(failures)), failures), text


def test_the_command_ends_with_the_status(
    odd: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [f"environment.name={odd}:Stingy", "environment.settings={}"]
    monkeypatch.setattr(sys, "argv", ["envwright", "env", "preview", str(RECIPE), *own, "--count", "10"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert failed(capsys.readouterr().out) == ["best answer"]


def test_bars_count_every_value_once_and_show_empty_bins() -> None:
    lines = bars([3, 3, 4, 9])
    assert [line.split()[0] for line in lines] == ["3", "4", "5", "6", "7", "8", "9"]
    assert [int(line.split()[-1]) for line in lines] == [2, 1, 0, 0, 0, 0, 1]
    for values in ([5], [0, 1000], list(range(97, 3000, 7)), [1] * 500 + [300]):
        lines = bars(values)
        assert len(lines) <= 8 and sum(int(line.split()[-1]) for line in lines) == len(values)
        assert all(("█" in line or "▏" in line) == (line.split()[-1] != "0") for line in lines)


def test_strips_share_an_axis_and_mark_the_commonest_value() -> None:
    axis, small, large = strips({"3x3": [1, 1, 2], "10x10": [7]})
    assert axis.split() == ["0", "5"]
    assert small.index("█") - axis.index("0") == 1 and large.index("█") - axis.index("5") == 2
    assert small.endswith("1 .. 1 .. 2") and large.endswith("7 .. 7 .. 7")
    assert max(map(len, strips({"all": list(range(5000))}))) <= 100
