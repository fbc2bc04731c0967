"""The parts of one run, put together on a cluster and taken apart again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from actors.algorithms.objective import Objective
from actors.ground_truth import SolverPool
from actors.learner_group import LearnerGroup
from actors.records import Constraint, Delivery, Row, Sampling
from actors.rollout_pool import RolloutPool
from actors.weight_sync import choose_route, push
from actors.weight_sync import connect as connect_engines
from actors.weights.shipment import Route
from actors.weights.transfer import Link
from cluster.placement import PlacementPlan, Role, plan, reserve
from cluster.preflight import preflight
from cluster.session import connect
from environments.base import Environment, FrozenSet, Knobs, Message, NoAnswer, Task, stream
from environments.registry import load_environment
from orchestrator.config import ConfigError, RunConfig
from orchestrator.dialogues import dialogues
from orchestrator.engineer.base import Engineer
from orchestrator.engineer.controller import ControllerEngineer
from orchestrator.engineer.factory import build
from orchestrator.evidence import EnvInfo, check_modules, describe
from orchestrator.loggers import open_loggers
from orchestrator.metrics import Metrics
from orchestrator.progress import TrainProgress
from orchestrator.records import HistoryEntry
from orchestrator.store import RunStore
from orchestrator.usage import Usage

PROBES = 4
"""Tasks after whose prompts the tokens are sampled that syncs are checked on."""


@dataclass
class State:
    """Where a run stands: all that changes between two steps besides the learner's own state."""

    stage: int = 0
    step_in_stage: int = 0
    step: int = 0
    knobs: dict[str, Any] = field(default_factory=dict)
    history: tuple[HistoryEntry, ...] = ()
    rationale: str = ""
    ahead: int = 0
    """Steps beyond this one whose rollouts are stored already."""
    extra: int = 0
    """Tasks of this stage that were drawn beyond its instances, for steps with too few groups that teach."""


@dataclass
class Run:
    """Every part of a run, ready to use."""

    config: RunConfig
    store: RunStore
    environment: Environment
    info: EnvInfo
    rollouts: RolloutPool
    learner: LearnerGroup
    solvers: SolverPool
    metrics: Metrics
    progress: TrainProgress
    model: str
    controller: Engineer
    engineer: Engineer = field(init=False)
    usage: Usage = field(init=False)
    state: State = field(default_factory=State)
    probes: Sequence[Row] = ()
    base: Delivery | None = None
    route: Route = field(init=False)
    link: Link | None = None
    tokenizer: Any = None

    @cached_property
    def objective(self) -> Objective:
        """The algorithm with every default filled in."""
        return self.config.algorithm.resolved(self.config.curriculum.max_lag)

    @property
    def takes_turns_on_gpus(self) -> bool:
        """Whether engines have a part of a GPU that the learner uses too, and nothing to sample while it trains."""
        config = self.config
        return 0 < config.rollout.gpus < 1 and config.learner.gpus > 0 and not config.curriculum.max_lag

    @property
    def knobs(self) -> Knobs[Any]:
        """The configuration of the current stage."""
        return self.environment.Knobs.model_validate(self.state.knobs)

    def sync(self) -> dict[str, float]:
        """Send the learner's weights to the engines, for all that is submitted from now on.

        It does not wait for them: the metrics are of the engines' answers that came in since the last call. An engine
        that does not hold what it was sent raises ``SyncError`` from the next rollout that is collected.
        """
        delivery = self.delivery()
        if self.link is None:
            self.rollouts.deliver(delivery, self.config.sync.deadline_s)
        else:
            self.rollouts.receive(lambda engines: push(self.learner, engines, delivery, self.config.sync))
        return self.sync_metrics()

    def delivery(self) -> Delivery:
        """The learner's weights, with its log-probs of the probe tokens as proof."""
        shipment = self.link.shipment(self.learner.version) if self.link else self.learner.publish(self.route)
        expected = self.learner.score(self.probes, temperature=1.0)
        return Delivery(
            version=self.learner.version,
            shipment=shipment,
            probes=tuple(self.probes),
            expected=tuple(tuple(found) for found in expected),
            tolerance=self.config.sync.tolerance,
        )

    def sync_metrics(self) -> dict[str, float]:
        """Versions, log-prob differences (nats) and seconds of the deliveries that arrived since the last call."""
        values = {"policy/weight_version": float(self.learner.version)}
        if arrivals := self.rollouts.arrivals():
            tokens = sum(arrival.tokens for arrival in arrivals)
            values |= {
                "sync/logprob_gap_mean": sum(a.mean * a.tokens for a in arrivals) / max(1, tokens),
                "sync/logprob_gap_max": max(arrival.worst for arrival in arrivals),
                "time/sync_load": max(arrival.load_s for arrival in arrivals),
                "time/sync_check": max(arrival.check_s for arrival in arrivals),
            }
        return values

    def speak(
        self, messages: list[Message], constraint: Constraint, *, max_tokens: int, temperature: float, seed: int
    ) -> str:
        """One reply of the engineer's model: the current policy, or the frozen base for the time of the call."""
        sampling = Sampling(temperature, max_tokens)
        if self.base is None:
            return self.rollouts.write(messages, sampling, constraint, seed)
        self.rollouts.deliver(self.base, self.config.sync.deadline_s)
        try:
            return self.rollouts.write(messages, sampling, constraint, seed)
        finally:
            self.sync()

    def replay_rows(self, step: int) -> list[Row]:
        """Engineer dialogues to imitate in one step, so that training does not unlearn the engineer's role."""
        count = self.config.engineer.replay_per_step
        if not count:
            return []
        from orchestrator.warm_start import encode

        rng = stream(self.config.seed, "replay", step)
        spoken = dialogues(self.info, rng, count, check_modules(self.config.engineer.modules))
        return [encode(self.tokenizer, prompt, reply) for prompt, reply in spoken]


def placement(config: RunConfig) -> PlacementPlan:
    """Which actors the run needs, and what each reserves."""
    rollout, learner, truth = config.rollout, config.learner, config.ground_truth
    engine = "vLLM engine and checker"
    rank = f"DeepSpeed rank, ZeRO {learner.zero_stage}"
    roles = [
        Role("rollout", rollout.workers, rollout.cpus, rollout.gpus, note=engine),
        Role("learner", learner.ranks, learner.cpus, learner.gpus, note=rank, counter="ranks"),
        Role("solver", truth.workers, truth.cpus, note="ground truth process", section="ground_truth"),
    ]
    return plan(roles, config.cluster.placement)


def make_environment(config: RunConfig, labeller: Any = None) -> Environment:
    """The configured environment; a bad name or setting, or one without fixed sets, is a
    :class:`ConfigError`."""
    try:
        environment = load_environment(config.environment.name, config.environment.settings, labeller)
        environment.validation()
        environment.held_out()
        return environment
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from None


def model_directory(config: RunConfig, environment: Environment, say: Any) -> str:
    """Where the policy's initial weights are: the configured model, or a new one, warm-started and cached."""
    check_warm_start(config, environment)
    if config.model.path is None:
        from orchestrator.warm_start import Curriculum, cached_model

        modules = check_modules(config.engineer.modules)
        curriculum = Curriculum(environment, config.environment.settings, describe(environment), modules)

        def report(step: int, steps: int, metrics: dict[str, float]) -> None:
            if step % max(1, steps // 10) == 0:
                say(f"warm start {step}/{steps}  " + "  ".join(f"{k} {v:.3f}" for k, v in metrics.items()))

        return str(cached_model(config.model.new, curriculum, report))
    check_model_path(config.model.path)
    return config.model.path


def check_warm_start(config: RunConfig, environment: Environment) -> None:
    """A new model imitates the environment's own answers: one that knows none is refused before anything starts."""
    new = config.model.new
    if config.model.path is None and new.steps and new.tasks_per_step:
        try:
            environment.answer(environment.validation().tasks[0])
        except NoAnswer as error:
            raise ConfigError(
                f"a new model is warm-started on answers, and {error}: name a model with model.path, or set "
                "model.new.steps=0 for random weights"
            ) from None


def check_outcomes(config: RunConfig, environment: Environment) -> None:
    """Weights of outcomes that the environment does not have would do nothing, and nobody would notice."""
    known = [str(outcome) for outcome in environment.Outcome]
    if unknown := sorted(config.algorithm.outcome_weights.keys() - set(known)):
        raise ConfigError(
            f"algorithm.outcome_weights names {', '.join(unknown)}; outcomes of {config.environment.name} are "
            f"{', '.join(known)}"
        )


def check_model_path(path: str) -> None:
    """A model that cannot be there is refused before anything starts: a folder without config.json, a wrong path."""
    folder = Path(path)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ConfigError(f"model.path = {path!r} is a folder without config.json: give a Hugging Face model directory")
    if looks_local and not folder.is_dir():
        raise ConfigError(f"model.path = {path!r} does not exist: give a Hugging Face model directory or a hub name")


@contextmanager
def open_run(config: RunConfig, store: RunStore, progress: TrainProgress) -> Iterator[Run]:
    """Check the machine, make the model, reserve the cluster, start every actor; release all of it on the way out."""
    wanted = placement(config)
    preflight(wanted, config.cluster)
    environment = make_environment(config)
    model = model_directory(config, environment, progress.note)
    with ExitStack() as stack:
        session = stack.enter_context(connect(config.cluster, config.name))
        progress.note(str(session))
        reservation = stack.enter_context(reserve(wanted, config.cluster))
        spec = (config.environment.name, dict(config.environment.settings))
        rollouts = RolloutPool(model, config.rollout, spec, reservation.options)
        learner = LearnerGroup(
            model,
            config.learner,
            config.algorithm,
            config.rollout.temperature,
            reservation.options,
            config.curriculum.total_steps * config.algorithm.updates_per_batch,
            lag=config.curriculum.max_lag,
            max_new_tokens=config.rollout.max_new_tokens,
        )
        solvers = SolverPool(config.ground_truth, spec, reservation.options)
        loggers = open_loggers(
            config.logging,
            store,
            config.name,
            first_step=store.latest_checkpoint(),
            settings=config.model_dump(mode="json"),
            warn=progress.note,
        )
        run = Run(
            config=config,
            store=store,
            environment=make_environment(config, solvers),
            info=describe(environment),
            rollouts=rollouts,
            learner=learner,
            solvers=solvers,
            metrics=stack.enter_context(Metrics(store, config.name, loggers)),
            progress=progress,
            model=model,
            controller=ControllerEngineer(describe(environment), check_modules(config.engineer.modules)),
        )
        _prepare(run)
        yield run


def _prepare(run: Run) -> None:
    config = run.config
    run.learner.start()
    run.rollouts.wait_ready()
    open_route(run)
    tasks = spread(run.environment.validation(), 1)[:PROBES]
    run.probes = run.rollouts.probe(tasks, max(1, config.sync.check_tokens // len(tasks)))
    if config.engineer.kind == "base":
        run.base = run.delivery()
    run.usage = Usage(
        rollout_units=config.rollout.workers * (config.rollout.gpus or config.rollout.threads),
        learner_units=config.learner.ranks * (config.learner.gpus or config.learner.threads),
    )
    if config.engineer.replay_per_step:
        from transformers import AutoTokenizer

        run.tokenizer = AutoTokenizer.from_pretrained(run.model)
    engineer = config.engineer
    run.engineer = build(
        engineer.kind,
        run.environment,
        seed=config.seed,
        style=engineer.style,
        modules=engineer.modules,
        generate=run.speak,
        temperature=engineer.temperature,
        max_tokens=engineer.max_new_tokens,
    )


def open_route(run: Run) -> None:
    """Settle how weights travel between the actors as they were placed, and let both ends meet where they have to."""
    config = run.config
    try:
        run.route = choose_route(
            config.sync,
            learner_gpus=config.learner.gpus,
            engine_gpus=config.rollout.gpus,
            learner=run.learner.site(),
            engines=run.rollouts.sites(),
            adapters=config.learner.lora is not None,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    backend = run.route.transport
    if backend == "nccl" or backend == "ipc":
        if config.engineer.kind == "base":
            raise ConfigError(
                f"engineer.kind = base needs weights that can be loaded again, sync.transport = {backend} keeps none: "
                "use shared_memory, object_store or disk"
            )
        run.link = run.rollouts.join(lambda engines: connect_engines(run.learner, engines, backend, config.sync))
    run.progress.note(f"weights travel by {backend}")


def spread(frozen: FrozenSet, per_stratum: int) -> list[Task]:
    """The first ``per_stratum`` tasks of each stratum, in the set's order."""
    counts: dict[str, int] = {}
    chosen = []
    for task in frozen.tasks:
        counts[task.stratum] = counts.get(task.stratum, 0) + 1
        if counts[task.stratum] <= per_stratum:
            chosen.append(task)
    return chosen
