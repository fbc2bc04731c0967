"""Numbers of a run: computed from groups, kept per stage, sent to the loggers and to Ray's Prometheus exporter.

Names have slashes (``reward/mean``). :data:`EXPORTS` is the one table of those that are exported too; every other
name goes to the loggers and the history only, so the cardinality of what is scraped stays bounded.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from actors.records import Group, Sample
from environments.base import Failure, FailureKind, Verdict
from orchestrator.loggers import Logger
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
    Export("env/outcome/", "envwright_outcome_rate", "share of each outcome among judged samples", "outcome"),
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
    Export("rollout/failure/", "envwright_failures", "failed samples by kind since the start", "kind", "counter"),
)
_EXACT = {e.source: e for e in EXPORTS if e.label is None}
_PREFIX = {e.source: e for e in EXPORTS if e.label is not None}


def exported(name: str) -> tuple[Export, dict[str, str]] | None:
    """How a slash name is exported, with its label; None if it is for the loggers only."""
    if name in _EXACT:
        return _EXACT[name], {}
    head, slash, rest = name.rpartition("/")
    export = _PREFIX.get(head + slash)
    return (export, {str(export.label): rest}) if export and rest else None


class Metrics:
    """Where the driver logs. Use as a context manager, or call :meth:`close`."""

    def __init__(self, store: RunStore, run: str, loggers: Sequence[Logger] = ()) -> None:
        """``loggers`` get every value; they are closed with this object."""
        self._store, self._run, self._loggers = store, run, loggers
        self._history: dict[int, dict[int, dict[str, float]]] = {}
        self._instruments: dict[str, Any] = {}

    def log(self, step: int, values: Mapping[str, float], *, stage: int) -> None:
        """Record one step (counted over the whole run). Logging a step again merges; later values win."""
        for logger in self._loggers:
            logger.log(step, values)
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
        for stage in self._history:
            self._store.write_metrics(stage, self.history(stage))
        for logger in self._loggers:
            logger.flush()

    def close(self, *, failed: bool = False) -> None:
        """Flush and stop writing; ``failed``: the run did not end well."""
        self.flush()
        for logger in self._loggers:
            logger.close(failed=failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(failed=kind is not None)

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
        **{f"rollout/failure/{kind}": failures[str(kind)] for kind in FailureKind},
        **_lengths("rollout", samples),
    }
    if verdicts:
        counts = Counter(v.outcome for v in verdicts)
        values["reward/mean"] = float(np.mean([v.reward for v in verdicts]))
        values |= {f"env/outcome/{name}": counts[name] / len(verdicts) for name in outcomes}
        by_stratum: dict[str, list[float]] = {}
        for group in groups:
            by_stratum.setdefault(group.task.stratum, []).extend(group.rewards)
        values |= {f"env/stratum/{s}/reward": float(np.mean(r)) for s, r in by_stratum.items() if r}
    return values


def trained_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What the groups that an update was made from say, apart from those that filters left out.

    Groups without signal drop out of training, so these curves can move while those of all rollouts stand still.
    """
    members = [m for g in groups for m in g.members if isinstance(m.result, Verdict) and m.sample is not None]
    samples = [m.sample for m in members if m.sample is not None]
    values: dict[str, float] = {
        "trained/groups": len(groups),
        "trained/samples": len(samples),
        "trained/tokens": sum(len(s.token_ids) for s in samples),
        **_lengths("trained", samples),
    }
    if members:
        values["trained/reward_mean"] = float(np.mean([r for g in groups for r in g.rewards]))
    return values


def staleness_metrics(groups: Sequence[Group], learner_version: int) -> dict[str, float]:
    """How far the weights that sampled are behind the learner's, in versions: mean and largest over generated tokens,
    and the share of samples whose tokens come from more than one version."""
    versions = [m.sample.versions for g in groups for m in g.members if m.sample is not None and m.sample.versions]
    if not versions:
        return {}
    behind = learner_version - np.concatenate([np.asarray(v) for v in versions])
    return {
        "staleness/mean": float(behind.mean()),
        "staleness/max": float(behind.max()),
        "staleness/mixed_share": sum(min(v) != max(v) for v in versions) / len(versions),
    }


def _lengths(prefix: str, samples: Sequence[Sample]) -> dict[str, float]:
    """Tokens per completion, and the share that the token limit ended."""
    if not samples:
        return {}
    lengths = [len(s.token_ids) for s in samples]
    return {
        f"{prefix}/length_mean": float(np.mean(lengths)),
        f"{prefix}/length_p95": float(np.percentile(lengths, 95)),
        f"{prefix}/truncated_share": sum(s.truncated for s in samples) / len(samples),
    }
