"""The paper's table: a block per agent count, models as rows, valid and optimal rate of each map size, and the mean.

Everything here is pure and in percent. Published rows come from ``data/published.json`` and say that they are.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from environments.mapf_frozenlake.settings import stratum_name
from orchestrator.eval.records import Cell
from orchestrator.eval.results import CellResult, Rates, means

PUBLISHED = "published"
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One model: rates (0 to 1) by cell, and their mean by agent count."""

    name: str
    cells: Mapping[Cell, Rates]
    means: Mapping[int, Rates]
    published: bool = False

    @classmethod
    def of(cls, name: str, results: Iterable[CellResult]) -> Row:
        """A row of an evaluation made here."""
        results = list(results)
        return cls(name, {(cell.agents, cell.size): cell.rates for cell in results}, means(results))

    @property
    def label(self) -> str:
        """The name, with a mark if somebody else measured it."""
        return f"{self.name} ({PUBLISHED})" if self.published else self.name


def published_rows() -> list[Row]:
    """The rows of the reference file, as printed by its authors."""
    text = (resources.files("orchestrator.eval") / "data" / "published.json").read_text("utf-8")
    return [_published(model) for model in json.loads(text)["models"]]


def _published(model: Mapping[str, Any]) -> Row:
    def rates(pair: Sequence[float]) -> Rates:
        return Rates(pair[0] / 100, pair[1] / 100)

    cells = {
        (int(agents), int(size)): rates(pair) for agents, row in model["cells"].items() for size, pair in row.items()
    }
    return Row(model["name"], cells, {int(agents): rates(pair) for agents, pair in model["means"].items()}, True)


@dataclass(frozen=True, slots=True)
class _Block:
    """The part of the table for one agent count."""

    agents: int
    sizes: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def head(self) -> list[str]:
        """Names of the columns after the model's."""
        return [*map(stratum_name, self.sizes), "mean"]

    def rates(self, row: Row) -> list[Rates | None]:
        """The row's entries under ``head``."""
        return [*(row.cells.get((self.agents, size)) for size in self.sizes), row.means.get(self.agents)]


def _blocks(rows: Sequence[Row]) -> list[_Block]:
    """Cells that some row measured here has; published rows are shown beside those and nowhere else."""
    cells = sorted({cell for row in rows if not row.published for cell in row.cells})
    blocks = []
    for agents in dict.fromkeys(agents for agents, _ in cells):
        sizes = tuple(size for a, size in cells if a == agents)
        shown = tuple(row for row in rows if agents in row.means)
        blocks.append(_Block(agents, sizes, shown))
    return blocks


def text(rows: Sequence[Row]) -> list[Table]:
    """For a terminal of 80 columns: per model a line of valid (acc.) and one of optimal (opt.) rates, one decimal."""
    tables = []
    for block in _blocks(rows):
        table = Table(title=f"{block.agents} agents, percent", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
        table.add_column("model", overflow="fold", max_width=18)
        table.add_column("")
        for name in block.head:
            table.add_column(name, justify="right", no_wrap=True, min_width=5)
        for row in block.rows:
            found = block.rates(row)
            valid = [_percent(None if rates is None else rates.valid, 1) for rates in found]
            optimal = [_percent(None if rates is None else rates.optimal, 1) for rates in found]
            table.add_row(Text(row.name), "acc.", *valid)
            table.add_row(Text(PUBLISHED if row.published else "", style="italic"), "opt.", *optimal)
        tables.append(table)
    return tables


def markdown(rows: Sequence[Row]) -> str:
    """One table per agent count, entries ``valid / optimal``."""
    parts = []
    for block in _blocks(rows):
        lines = [
            f"**{block.agents} agents**, valid / optimal, percent",
            "",
            "| " + " | ".join(["model", *block.head]) + " |",
            "|---|" + "---:|" * len(block.head),
        ]
        for row in block.rows:
            entries = [_pair(rates, " / ") for rates in block.rates(row)]
            lines.append("| " + " | ".join([row.label.replace("|", "\\|"), *entries]) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def latex(rows: Sequence[Row]) -> str:
    """One ``tabular`` per agent count, entries ``valid/optimal``; needs no package."""
    parts = []
    for block in _blocks(rows):
        lines = [
            f"% {block.agents} agents, valid/optimal, percent",
            f"\\begin{{tabular}}{{l{'r' * len(block.head)}}}",
            "\\hline",
            " & ".join([f"{block.agents} agents", *(name.replace("x", "$\\times$") for name in block.head)]) + r" \\",
            "\\hline",
        ]
        for row in block.rows:
            entries = [_pair(rates, "/") for rates in block.rates(row)]
            lines.append(" & ".join([_escaped(row.label), *entries]) + r" \\")
        parts.append("\n".join([*lines, "\\hline", "\\end{tabular}"]) + "\n")
    return "\n".join(parts)


def table_csv(rows: Sequence[Row]) -> str:
    """The same as lines ``model,published,agents,size,valid,optimal`` in percent; ``mean`` stands for a size."""
    lines: list[Sequence[object]] = [("model", "published", "agents", "size", "valid", "optimal")]
    for block in _blocks(rows):
        for row in block.rows:
            for size, rates in zip([*block.sizes, "mean"], block.rates(row), strict=True):
                if rates is not None:
                    pair = (_percent(rates.valid), _percent(rates.optimal))
                    lines.append((row.name, "yes" if row.published else "no", block.agents, size, *pair))
    return _csv(lines)


def cells_csv(cells: Iterable[CellResult]) -> str:
    """One line per cell: ``agents,size,instances,valid,optimal``, the last two in percent."""
    lines: list[Sequence[object]] = [("agents", "size", "instances", "valid", "optimal")]
    for cell in cells:
        rates = (_percent(cell.rates.valid), _percent(cell.rates.optimal))
        lines.append((cell.agents, cell.size, cell.instances, *rates))
    return _csv(lines)


FORMATS: Mapping[str, Callable[[Sequence[Row]], str]] = {".md": markdown, ".csv": table_csv, ".tex": latex}
"""How a table is written, by the ending of its file."""


def _csv(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _pair(rates: Rates | None, between: str) -> str:
    return NOTHING if rates is None else f"{_percent(rates.valid)}{between}{_percent(rates.optimal)}"


def _percent(share: float | None, decimals: int = 2) -> str:
    return NOTHING if share is None else f"{100 * share:.{decimals}f}"


def _escaped(name: str) -> str:
    """A name with LaTeX's own characters escaped."""
    special = {**{c: f"\\{c}" for c in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    return "".join({**special, "^": r"\textasciicircum{}"}.get(c, c) for c in name)
