"""One frozen ``RunConfig``, composed from each package's own sections; YAML with dotted overrides."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from actors.config import (
    AlgorithmConfig,
    GroundTruthConfig,
    LearnerConfig,
    RolloutConfig,
    Section,
    SyncConfig,
)
from cluster.config import ClusterConfig


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the key, the value, what is allowed and what to do."""


class EnvironmentConfig(Section):
    """Which task family, and its fixed settings."""

    name: str = Field("mapf_frozenlake", description="registered name, or package.module:Class")
    settings: dict[str, Any] = Field(default_factory=dict, description="the environment's own settings")


class NewModelConfig(Section):
    """A small Qwen3-architecture model made and warm-started here, for use without a model hub."""

    hidden: int = Field(128, ge=32, description="hidden size")
    layers: int = Field(4, ge=1, description="transformer blocks")
    heads: int = Field(4, ge=1, description="attention heads")
    kv_heads: int = Field(1, ge=1, description="key-value heads, each shared by heads / kv_heads attention heads")
    steps: int = Field(600, ge=0, description="supervised warm-start steps; 0 keeps random weights")
    tasks_per_step: int = Field(64, ge=0, description="solver-labelled boards per step")
    dialogues_per_step: int = Field(16, ge=0, description="engineer dialogues per step")
    lr: float = Field(2e-3, gt=0, description="peak learning rate (cosine decay)")
    threads: int = Field(2, ge=1, description="compute threads")
    tied: bool = Field(True, description="tie input and output embeddings")
    seed: int = Field(0, ge=0, description="seed of weights and warm-start data")

    @model_validator(mode="after")
    def _heads_fit(self) -> NewModelConfig:
        width, rest = divmod(self.hidden, self.heads)
        if rest or width % 32:
            raise ValueError(
                f"hidden = {self.hidden} over heads = {self.heads} gives heads of {self.hidden / self.heads:g}; "
                "vLLM's CPU attention needs a multiple of 32: for example hidden = 128 with heads = 4"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads = {self.heads} cannot share kv_heads = {self.kv_heads} evenly: kv_heads must divide heads"
            )
        return self


class ModelConfig(Section):
    """The policy: an existing model, or a new one."""

    path: str | None = Field(None, description="Hugging Face causal LM directory or hub name; empty makes a new model")
    new: NewModelConfig = NewModelConfig()


class StageConfig(Section):
    """One stage: tasks from one environment configuration, seen ``epochs`` times."""

    instances: int = Field(1024, ge=1, description="tasks generated for the stage")
    epochs: int = Field(1, ge=1, description="passes over the stage's tasks")


class CurriculumConfig(Section):
    """The stages in order (the first on a random configuration), and the shape of a step."""

    stages: tuple[StageConfig, ...] = Field(
        (StageConfig(), StageConfig(), StageConfig()), min_length=1, description="the engineer is asked between stages"
    )
    prompts_per_step: int = Field(32, ge=1, description="tasks per step")
    group_size: int = Field(8, ge=2, description="completions per task")
    max_lag: int = Field(
        0, ge=0, description="updates that rollouts may run ahead of the learner; 0 samples and trains in turn"
    )
    max_failed_share: float = Field(0.5, gt=0, le=1, description="failed samples of one step that end the run")

    @model_validator(mode="after")
    def _whole_steps(self) -> CurriculumConfig:
        for i, stage in enumerate(self.stages):
            if stage.instances % self.prompts_per_step:
                raise ValueError(
                    f"stages.{i}.instances = {stage.instances} must be a multiple of "
                    f"prompts_per_step = {self.prompts_per_step}"
                )
        return self

    def steps(self, stage: int) -> int:
        """Learner steps of one stage."""
        return self.stages[stage].instances // self.prompts_per_step * self.stages[stage].epochs

    @property
    def total_steps(self) -> int:
        """Learner steps of the whole run."""
        return sum(self.steps(stage) for stage in range(len(self.stages)))


class EngineerConfig(Section):
    """Who designs the next environment configuration."""

    kind: Literal["policy", "base", "controller", "fixed", "random"] = "policy"
    modules: str = Field("FGHT", pattern=r"^[FGHST]*$", description="context modules shown to the engineer")
    style: Literal["compact", "full"] = Field("full", description="rendering of the evidence and shape of the reply")
    temperature: float = Field(0.0, ge=0, description="sampling temperature of the proposal")
    max_new_tokens: int = Field(512, ge=16, description="token limit of the proposal")
    replay_per_step: int = Field(0, ge=0, description="engineer dialogues imitated in each learner step")
    swaps: int = Field(
        0, ge=0, description="pieces of synthetic evidence, strata swapped, asked of the policy after each redesign"
    )


class EvaluationConfig(Section):
    """Validation steers, held-out tasks make the claims. Both greedy by default."""

    validation_per_stratum: int = Field(150, ge=1, description="validation tasks per stratum between stages")
    held_out_per_stratum: int = Field(150, ge=1, description="held-out tasks per stratum before and after")
    temperature: float = Field(0.0, ge=0)


class CheckpointConfig(Section):
    """When the run can be resumed from."""

    every_steps: int = Field(25, ge=1, description="steps between checkpoints inside a stage")
    keep: int = Field(2, ge=1, description="checkpoints kept besides those at stage borders")


class WandbConfig(Section):
    """Weights & Biases (extra `wandb`). A resumed run continues its run there."""

    project: str = Field("envwright", min_length=1, description="project of the run")
    entity: str | None = Field(None, description="user or team; empty uses the account's own default")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline keeps the files in the run directory, for `wandb sync`"
    )


class MlflowConfig(Section):
    """MLflow (extra `mlflow`). A resumed run continues its run there."""

    tracking_uri: str | None = Field(
        None, description="server, or database as in sqlite:///mlflow.db; empty uses MLFLOW_TRACKING_URI or its default"
    )
    experiment: str = Field("envwright", min_length=1, description="experiment of the run")


class LoggingConfig(Section):
    """Where metrics go besides the run's own records. A service that fails costs its curves and never the run."""

    tensorboard: bool = Field(True, description="write TensorBoard events to the run directory")
    wandb: WandbConfig | None = Field(None, description="send metrics to Weights & Biases; {} uses its defaults")
    mlflow: MlflowConfig | None = Field(None, description="send metrics to MLflow; {} uses its defaults")
    deadline_s: float = Field(30.0, gt=0, description="longest wait, at the end, for a service to take what is left")


class RunConfig(Section):
    """Everything one run depends on."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$", description="name of the run directory")
    seed: int = Field(0, ge=0)
    output: str = Field("runs", description="folder that holds run directories")
    environment: EnvironmentConfig = EnvironmentConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    learner: LearnerConfig = LearnerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    ground_truth: GroundTruthConfig = GroundTruthConfig()
    sync: SyncConfig = SyncConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    engineer: EngineerConfig = EngineerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if "://" in self.output:
            raise ValueError(
                f"output = {self.output!r}: DeepSpeed writes checkpoints to folders only; give a shared folder"
            )
        if self.engineer.replay_per_step and self.engineer.style != "compact":
            raise ValueError(
                "engineer.replay_per_step needs engineer.style = compact: dialogues exist in that style only"
            )
        return self

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.output) / self.name


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a recipe and apply ``key.path=value`` overrides.

    Raises :class:`ConfigError` with one message for a missing file, bad YAML, an unknown key (naming its nearest
    neighbour) or a value out of range.
    """
    path = Path(path)
    try:
        tree = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        near = difflib.get_close_matches(path.stem, [p.stem for p in path.parent.glob("*.yaml")], n=1)
        hint = f"; did you mean {path.parent / near[0]}.yaml?" if near else ""
        raise ConfigError(f"recipe {path} does not exist{hint}") from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"recipe {path} is not readable YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"recipe {path} must be a mapping of sections, not {type(tree).__name__}")
    for override in overrides:
        _apply(tree, override)
    return validate(tree, str(path))


def validate(tree: Mapping[str, Any], source: str) -> RunConfig:
    """Build the config from a plain tree; one :class:`ConfigError` line per problem."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(e) for e in error.errors()]
        raise ConfigError(f"{source}: " + "\n  ".join(lines)) from None


def dump(config: RunConfig) -> str:
    """The resolved configuration as YAML; loading it again gives an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {override!r} must look like key.path=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML ({error})") from None
    node = tree
    *parents, leaf = key.split(".")
    for parent in parents:
        if node.get(parent) is None:
            node[parent] = {}
        node = node[parent]
        if not isinstance(node, dict):
            raise ConfigError(f"override {override!r}: {parent} is a value, not a section")
    node[leaf] = value


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"unknown key {where}; {hint}"
    message = error["msg"].removeprefix("Value error, ")
    got = "" if error["type"] in {"missing", "value_error"} else f" (got {error['input']!r})"
    return f"{where or 'recipe'}: {message}{got}"


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in location:
        if isinstance(part, int):
            continue
        inner = model.model_fields[part].annotation
        inner = next((kind for kind in get_args(inner) if isinstance(kind, type)), inner)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
