"""Numbers of a run: computed from groups, kept per stage, sent to TensorBoard and to Ray's Prometheus exporter.

Names have slashes (``reward/mean``). :data:`EXPORTS` is the one table of those that are exported too; every other
name goes to TensorBoard and the history only, so the cardinality of what is scraped stays bounded.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from actors.records import Group
from environments.base import Failure, FailureKind, Verdict
from orchestrator.store import RunStore


@dataclass(frozen=True, slots=True)
class Export:
    """One exported metric. With ``label``, ``source`` ends in a slash and what follows it becomes the label's value."""

    source: str
    name: str
    description: str
    label: str | None = None
    kind: Literal["gauge", "counter"] = "gauge"


EXPORTS = (
    Export("reward/mean", "envwright_reward_mean", "mean reward of the judged samples of a step"),
    Export("outcome/", "envwright_outcome_rate", "share of each outcome among judged samples", "outcome"),
    Export("rollout/tokens_per_second", "envwright_rollout_tokens_per_second", "generated tokens per second"),
    Export("learner/tokens_per_second", "envwright_learner_tokens_per_second", "trained tokens per second"),
    Export("rollout/idle_ratio", "envwright_rollout_idle_ratio", "share of a step in which no engine generates"),
    Export("learner/idle_ratio", "envwright_learner_idle_ratio", "share of a step in which the learner waits"),
    Export("queue/", "envwright_queue_length", "items that wait in each queue", "queue"),
    Export("replaced/", "envwright_replaced_processes", "processes replaced since the session began", "role"),
    Export("policy/weight_version", "envwright_weight_version", "weight version that the engines hold"),
    Export("policy/entropy", "envwright_policy_entropy", "mean token entropy (nats)"),
    Export("policy/clip_share", "envwright_policy_clip_share", "share of tokens with a clipped importance ratio"),
    Export("policy/kl_rollout", "envwright_policy_kl_rollout", "KL between engine and learner policies (nats)"),
    Export("loss/", "envwright_loss", "terms of the training loss", "term"),
    Export("time/", "envwright_phase_seconds", "seconds of each phase of a step", "phase"),
    Export("failure/", "envwright_failures", "failed samples by kind since the start", "kind", "counter"),
)
_EXACT = {e.source: e for e in EXPORTS if e.label is None}
_PREFIX = {e.source: e for e in EXPORTS if e.label is not None}


def exported(name: str) -> tuple[Export, dict[str, str]] | None:
    """How a slash name is exported, with its label; None if it is for TensorBoard only."""
    if name in _EXACT:
        return _EXACT[name], {}
    head, slash, rest = name.partition("/")
    export = _PREFIX.get(head + slash)
    return (export, {str(export.label): rest}) if export and rest else None


class Metrics:
    """Where the driver logs. Use as a context manager, or call :meth:`close`."""

    def __init__(self, store: RunStore, run: str, *, first_step: int | None = None) -> None:
        """``first_step`` of a resumed run hides what an earlier session logged from there on."""
        from tensorboardX import SummaryWriter

        self._store, self._run = store, run
        # Event files grow by appending, which buckets cannot: write them here and upload them whole on flush.
        self._spool = None if store.local else tempfile.TemporaryDirectory(prefix="envwright-events-")
        self._folder = self._spool.name if self._spool else store.path("events")
        self._writer = SummaryWriter(self._folder, purge_step=first_step)
        self._history: dict[int, dict[int, dict[str, float]]] = {}
        self._instruments: dict[str, Any] = {}

    def log(self, step: int, values: Mapping[str, float], *, stage: int) -> None:
        """Record one step (counted over the whole run). Logging a step again merges; later values win."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._history.setdefault(stage, {}).setdefault(step, {}).update(values)
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            self._export(values, stage)

    def history(self, stage: int) -> list[dict[str, Any]]:
        """``[{step, values}]`` of one stage, ascending: what the store writes to its metrics."""
        return [{"step": step, "values": dict(v)} for step, v in sorted(self._history.get(stage, {}).items())]

    def restore(self, stage: int, history: Sequence[Mapping[str, Any]], *, before: int) -> None:
        """Take back the history of a resumed stage, up to but not including step ``before``."""
        self._history[stage] = {h["step"]: dict(h["values"]) for h in history if h["step"] < before}

    def flush(self) -> None:
        """Make everything logged so far visible in the run directory."""
        self._writer.flush()
        for stage in self._history:
            self._store.write_metrics(stage, self.history(stage))
        if self._spool:
            self._store.upload(self._folder, "events")

    def close(self) -> None:
        """Flush and stop writing."""
        self.flush()
        self._writer.close()
        if self._spool:
            self._spool.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _export(self, values: Mapping[str, float], stage: int) -> None:
        for name, value in values.items():
            if (found := exported(name)) is None or not math.isfinite(value):
                continue
            export, label = found
            tags = {"run": self._run, "stage": str(stage), **label}
            instrument = self._instrument(export)
            if export.kind == "gauge":
                instrument.set(value, tags=tags)
            elif value > 0:
                instrument.inc(value, tags=tags)

    def _instrument(self, export: Export) -> Any:
        if export.name not in self._instruments:
            from ray.util import metrics

            make = metrics.Gauge if export.kind == "gauge" else metrics.Counter
            keys = ("run", "stage", export.label) if export.label else ("run", "stage")
            self._instruments[export.name] = make(export.name, description=export.description, tag_keys=keys)
        return self._instruments[export.name]


def rollout_metrics(groups: Sequence[Group], outcomes: Sequence[str]) -> dict[str, float]:
    """What one step's samples say: rewards, outcome rates, signal, lengths (tokens), failures by kind.

    Rates are over judged samples; every name of ``outcomes`` and every failure kind is there, so that curves have no
    gaps. A step without judged samples has no rewards and no outcome rates rather than zeros.
    """
    members = [m for g in groups for m in g.members]
    verdicts = [m.result for m in members if isinstance(m.result, Verdict)]
    failures = Counter(str(m.result.kind) for m in members if isinstance(m.result, Failure))
    samples = [m.sample for m in members if m.sample is not None]
    values: dict[str, float] = {
        "rollout/samples": len(members),
        "rollout/failed_share": sum(failures.values()) / max(1, len(members)),
        "rollout/zero_variance_share": sum(not g.has_signal for g in groups) / max(1, len(groups)),
        "rollout/unique_share": len({g.task.id for g in groups}) / max(1, len(groups)),
        "rollout/tokens": sum(len(s.token_ids) for s in samples),
        "rollout/prompt_tokens": sum(len(s.prompt_ids) for s in samples),
        **{f"failure/{kind}": failures[str(kind)] for kind in FailureKind},
    }
    if samples:
        lengths = [len(s.token_ids) for s in samples]
        values["rollout/length_mean"] = float(np.mean(lengths))
        values["rollout/length_p95"] = float(np.percentile(lengths, 95))
        values["rollout/truncated_share"] = sum(s.truncated for s in samples) / len(samples)
    if verdicts:
        counts = Counter(v.outcome for v in verdicts)
        values["reward/mean"] = float(np.mean([v.reward for v in verdicts]))
        values |= {f"outcome/{name}": counts[name] / len(verdicts) for name in outcomes}
        by_stratum: dict[str, list[float]] = {}
        for group in groups:
            by_stratum.setdefault(group.task.stratum, []).extend(group.rewards)
        values |= {f"stratum/{s}/reward": float(np.mean(r)) for s, r in by_stratum.items() if r}
    return values


def speed_metrics(
    *, seconds: Mapping[str, float], wall: float, generated: float, trained: float, engine_s: float, learner_s: float
) -> dict[str, float]:
    """Throughput and idle ratios of one step.

    ``seconds`` are phases by name (``rollout``, ``learn``, ``sync``, ...); ``wall`` is the length of the step;
    ``generated`` and ``trained`` are tokens; ``engine_s`` and ``learner_s`` how long each side was busy.
    """
    return {
        **{f"time/{phase}": value for phase, value in seconds.items()},
        "time/step": wall,
        "rollout/tokens_per_second": generated / engine_s if engine_s > 0 else 0.0,
        "learner/tokens_per_second": trained / learner_s if learner_s > 0 else 0.0,
        "rollout/idle_ratio": min(1.0, max(0.0, 1 - engine_s / wall)) if wall > 0 else 0.0,
        "learner/idle_ratio": min(1.0, max(0.0, 1 - learner_s / wall)) if wall > 0 else 0.0,
    }
