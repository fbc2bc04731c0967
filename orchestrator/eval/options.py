"""The options of `envwright eval` and `envwright compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

console = Console()


def evaluate(
    checkpoint: Annotated[
        str | None, typer.Argument(help="a finished run or a Hugging Face model directory, run in this process")
    ] = None,
    solver: Annotated[str | None, typer.Option(help="no model but a rule: oracle, greedy or random")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="base URL of an OpenAI-compatible endpoint, with --model")
    ] = None,
    model: Annotated[str | None, typer.Option(help="the endpoint's name of the model")] = None,
    key_env: Annotated[str, typer.Option(help="environment variable that holds the key")] = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(min=1, help="requests at once")] = 8,
    retries: Annotated[int, typer.Option(min=0, help="how often a failed request is sent again")] = 5,
    deadline: Annotated[float, typer.Option(min=0.001, help="longest wait for one answer, seconds")] = 600.0,
    body: Annotated[str, typer.Option(help="JSON merged into every request; null removes a key")] = "{}",
    price_in: Annotated[float | None, typer.Option(min=0, help="price of a million prompt tokens")] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="price of a million generated tokens")] = None,
    boards: Annotated[
        str, typer.Option("--set", help="benchmark, validation, held_out, or a file with a board as JSON per line")
    ] = "benchmark",
    agents: Annotated[str | None, typer.Option(help="only these agent counts, such as 3,4")] = None,
    sizes: Annotated[str | None, typer.Option(help="only these map sizes, such as 3,4,5")] = None,
    per_cell: Annotated[int | None, typer.Option(min=1, help="only the first boards of each cell")] = None,
    samples: Annotated[int, typer.Option(min=1, help="answers per board, for avg@k and pass@k")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="sampling temperature; 0 is greedy")] = 0.0,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="token limit of an answer")] = None,
    seed: Annotated[int, typer.Option(help="of the samples")] = 0,
    dtype: Annotated[Literal["float32", "bfloat16"] | None, typer.Option(help="precision of a checkpoint")] = None,
    thinking: Annotated[bool | None, typer.Option(help="whether a checkpoint's chat template may think")] = None,
    settings: Annotated[
        list[str] | None, typer.Option(help="key=value of the environment, such as template=compact; once per setting")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of answers and summary; a rerun continues there")] = None,
    csv: Annotated[Path | None, typer.Option(help="one line per cell: agents,size,instances,valid,optimal")] = None,
    table: Annotated[Path | None, typer.Option(help="the whole table as .md, .csv or .tex")] = None,
    evidence: Annotated[Path | None, typer.Option(help="counts by outcome and stratum as JSON")] = None,
) -> None:
    """Measure a checkpoint, an endpoint or a scripted solver on fixed boards: the paper's table."""
    from orchestrator.config import ConfigError
    from orchestrator.env_commands import parse_settings
    from orchestrator.eval import command
    from orchestrator.eval.endpoint import EndpointConfig
    from orchestrator.eval.results import Prices

    if (endpoint is None) != (model is None):
        raise ConfigError("--endpoint and --model go together: give both or neither")
    asked = None
    if endpoint is not None and model is not None:
        extra = command.json_object("--body", body)
        asked = EndpointConfig(endpoint, model, key_env, concurrency, retries, deadline, extra)
    given = parse_settings(settings or ())
    who = command.Who(checkpoint, solver, asked, dtype, thinking, given, temperature, max_new_tokens, seed)
    chosen = command.numbers("--agents", agents), command.numbers("--sizes", sizes)
    what = command.What(boards, *chosen, per_cell, samples)
    where = command.Where(out, csv, table, evidence, Prices(price_in, price_out))
    raise typer.Exit(command.run(who, what, where, console))


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="a folder written by envwright eval --out")],
    b: Annotated[Path, typer.Argument(metavar="B", help="another one, over the same boards")],
) -> None:
    """Two evaluations on the same boards: both tables, and their difference with paired bootstrap intervals."""
    from orchestrator.eval import command

    raise typer.Exit(command.compare(a, b, console))
