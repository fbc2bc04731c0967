"""What a person sees of a run in the terminal: a live line per stage, and at the end what came of it.

Everything that decides what to say is a pure function; :class:`TrainProgress` only shows it, as live lines in a
terminal and as plain log lines elsewhere (``ray job logs``, a file).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from orchestrator.statistics import POOLED

Row = Mapping[str, Any]


class TrainProgress:
    """Progress of training, stage by stage. ``clock`` gives seconds and only differences matter."""

    def __init__(
        self,
        *,
        solved: Collection[str],
        best: str,
        console: Console | None = None,
        every: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console()
        self._steps, self._every, self._clock = 0, every, clock
        self._solved, self._best = solved, best
        self._stage, self._begun, self._first = -1, 0.0, 0
        self._line: TaskID | None = None
        self._live: Progress | None = None
        if self._console.is_terminal:
            columns = TextColumn("stage {task.fields[stage]}"), BarColumn(24), TextColumn("{task.fields[text]}")
            self._live = Progress(*columns, console=self._console)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def begin(self, stage: int, steps: int, done: int = 0) -> None:
        """A stage of ``steps`` starts (or resumes after ``done`` of them)."""
        self._steps = steps
        self._stage, self._begun, self._first = stage, self._clock(), done
        if self._live:
            self._line = self._live.add_task("", total=self._steps, completed=done, stage=stage, text="first step ...")

    def update(self, done: int, values: Mapping[str, float]) -> None:
        """``done`` steps of the stage are complete; ``values`` are the metrics of the last one."""
        pace = (self._clock() - self._begun) / max(1, done - self._first)
        left = pace * (self._steps - done)
        text = step_text(done, self._steps, values, solved=self._solved, best=self._best, left_s=left)
        if self._live and self._line is not None:
            self._live.update(self._line, completed=done, text=text)
        elif done % self._every == 0 or done == self._steps or done == self._first + 1:
            self.note(f"stage {self._stage}  {text}")

    def note(self, text: str) -> None:
        """Say something between the lines. Plain lines are never wrapped, so that logs can be searched."""
        self._console.print(Text(text), soft_wrap=True)


def step_text(
    done: int, steps: int, values: Mapping[str, float], *, solved: Collection[str], best: str, left_s: float
) -> str:
    """One step in one line: reward, rates, the commonest failure, speed, time left in the stage."""
    head = "env/outcome/"
    rates = {name.removeprefix(head): value for name, value in values.items() if name.startswith(head)}
    parts = [f"step {done:>{len(str(steps))}}/{steps}", f"reward {values.get('reward/mean', float('nan')):.3f}"]
    if rates:
        parts.append(f"valid {_percent(sum(rates.get(name, 0.0) for name in solved))}")
        parts.append(f"{best} {_percent(rates.get(best, 0.0))}")
        worst = max((name for name in rates if name not in solved), key=lambda name: rates[name], default=None)
        if worst and rates[worst] > 0:
            parts.append(f"most failures {worst} {_percent(rates[worst])}")
    if failed := values.get("rollout/failed_share", 0.0):
        parts.append(f"not judged {_percent(failed)}")
    if "rollout/tokens_per_second" in values:
        parts.append(f"{values['rollout/tokens_per_second']:,.0f} tok/s")
    return "  ".join([*parts, f"left {duration(left_s)}"])


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def points(value: float) -> str:
    """A difference of rates in percentage points, always signed."""
    return f"{100 * value:+.1f}".replace("-", "−")


def headline(rows: Sequence[Row]) -> str:
    """The pooled before/after result in one sentence, with its interval and what the interval says."""
    if not rows:
        return "There is no held-out comparison yet."
    row = rows[-1]
    said = "the interval contains zero, so this is no clear change" if row["low"] <= 0 <= row["high"] else ""
    text = (
        f"Held-out valid rate {_percent(row['valid_before'])} → {_percent(row['valid_after'])}: "
        f"{points(row['difference'])} points (95 % paired interval {points(row['low'])} to {points(row['high'])}, "
        f"n = {row['n']})"
    )
    return f"{text}; {said}." if said else f"{text}."


def before_after_table(rows: Sequence[Row]) -> Table:
    """Valid and optimal rates per stratum before → after, and the change of the valid rate in points with its paired
    interval; the pooled row last."""
    # Six narrow columns: a log or a terminal of 80 characters must not break them.
    table = Table(title="Held-out tasks, before → after training", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("stratum", no_wrap=True)
    for title in ("n", "valid %", "optimal %", "change", "95 % interval"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row["stratum"]), str(row["n"])]
        cells += [f"{100 * row[f'{r}_before']:.1f} → {100 * row[f'{r}_after']:.1f}" for r in ("valid", "optimal")]
        cells += [points(row["difference"]), f"{points(row['low'])} to {points(row['high'])}"]
        pooled = row["stratum"] == POOLED
        if pooled:
            table.add_section()
        table.add_row(*cells, style="bold" if pooled else None)
    return table


def summarise_redesign(stage: int, decision: Mapping[str, Any]) -> dict[str, Any]:
    """The short form of a ``Decision`` record taken after ``stage``.

    ``{stage, source, status, used, changes, reason}``: ``source`` wrote the proposal, ``used`` wrote what the next
    stage trains on, ``reason`` says what the gate found.
    """
    proposal = decision["proposal"]
    fallback = decision.get("fallback") or {}
    replaced = decision["status"] == "replaced"
    checks = decision.get("checks", ())
    found = [f"{c['name']}: {c['reason']}" if c["reason"] else c["name"] for c in checks if not c["passed"]]
    if proposal.get("error"):
        found.insert(0, proposal["error"])
    return {
        "stage": stage,
        "source": proposal["source"],
        "status": decision["status"],
        "used": fallback.get("source", "controller") if replaced else proposal["source"],
        "changes": list(decision.get("changes", ())),
        "reason": "; ".join(found) or "passed every check",
    }


def redesign_lines(redesigns: Sequence[Row]) -> list[str]:
    """Two lines for each redesign: who, what became of it and why; then the knobs that changed."""
    lines = []
    for redesign in redesigns:
        used = f" by {redesign['used']}" if redesign["status"] == "replaced" else ""
        head = f"stage {redesign['stage']} → {redesign['stage'] + 1}: proposal of {redesign['source']} "
        lines.append(f"{head}{redesign['status']}{used} ({redesign['reason']})")
        lines.append("    " + (", ".join(redesign["changes"]) or "nothing changed"))
    return lines


def policy_warning(redesigns: Sequence[Row]) -> str | None:
    """Said when the policy was asked and not one of its proposals was used."""
    own = [r for r in redesigns if r["source"] == "policy"]
    if not own or any(r["status"] != "replaced" for r in own):
        return None
    count = "The only proposal" if len(own) == 1 else f"All {len(own)} proposals"
    used = ", ".join(dict.fromkeys(str(r["used"]) for r in own))
    return (
        f"{count} of the policy {'was' if len(own) == 1 else 'were'} replaced: the environments of this run were "
        f"designed by {used}, not by the policy. Last reason: {own[-1]['reason']}."
    )


def closing(rows: Sequence[Row], redesigns: Sequence[Row], report: str) -> Group:
    """The end of a run: table, headline, redesigns, where the report is, and a warning that must not be missed."""
    parts: list[Table | Text] = [before_after_table(rows)] if rows else []
    parts.append(Text(headline(rows), style="bold"))
    if redesigns:
        parts += [Text(""), Text("Redesigns"), *(Text(line) for line in redesign_lines(redesigns))]
    parts += [Text(""), Text(f"Report: {report}", no_wrap=True, overflow="ignore")]
    if warning := policy_warning(redesigns):
        parts.append(Text(warning, style="bold yellow"))
    return Group(*parts)


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
