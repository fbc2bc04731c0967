"""``report.html``: the whole story of a run on one page, from the run directory alone.

Nothing here needs Ray or the network, and a run that stopped early gives the same page with fewer sections. Equal run
directories give equal bytes: no dates of its own, no random ids.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator.progress import duration, headline, points, policy_warning, summarise_redesign
from orchestrator.statistics import POOLED, before_after, stratum_rates
from orchestrator.store import RunStore

# Okabe and Ito's palette for all kinds of colour vision, without black and ordered for use on white and on dark.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#999999"
_LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, YELLOW)
_FAILED = (VERMILLION, ORANGE, YELLOW, PURPLE, GREY, "#7A5C99")
_MARKERS = "osD^vPX*"

# matplotlib needs colours, the page themes: these stand for CSS values and are exchanged in the finished SVG.
_INK, _RULE, _CARD = "#010203", "#040506", "#070809"
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "envwright", "text.parse_math": False,
    "font.size": 9, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": _RULE, "axes.labelcolor": _INK, "text.color": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "xtick.major.size": 0, "ytick.major.size": 0, "axes.spines.top": False, "axes.spines.right": False,
    "axes.spines.left": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": _RULE, "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 8.5,
    "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip

Record = dict[str, Any]


def write_report(run_dir: str | Path) -> str:
    """Build the report of a run and store it there; returns its path (or URI, for a run in a bucket)."""
    store = RunStore.open(run_dir)
    return store.write_report(render(gather(store)))


def render(context: Mapping[str, Any]) -> str:
    """The page. Everything but the finished figures is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("orchestrator"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    pages.filters |= {"percent": lambda rate: f"{100 * rate:.1f} %", "points": points}
    return pages.get_template("report.html.j2").render(context)


def gather(store: RunStore) -> Record:
    """Everything the page shows, by name."""
    config, environment = store.read_config(), store.read_environment() or {}
    status, stages = store.read_status() or {}, store.stages()
    history = [{**entry, "stage": k} for k in stages for entry in store.read_metrics(k)]
    outcomes = [str(o["name"]) for o in environment.get("outcomes", [])]
    solved = frozenset(environment.get("solved", []))
    best = outcomes[-1] if outcomes else ""
    before, after = store.read_evaluation("before"), store.read_evaluation("after")
    rows = before_after(before["tasks"], after["tasks"], solved=solved, best=best) if before and after else []
    validation = {k: stratum_rates(v["tasks"], solved) for k in stages if (v := store.read_stage(k, "validation"))}
    redesigns = _redesigns(store, stages, validation)
    figures = _figures(history, outcomes, solved, best, validation)
    return {
        "name": config.get("name", store.directory),
        "directory": store.directory,
        "status": {"state": "unknown", "message": "", **status},
        "steps": len(history),
        "resumable": store.latest_checkpoint() is not None,
        "facts": _facts(config, environment, status),
        "tiles": _tiles(history, rows, redesigns),
        "headline": headline(rows),
        "rows": rows,
        "pooled": POOLED,
        "before": stratum_rates(before["tasks"], solved) if before and not after else {},
        "best": best or "best",
        "figures": figures,
        "knobs": _knob_tables(store, stages, environment.get("knobs", [])),
        "stages": [k for k in stages if store.read_stage(k, "environment")],
        "redesigns": redesigns,
        "warning": policy_warning(redesigns),
        "showcase": store.read_showcase(),
        "sync": _sync(history, config),
        "outcomes": environment.get("outcomes", []),
        "links": _links(store, stages),
    }


# ------------------------------------------------------------------------------------------------------------- sections


def _facts(config: Record, environment: Record, status: Record) -> list[tuple[str, str]]:
    model, curriculum, engineer = (config.get(key) or {} for key in ("model", "curriculum", "engineer"))
    new = model.get("new") or {}
    shape = f"new, {new.get('hidden')} wide, {new.get('layers')} layers, {new.get('steps')} warm-start steps"
    stages = ", ".join(f"{s['instances']} × {s['epochs']}" for s in curriculum.get("stages", ()))
    loop = f"stages of {stages} tasks, {curriculum.get('prompts_per_step')} × {curriculum.get('group_size')} per step"
    facts = {
        "model": model.get("path") or (shape if new else ""),
        "environment": environment.get("name", ""),
        "curriculum": loop if stages else "",
        "engineer": " ".join(str(engineer[key]) for key in ("kind", "modules", "style") if key in engineer),
        "seed": str(config.get("seed", "")),
        "started": str(status.get("started_at", "")).replace("T", " ").replace("Z", " UTC"),
        "duration": duration(status["active_s"]) if "active_s" in status else "",
        "exit code": "" if status.get("exit_code") is None else str(status["exit_code"]),
    }
    return [(name, text) for name, text in facts.items() if text]


def _tiles(
    history: Sequence[Record], rows: Sequence[Record], redesigns: Sequence[Record]
) -> list[tuple[str, str, str]]:
    """(value, what it is, a note) of the few numbers to see first."""
    tiles = []
    if rows:
        note = f"{points(rows[-1]['low'])} to {points(rows[-1]['high'])} at 95 %, n = {rows[-1]['n']}"
        tiles.append((f"{points(rows[-1]['difference'])} pts", "held-out valid rate", note))
    rewards = _series(history, "reward/mean")[1]
    if rewards:
        edge = max(1, len(rewards) // 10)
        first, last = (sum(part) / edge for part in (rewards[:edge], rewards[-edge:]))
        tiles.append((f"{first:.2f} → {last:.2f}", "training reward", f"first and last {edge} of {len(rewards)} steps"))
    if redesigns:
        used = sum(r["status"] != "replaced" for r in redesigns)
        tiles.append((f"{used} of {len(redesigns)}", "proposals used", f"written by {redesigns[0]['source']}"))
    speeds = sorted(_series(history, "rollout/tokens_per_second")[1])
    if speeds:
        total = sum(_series(history, "rollout/tokens")[1])
        note = f"{total:,.0f} generated in all" if total else "median over steps"
        tiles.append((f"{speeds[len(speeds) // 2]:,.0f}", "generated tokens per second", note))
    return tiles


def _knob_tables(store: RunStore, stages: Sequence[int], specs: Sequence[Record]) -> list[Record]:
    """One heat map per knob: a row per stratum, a cell per stage with its value, strength (0..1) and change."""
    records = [(store.read_stage(k, "environment") or {}).get("knobs") for k in stages]
    configurations = [knobs["strata"] for knobs in records if knobs]
    tables = []
    for spec in specs if configurations else []:
        name, span = spec["name"], max(1, spec["maximum"] - spec["minimum"])
        lines = []
        for stratum in configurations[0]:
            values = [c.get(stratum, {}).get(name, spec["minimum"]) for c in configurations]
            steps = [0, *(after - before for before, after in pairwise(values))]
            cells = [(v, (v - spec["minimum"]) / span, d) for v, d in zip(values, steps, strict=True)]
            lines.append((stratum, cells))
        tables.append({**spec, "lines": lines})
    return tables


def _redesigns(store: RunStore, stages: Sequence[int], validation: Mapping[int, Any]) -> list[Record]:
    out = []
    for k in stages:
        if not (decision := store.read_stage(k, "decision")):
            continue
        proposal = decision["proposal"]
        engineer = {**proposal, **(store.read_stage(k, "engineer") or {})}
        happened = []
        for stratum, sign in (proposal.get("expected") or {}).items():
            if k + 1 in validation and stratum in validation.get(k, {}) and stratum in validation[k + 1]:
                change = validation[k + 1][stratum].mean - validation[k][stratum].mean
                happened.append((stratum, sign, change, change * sign > 0 or sign == 0))
        out.append(
            {
                **summarise_redesign(k, decision),
                "rationale": proposal.get("rationale", ""),
                "checks": decision.get("checks", []),
                "prompt": engineer.get("prompt") or [],
                "reply": engineer.get("reply") or "",
                "happened": happened,
            }
        )
    return out


def _sync(history: Sequence[Record], config: Record) -> list[Record]:
    names = sorted({name for h in history for name in h["values"] if name.startswith("sync/")})
    found = [(name, _series(history, name)[1]) for name in names]
    # The tolerance bounds the mean difference of one check; single tokens may differ more.
    limits = {"sync/logprob_gap_mean": (config.get("sync") or {}).get("tolerance")}
    return [
        {"name": n.removeprefix("sync/"), "n": len(v), "mean": sum(v) / len(v), "worst": max(v), "limit": limits.get(n)}
        for n, v in found
        if v
    ]


def _links(store: RunStore, stages: Sequence[int]) -> list[tuple[str, str]]:
    links = [("run.yaml", "resolved configuration"), ("events/", "TensorBoard: tensorboard --logdir events")]
    links += [(f"stages/{k}/", f"records of stage {k}") for k in stages]
    if rollouts := store.rollouts():
        links.append(("rollouts/", f"every sample of {len(rollouts)} steps (Parquet)"))
    for name in ("before", "after"):
        if store.read_evaluation(name):
            links.append((f"evaluation-{name}.json", f"held-out results {name} training, per task"))
    if steps := store.complete_checkpoints():
        links.append(("checkpoints/", "complete at steps " + ", ".join(map(str, steps))))
    if lineage := store.read_lineage():
        links.append(("lineage/", f"{len(lineage)} lineage records"))
    return links


# -------------------------------------------------------------------------------------------------------------- figures


def _figures(
    history: Sequence[Record], outcomes: Sequence[str], solved: frozenset[str], best: str, validation: Mapping[int, Any]
) -> Record:
    """Finished SVGs by name; empty for a figure without data."""
    figures: Record = dict.fromkeys(("reward", "validation", "outcomes", "speed", "health"), "")
    if _series(history, "reward/mean")[0]:
        figures["reward"] = _svg("Mean training reward by step", (5.2, 2.9), lambda f: _draw_reward(f, history))
    if validation:
        label = "Validation valid rate of each stratum after each stage"
        figures["validation"] = _svg(label, (5.2, 2.9), lambda f: _draw_validation(f, validation))
    order = [o for o in (best, *outcomes) if o in solved] + [o for o in reversed(outcomes) if o not in solved]
    seen = [o for o in dict.fromkeys(order) if any(_series(history, f"env/outcome/{o}")[1])]
    if seen:
        label = "Share of each outcome by step, solved ones at the bottom"
        figures["outcomes"] = _svg(label, (10.7, 3.3), lambda f: _draw_outcomes(f, history, seen, solved))
    sides = ("rollout", "learner")
    groups: dict[str, tuple[tuple[str, Sequence[str], bool], ...]] = {
        "speed": (
            ("tokens per second", [f"{side}/tokens_per_second" for side in sides], False),
            ("idle share of a step", [f"{side}/idle_ratio" for side in sides], True),
        ),
        "health": (
            ("groups without signal", ["rollout/zero_variance_share"], True),
            ("entropy (nats)", ["policy/entropy"], False),
            ("KL to rollout policy (nats)", ["policy/kl_rollout"], False),
            ("completion length (tokens)", ["rollout/length_mean", "rollout/length_p95"], False),
        ),
    }
    for name, panels in groups.items():
        chosen = [panel for panel in panels if any(_series(history, n)[0] for n in panel[1])]
        if chosen:
            label = ", ".join(title for title, _, _ in chosen)
            size = (10.7, 2.1 if name == "health" else 2.4)
            figures[name] = _svg(f"By step: {label}", size, partial(_draw_panels, history=history, panels=chosen))
    return figures


def _svg(label: str, size: tuple[float, float], draw: Callable[[Any], None]) -> Any:
    """Draw on a new figure and return its SVG as safe markup that takes its ink and rules from the page."""
    import matplotlib
    from markupsafe import Markup, escape
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    # Figures on one page share their counted ids; only the hashed ones are ever referred to.
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = text.replace(_INK, "currentColor").replace(_RULE, "var(--rule)").replace(_CARD, "var(--card)")
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1))


def _series(history: Sequence[Record], name: str) -> tuple[list[int], list[float]]:
    found = [(h["step"], h["values"][name]) for h in history if h["values"].get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _smooth(values: Sequence[float]) -> list[float]:
    """Centred running mean; short curves stay as they are."""
    half = len(values) // 40
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _mark_stages(axes: Any, history: Sequence[Record], *, named: bool = True) -> None:
    first: dict[int, int] = {}
    for h in history:
        first.setdefault(h["stage"], h["step"])
    for stage, step in first.items():
        if stage != min(first):
            axes.axvline(step - 0.5, color=_INK, linewidth=0.8, linestyle=(0, (2, 3)), alpha=0.6)
        if named:
            where = axes.get_xaxis_transform()
            axes.text(step, 1.02, f"stage {stage}", transform=where, fontsize=8, alpha=0.75)
    axes.margins(x=0.01)


def _curve(axes: Any, history: Sequence[Record], name: str, colour: str, label: str | None = None) -> None:
    steps, values = _series(history, name)
    if len(values) >= 40:
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
    marker = "o" if len(values) < 15 else None
    axes.plot(steps, _smooth(values), color=colour, linewidth=1.8, marker=marker, markersize=3.5, label=label)


def _draw_reward(figure: Any, history: Sequence[Record]) -> None:
    axes = figure.subplots()
    _curve(axes, history, "reward/mean", BLUE)
    _mark_stages(axes, history)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel("step")


def _draw_outcomes(figure: Any, history: Sequence[Record], seen: Sequence[str], solved: frozenset[str]) -> None:
    axes = figure.subplots()
    present = [h for h in history if any(h["values"].get(f"env/outcome/{o}") is not None for o in seen)]
    shares = [[100 * (h["values"].get(f"env/outcome/{o}") or 0.0) for h in present] for o in seen]
    good, bad = [BLUE, SKY, GREEN], list(_FAILED)
    n_good = sum(o in solved for o in seen)
    colours = [good[i % 3] if i < n_good else bad[(i - n_good) % len(bad)] for i in range(len(seen))]
    bands = axes.stackplot([h["step"] for h in present], shares, colors=colours, labels=seen, linewidth=0.5)
    for i, band in enumerate(bands):
        band.set_edgecolor(_CARD)
        if i - n_good >= len(bad):
            band.set_hatch("///")
    _mark_stages(axes, history)
    axes.set_ylim(0, 100)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.set_xlabel("step")
    axes.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), reverse=True, handlelength=1.2)


def _draw_validation(figure: Any, validation: Mapping[int, Any]) -> None:
    axes = figure.subplots()
    stages = sorted(validation)
    strata = list(dict.fromkeys(s for rates in validation.values() for s in rates if s != POOLED))
    for i, stratum in enumerate(strata):
        found = [(k, validation[k][stratum]) for k in stages if stratum in validation[k]]
        # Side by side, so that the error bars of neighbours can be told apart.
        x = [k + 0.04 * (i - (len(strata) - 1) / 2) for k, _ in found]
        y = [100 * r.mean for _, r in found]
        spread = [[100 * (r.mean - r.low) for _, r in found], [100 * (r.high - r.mean) for _, r in found]]
        style = {"color": _LINES[i % 8], "marker": _MARKERS[i % 8], "markersize": 5, "linewidth": 1.6}
        axes.errorbar(x, y, yerr=spread, elinewidth=0.9, capsize=2, label=stratum, **style)
    axes.set_ylim(0, 100)
    axes.set_xlim(stages[0] - 0.35, stages[-1] + 0.35)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.set_xticks(stages, [f"after stage {k}" for k in stages])
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=len(strata) > 1, handlelength=1.4)


def _draw_panels(figure: Any, history: Sequence[Record], panels: Sequence[tuple[str, Sequence[str], bool]]) -> None:
    for axes, (title, names, share) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, colour in zip(names, (BLUE, VERMILLION), strict=False):
            short = name.split("/")[0] if name.endswith(("second", "ratio")) else name.rsplit("_", 1)[-1]
            _curve(axes, history, name, colour, short)
        _mark_stages(axes, history, named=False)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0, **({"top": 1} if share else {}))
        if len(names) > 1:
            axes.legend(loc="best", handlelength=1.2)
