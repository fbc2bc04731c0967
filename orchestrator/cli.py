"""The ``envwright`` command. Each command is thin: it reads arguments, calls one function and turns errors into one
clear message and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from orchestrator.config import RunConfig, dump, load
from orchestrator.eval.options import compare, evaluate

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
model_app = typer.Typer(no_args_is_help=True, help="Models made here, for use without a model hub.")
app.add_typer(model_app, name="model")
env_app = typer.Typer(no_args_is_help=True, help="Environments: what can be trained on.")
app.add_typer(env_app, name="env")
app.command("eval")(evaluate)
app.command("compare")(compare)
console = Console()

Recipe = Annotated[Path, typer.Argument(help="a recipe such as recipes/laptop.yaml")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.path=value overrides")]
Address = Annotated[str | None, typer.Option(help="the cluster's dashboard, http://HEAD:8265")]


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and start nothing")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="take the next free name if the run exists")] = False,
) -> None:
    """Train a policy through all stages of a recipe."""
    from orchestrator.train import start

    config = load(recipe, overrides or ())
    if dry_run:
        console.print(plan_text(config), soft_wrap=True, highlight=False)
        return
    raise typer.Exit(start(free_name(config) if fresh else config, console))


@app.command()
def resume(run: Annotated[Path, typer.Argument(help="a run directory")]) -> None:
    """Continue a stopped run from its latest checkpoint."""
    from orchestrator.train import resume as continue_run

    raise typer.Exit(continue_run(run, console))


@app.command()
def report(run: Annotated[Path, typer.Argument(help="a run directory")]) -> None:
    """Write report.html of a run again, from its directory alone."""
    from orchestrator.report import write_report

    console.print(write_report(run), soft_wrap=True)


@app.command()
def engineer(
    run: Annotated[Path, typer.Argument(help="a finished run directory")],
    stage: Annotated[int, typer.Option(help="the stage whose stored evidence to show")] = 0,
    swaps: Annotated[int, typer.Option(help="pieces of synthetic evidence to swap strata in")] = 40,
) -> None:
    """Ask a run's final model for a redesign again, and measure how far it reads its evidence."""
    from orchestrator.ask import reads_evidence, stored_proposal
    from orchestrator.config import ConfigError, validate
    from orchestrator.store import RunStore

    store = RunStore.open(run)
    config = validate(store.read_config(), f"{run}/run.yaml")
    evidence, model = store.read_stage(stage, "evidence"), Path(store.path("model"))
    if evidence is None or not model.is_dir():
        raise ConfigError(f"{run} has no evidence of stage {stage} or no exported model: give a finished run")
    console.print(stored_proposal(config, model, evidence).reply, highlight=False)
    found = reads_evidence(config, model, swaps)
    console.print(
        f"results of two strata swapped in {swaps} pieces of synthetic evidence: the proposal followed in "
        f"{found.followed} of {found.cells} cells ({100 * found.followed / max(1, found.cells):.0f} %)",
        soft_wrap=True,
    )


@app.command()
def solve(
    file: Annotated[str, typer.Argument(help="one board as text or JSON, or JSON lines; - is standard input")] = "-",
    map_file: Annotated[Path | None, typer.Option("--map", help="a MovingAI .map, with --scen and --agents")] = None,
    scenario: Annotated[Path | None, typer.Option("--scen", help="a MovingAI .scen")] = None,
    agents: Annotated[int | None, typer.Option(help="how many entries of the scenario to take")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON line per board, also for a single one")] = False,
    want: Annotated[str | None, typer.Option(help="labels to compute, apart by commas; all if not given")] = None,
    node_budget: Annotated[int | None, typer.Option(help="expansions allowed to each search of a board")] = None,
) -> None:
    """Solve boards exactly: least makespan and sum of costs, necessary waits, plans, or a proof that there is none."""
    from orchestrator.solve import Question, Source, run

    raise typer.Exit(run(Source(file, map_file, scenario, agents), Question.of(want, node_budget), as_json))


@app.command()
def case(
    a: Annotated[
        str, typer.Argument(metavar="A", help="a finished run, a Hugging Face model directory, or oracle: the solver")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="another one, on the same board")],
    board: Annotated[str, typer.Option(help="a JSON file with n, holes, starts, goals; or paper-3x3, paper-10x10")],
    out: Annotated[Path | None, typer.Option(help="a folder for pictures of both: SVG, PNG, GIF and text")] = None,
    frames: Annotated[bool, typer.Option("--ascii", help="show every step as text")] = False,
    template: Annotated[
        Literal["text", "compact"] | None, typer.Option(help="how to ask a model directory; text if not given")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="token limit of a model directory")] = None,
) -> None:
    """Show two checkpoints on the same board: tokens generated, valid, optimal, and where the agents go."""
    from orchestrator.case import compare

    compare((a, b), board, console, out=out, frames=frames, template=template, max_new_tokens=max_new_tokens)


@app.command()
def doctor() -> None:
    """Versions, cores, memory, GPUs and ports of this machine, and what to do about them."""
    from cluster.preflight import doctor_table

    console.print(doctor_table(), soft_wrap=True, highlight=False)


@model_app.command("new")
def model_new(
    directory: Annotated[Path, typer.Argument(help="where to write the model; must not exist")],
    recipe: Annotated[Path, typer.Option(help="recipe whose model.new, environment and engineer to use")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key.path=value overrides")] = None,
) -> None:
    """Make a small model and its tokenizer, warm-started on solver-labelled tasks and engineer dialogues."""
    import shutil

    from orchestrator.config import ConfigError
    from orchestrator.run import make_environment, model_directory

    if directory.exists():
        raise ConfigError(f"{directory} exists: give a folder that does not")
    config = load(recipe, overrides or ())
    made = model_directory(config, make_environment(config), console.print)
    shutil.copytree(made, directory)
    console.print(f"model written to {directory}; use it with model.path={directory}", soft_wrap=True)


@env_app.command("check")
def env_check(
    name: Annotated[str, typer.Argument(help="a registered name, or package.module:Class")],
    settings: Annotated[list[str] | None, typer.Option(help="key=value of its settings, once per setting")] = None,
) -> None:
    """Check that an environment keeps the contract, one line per check; exit code 1 if it does not."""
    from orchestrator.env_commands import check

    raise typer.Exit(check(name, settings or (), console))


@env_app.command("preview")
def env_preview(
    recipe: Recipe,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=1, help="tasks to look at")] = 200,
    knobs: Annotated[
        str, typer.Option(help="stage-0 (as the run will draw them), default, or a YAML or JSON file")
    ] = "stage-0",
) -> None:
    """Show what a recipe's environment generates: tasks, lengths, yields, and whether a run can use them."""
    from orchestrator.env_preview import preview

    raise typer.Exit(preview(load(recipe, overrides or ()), console, count=count, knobs=knobs))


@app.command()
def submit(
    recipe: Recipe,
    overrides: Overrides = None,
    address: Address = None,
    wait: Annotated[bool, typer.Option(help="follow the log until the job ends")] = True,
) -> None:
    """Run a recipe as a Ray job on a cluster."""
    from cluster import jobs

    load(recipe, overrides or ())
    job = jobs.submit(str(recipe), overrides or (), address)
    console.print(f"submitted {job}; see it with: envwright logs {job}", soft_wrap=True)
    if wait:
        raise typer.Exit(jobs.follow(job, address))


@app.command()
def status(job: str, address: Address = None) -> None:
    """Where a submitted job stands."""
    from cluster import jobs

    console.print(jobs.status(job, address))


@app.command()
def logs(job: str, address: Address = None, follow: Annotated[bool, typer.Option("--follow", "-f")] = False) -> None:
    """What a submitted job has printed."""
    from cluster import jobs

    if follow:
        raise typer.Exit(jobs.follow(job, address))
    print(jobs.logs(job, address))


@app.command()
def stop(job: str, address: Address = None) -> None:
    """Ask a submitted job to end; it can be resumed from its run directory."""
    from cluster import jobs

    console.print("stopping" if jobs.stop(job, address) else f"{job} was not running")


@app.command("list")
def list_jobs(address: Address = None) -> None:
    """Jobs on a cluster, newest first."""
    from cluster import jobs

    for row in jobs.list_jobs(address):
        console.print(f"{row.id}  {row.status:<9}  {row.entrypoint}", soft_wrap=True, highlight=False)


def plan_text(config: RunConfig) -> str:
    """What ``--dry-run`` prints: resolved configuration, placement plan, memory estimate."""
    from orchestrator.estimate import memory_table
    from orchestrator.run import make_environment, placement

    make_environment(config)
    return "\n".join(
        [
            "# resolved configuration",
            dump(config),
            "# placement plan",
            placement(config).table(),
            "",
            "# memory estimate",
            memory_table(config),
        ]
    )


def free_name(config: RunConfig) -> RunConfig:
    """The configuration under the first of NAME, NAME-2, NAME-3, ... that has no run directory yet."""
    names = (config.name if i == 1 else f"{config.name}-{i}" for i in range(1, 100_000))
    return config.model_copy(update={"name": next(name for name in names if not (Path(config.output) / name).exists())})


def main() -> None:
    """Entry point: an expected error is printed once, without a traceback, and the exit code is 1."""
    from pydantic import ValidationError

    from cluster.jobs import JobError
    from orchestrator.train import EXPECTED
    from solvers.boards import BoardError

    try:
        app()
    except (*EXPECTED, JobError, BoardError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except ValidationError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
