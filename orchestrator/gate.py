"""The gate between a proposal and the next stage: a list of small checks, in order.

A check takes a configuration and returns it, perhaps changed, with what it found. Changing one is a repair, and is
said so; a configuration that cannot be repaired is replaced by the fallback's, and kept in the decision as negative
evidence with the reason. Further checks (probe rollouts per stratum, no forgetting) are callables appended to the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from environments.base import Environment, Knobs, KnobSpec
from orchestrator.records import Check, Decision, Proposal

REPAIR_ROUNDS = 4
"""Moving one knob to a feasible value can make another of the same stratum infeasible; it settles in a few rounds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check leaves: the configuration to go on with (None: unusable), and whether it had to be changed.

    ``reason`` says why it is unusable or what was changed; empty if it passed.
    """

    knobs: Knobs[Any] | None
    reason: str = ""
    repaired: bool = False


GateCheck = Callable[[Knobs[Any], Environment], Finding]


def decide(
    proposal: Proposal,
    previous: Knobs[Any],
    environment: Environment,
    fallback: Callable[[], Proposal],
    checks: Sequence[tuple[str, GateCheck]] | None = None,
) -> Decision:
    """Accept, repair or replace ``proposal``.

    ``fallback`` is asked only if the proposal is unusable; if its own proposal is unusable too, the previous
    configuration stays. ``Decision.changes`` lists what differs from ``previous``.
    """
    steps = CHECKS if checks is None else tuple(checks)
    knobs, found, repaired = _examine(proposal, previous, environment, steps)
    if knobs is not None:
        changes = tuple(map(str, previous.changes(knobs)))
        return Decision("repaired" if repaired else "accepted", proposal, _dump(knobs), found, changes)
    substitute = fallback()
    knobs, more, _ = _examine(substitute, previous, environment, steps)
    found += tuple(Check(f"fallback.{check.name}", check.passed, check.reason) for check in more)
    if knobs is None:
        knobs = previous
    changes = tuple(map(str, previous.changes(knobs)))
    return Decision("replaced", proposal, _dump(knobs), found, changes, fallback=substitute)


def _examine(
    proposal: Proposal, previous: Knobs[Any], environment: Environment, steps: Sequence[tuple[str, GateCheck]]
) -> tuple[Knobs[Any] | None, tuple[Check, ...], bool]:
    """The usable configuration or None, the checks made until then, and whether any of them repaired it."""
    if proposal.knobs is None:
        return None, (Check("schema", False, proposal.error or "the reply could not be read"),), False
    if proposal.knobs == _dump(previous):
        # What already ran needs no gate, and rounding its shares again would change a fixed environment.
        return previous, (Check("unchanged", True),), False
    finding = bounded(proposal.knobs, environment)
    found = [_checked("schema", finding)]
    repaired = finding.repaired
    for name, check in steps:
        if finding.knobs is None:
            break
        finding = check(finding.knobs, environment)
        found.append(_checked(name, finding))
        repaired |= finding.repaired
    return finding.knobs, tuple(found), repaired


def _checked(name: str, finding: Finding) -> Check:
    return Check(name, finding.knobs is not None and not finding.repaired, finding.reason)


def _dump(knobs: Knobs[Any]) -> dict[str, Any]:
    return knobs.model_dump(mode="json")


# -------------------------------------------------------------------------------------------------------------- checks


def bounded(table: Mapping[str, Any], environment: Environment) -> Finding:
    """Schema and bounds: every stratum and knob is there and no other; values move to the nearest on the grid."""
    rows = table.get("strata")
    if not isinstance(rows, Mapping):
        return Finding(None, "no table of strata")
    specs = next(iter(environment.default_knobs().strata.values())).specs()
    names = environment.stratum_names()
    if wrong := _mismatch("stratum", rows, names):
        return Finding(None, wrong)
    fitted: dict[str, dict[str, int]] = {}
    moves: list[str] = []
    for name in names:
        row = rows[name]
        if not isinstance(row, Mapping):
            return Finding(None, f"{name} is not a row of knobs")
        if wrong := _mismatch(f"{name} knob", row, [spec.name for spec in specs]):
            return Finding(None, wrong)
        fitted[name] = {}
        for spec in specs:
            value = row[spec.name]
            if not _is_number(value):
                return Finding(None, f"{name}.{spec.name} is not a number: {value!r:.40}")
            fitted[name][spec.name] = _fit(spec, value)
            if fitted[name][spec.name] != value:
                moves.append(
                    f"{name}.{spec.name} = {value!s:.20} is not one of {spec.minimum}..{spec.maximum} "
                    f"step {spec.step}, took {fitted[name][spec.name]}"
                )
    try:
        knobs = environment.Knobs.model_validate({"strata": fitted})
    except ValidationError as error:
        return Finding(None, "; ".join(str(e["msg"]) for e in error.errors()))
    return Finding(knobs, "; ".join(moves), repaired=bool(moves))


def _mismatch(what: str, got: Mapping[str, Any], wanted: Sequence[str]) -> str:
    missing = [name for name in wanted if name not in got]
    unknown = [str(name) for name in got if name not in wanted]
    parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown):.80}"] * bool(unknown)
    return f"{what}: {'; '.join(parts)}" if parts else ""


def _is_number(value: object) -> bool:
    # Not math.isnan for integers: a reply may hold one too large for a float.
    return type(value) is int or (isinstance(value, float) and not math.isnan(value))


def _fit(spec: KnobSpec, value: float) -> int:
    # Bounds first: the grid arithmetic of ``nearest`` is in floats, and a reply may hold an integer beyond them.
    return spec.nearest(min(max(value, spec.minimum), spec.maximum))


def normalised(knobs: Knobs[Any], environment: Environment) -> Finding:
    """Canonical shares. Proportions are what an engineer means, so this is no repair."""
    return Finding(knobs.normalised())


def feasible(knobs: Knobs[Any], environment: Environment) -> Finding:
    """Only what the generator can meet, by its measured yield; infeasible knobs move to the nearest feasible value."""
    moves: list[str] = []
    for _ in range(REPAIR_ROUNDS):
        problems = environment.feasibility(knobs)
        if not problems:
            return Finding(knobs, "; ".join(moves), repaired=bool(moves))
        if stuck := [problem for problem in problems if problem.nearest is None]:
            return Finding(None, "; ".join(map(str, stuck)))
        moves += map(str, problems)
        table = knobs.model_dump(mode="json")
        for problem in problems:
            table["strata"][problem.stratum][problem.knob] = problem.nearest
        try:
            knobs = environment.Knobs.model_validate(table)
        except ValidationError as error:
            return Finding(None, "; ".join(str(e["msg"]) for e in error.errors()))
    return Finding(None, f"no feasible value after {REPAIR_ROUNDS} rounds of repair: {'; '.join(moves)}")


CHECKS: tuple[tuple[str, GateCheck], ...] = (("normalisation", normalised), ("feasibility", feasible))
"""After schema and bounds, which make a configuration out of a reply's table."""
