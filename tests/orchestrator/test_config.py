from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.config import ConfigError, RunConfig, dump, load, validate

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
LAPTOP = next(path for path in RECIPES if path.stem == "laptop")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_resolves_and_its_dump_loads_to_an_equal_configuration(recipe: Path) -> None:
    config = load(recipe)
    assert validate(yaml.safe_load(dump(config)), "dump") == config


def test_overrides_reach_any_depth_and_keep_yaml_types() -> None:
    config = load(LAPTOP, ["environment.settings.sizes=[3, 4]", "learner.lr=1e-5", "name=other", "model.path=null"])
    assert config.environment.settings["sizes"] == [3, 4]
    assert (config.name, config.model.path) == ("other", None)
    assert config.learner.lr == 1e-5


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("lerner.lr=1", ["unknown key lerner", "did you mean learner?"]),
        ("learner.ranksss=1", ["unknown key learner.ranksss", "did you mean ranks?"]),
        ("learner.zzz=1", ["unknown key learner.zzz", "known here: ranks"]),
        ("curriculum.stages=[{instance: 32}]", ["curriculum.stages.0.instance", "did you mean instances?"]),
        ("model.new.heads=8", ["model.new", "multiple of 32"]),
        ("learner.zero_stage=4", ["learner.zero_stage", "4"]),
        ("curriculum.group_size=1", ["curriculum.group_size", "greater than or equal to 2", "got 1"]),
        ("engineer.modules=FX", ["engineer.modules", "FX"]),
        ("engineer.style=full", ["engineer.replay_per_step", "compact"]),
        ("output=s3://bucket/runs", ["output", "shared folder"]),
        ("name=a/b", ["name", "a/b"]),
        ("seed.deeper=1", ["seed.deeper", "not a section"]),
        ("seed", ["'seed'", "key.path=value"]),
        ("seed={", ["seed={", "not YAML"]),
    ],
)
def test_a_bad_override_is_one_error_that_names_key_value_and_remedy(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load(LAPTOP, [override])
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(("content", "word"), [("[1, 2]", "mapping"), (": :\n-", "not readable YAML"), ("", "mapping")])
def test_a_recipe_that_is_no_mapping_is_refused(tmp_path: Path, content: str, word: str) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(content)
    with pytest.raises(ConfigError, match=word):
        load(recipe)


def test_a_configuration_cannot_be_changed_after_loading() -> None:
    config = load(LAPTOP)
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_steps_of_a_stage_count_epochs() -> None:
    config = RunConfig.model_validate(
        {"name": "x", "curriculum": {"stages": [{"instances": 64, "epochs": 3}], "prompts_per_step": 32}}
    )
    assert config.curriculum.steps(0) == 6
