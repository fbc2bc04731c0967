"""A tiny model, a local Ray, vLLM engines and a learner, each started once for this folder and ended with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.config import AlgorithmConfig, LearnerConfig, RolloutConfig
from actors.records import Batch, Row
from actors.rollout import Place

HERE = Path(__file__).parent
ENVIRONMENT: tuple[str, dict[str, Any]] = ("mapf_frozenlake", {"agents": 2, "sizes": [3], "template": "compact"})
TEMPERATURE = 0.7

_open = ExitStack()
_shared: dict[str, Any] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End this folder's processes before the next folder starts its own Ray."""
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _shared.clear()
            _open.close()


def pytest_sessionfinish() -> None:
    """The same after an interrupt."""
    _shared.clear()
    _open.close()


@pytest.fixture
def ray_session() -> Any:
    """A local Ray shared by this folder."""
    if "ray" not in _shared:
        from cluster.config import ClusterConfig
        from cluster.session import connect

        _shared["ray"] = _open.enter_context(connect(ClusterConfig(dashboard=False, object_store_mib=150), "actors"))
    return _shared["ray"]


@pytest.fixture(scope="session")
def place() -> Place:
    """Ray options that let all actors of these tests fit a small machine."""
    return lambda name, attempt: {"num_cpus": 0.1}


@pytest.fixture(scope="session")
def environment_name() -> tuple[str, dict[str, Any]]:
    """Name and settings, as workers get them."""
    return ENVIRONMENT


@pytest.fixture(scope="session")
def environment() -> Any:
    from environments.registry import load_environment

    return load_environment(*ENVIRONMENT)


@pytest.fixture(scope="session")
def tasks(environment: Any) -> list[Any]:
    """Eight boards of the environment."""
    return list(environment.generate(environment.default_knobs(), seed=1, start=0, count=8))


@pytest.fixture(scope="session")
def new_model(environment: Any) -> Callable[..., tuple[Any, Any]]:
    """Makes a (model, tokenizer) of two layers whose random weights are large enough to prefer some tokens."""

    def make(*, tied: bool) -> tuple[Any, Any]:
        import torch

        from orchestrator.config import NewModelConfig
        from orchestrator.new_model import build_model, build_tokenizer

        tokenizer = build_tokenizer(list(environment.vocabulary()))
        model = build_model(NewModelConfig(hidden=32, layers=2, heads=1, steps=0, tied=tied), len(tokenizer)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
        return model, tokenizer

    return make


@pytest.fixture(scope="session")
def model_directory(new_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The directory of the tied or the untied model."""
    made: dict[bool, Path] = {}

    def directory(*, tied: bool) -> Path:
        if tied not in made:
            from orchestrator.new_model import save

            made[tied] = tmp_path_factory.mktemp("tied" if tied else "untied")
            model, tokenizer = new_model(tied=tied)
            save(model, tokenizer, made[tied])
        return made[tied]

    return directory


@pytest.fixture(scope="session")
def some_rows() -> tuple[Row, ...]:
    """Five rows of different lengths, with advantages of both signs and made-up log-probs."""
    rng = random.Random(3)
    rows = []
    for prompt, generated in ((3, 5), (9, 2), (1, 1), (6, 8), (4, 4)):
        ids = [rng.randrange(5, 300) for _ in range(prompt + generated)]
        logprobs = tuple(rng.uniform(-8.0, -3.0) for _ in range(generated))
        rows.append(Row(tuple(ids[:prompt]), tuple(ids[prompt:]), rng.uniform(-1.5, 1.5), logprobs))
    return tuple(rows)


@pytest.fixture(scope="session")
def batch(model_directory: Callable[..., Path], some_rows: tuple[Row, ...]) -> Batch:
    """Rows whose sampled log-probs lie around the model's, so that clips are active, and two rows of replay.

    Three of the rows have one prompt, as those of a group do.
    """
    import torch

    from tests.actors.learner_reference import frozen_log_probs, load

    model, rows = load(model_directory(tied=True)), []
    generator = torch.Generator().manual_seed(0)
    siblings = [replace(some_rows[3], token_ids=ids, advantage=a) for ids, a in (((7, 9, 11), -0.8), ((13,), 1.1))]
    for row in (*some_rows, *siblings):
        now = frozen_log_probs(model, [row])[0]
        behaviour = now + 0.4 * torch.randn(len(now), generator=generator)
        rows.append(replace(row, logprobs=tuple(behaviour.tolist())))
    return Batch(tuple(rows), (Row((5, 6, 7), (8, 9)), Row((11,), (12, 13, 14))))


class Learner:
    """One group of ranks, rebuilt with other settings in the same processes: importing DeepSpeed costs seconds."""

    def __init__(self, ranks: int, model: Path, place: Place) -> None:
        from actors.learner_group import LearnerGroup

        config = LearnerConfig(ranks=ranks, dtype="float32")
        self.group = LearnerGroup(str(model), config, AlgorithmConfig(), TEMPERATURE, place)
        self.group.start()

    def rebuild(
        self,
        model: Path,
        algorithm: AlgorithmConfig | None = None,
        *,
        run: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        """A ``LearnerGroup`` as new, at version 0. ``run``: what a rank is told of its run."""
        import ray

        ranks = self.group._ranks
        config = LearnerConfig(**{"ranks": len(ranks), "dtype": "float32", "lr": 1e-3, **settings})
        arguments = (str(model), config, algorithm or AlgorithmConfig(), TEMPERATURE)

        def build(self: Any, rank: int) -> None:
            import os

            self.__init__(*arguments, **(run or {}))
            self.setup(rank, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

        ray.get([actor.__ray_call__.remote(build, i) for i, actor in enumerate(ranks)], timeout=240)
        self.group._config, self.group.version = config, 0
        return self.group


@pytest.fixture
def learner(ray_session: Any, model_directory: Any, place: Place) -> Callable[..., Any]:
    """Gives ``rebuild`` of the one-rank or the two-rank learner."""

    def of(ranks: int = 1) -> Any:
        key = f"learner-{ranks}"
        if key not in _shared:
            _shared[key] = Learner(ranks, model_directory(tied=True), place)
        return _shared[key].rebuild

    return of


@pytest.fixture(scope="session")
def rollout_config() -> RolloutConfig:
    return RolloutConfig(
        cpus=0.1,
        dtype="float32",
        max_prompt_tokens=64,
        max_new_tokens=24,
        temperature=TEMPERATURE,
        concurrency=32,
        kv_cache_mib=16,
        deadline_s=200.0,
        start_deadline_s=280.0,
    )


@pytest.fixture
def engines(ray_session: Any, model_directory: Any, rollout_config: RolloutConfig, place: Place) -> Callable[..., Any]:
    """Gives the pool of one vLLM engine that was started with the tied or the untied model; that one is compiled."""

    def of(*, tied: bool) -> Any:
        key = f"engine-{tied}"
        if key not in _shared:
            from actors.rollout_pool import RolloutPool

            config = rollout_config.model_copy(update={"compile": not tied})
            _shared[key] = RolloutPool(str(model_directory(tied=tied)), config, ENVIRONMENT, place)
            _shared[key].wait_ready()
        return _shared[key]

    return of
