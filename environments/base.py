"""The Environment contract: what can be trained on.

An environment is one class. It owns two pydantic models: ``Settings`` (fixed for a run) and ``Knobs`` (what the
environment engineer may turn, a table of strata by knobs). Everything the orchestrator shows to an engineer, checks,
or constrains is read from the knobs' own schema, so no other package knows a knob by name. Tasks, verdicts and failures
are plain frozen records. Nothing in this package imports Ray, torch or vLLM.
"""

from __future__ import annotations

import enum
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypedDict, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, field_validator

SCHEMA_VERSION = 1


class Message(TypedDict):
    """One chat turn."""

    role: Literal["system", "user", "assistant"]
    content: str


# --------------------------------------------------------------------------------------------------------------- knobs


@dataclass(frozen=True, slots=True)
class KnobSpec:
    """One column of the knob table: an integer on a grid.

    ``harder`` is +1 if a larger value makes the stratum harder, -1 if easier, 0 if it does not change difficulty.
    """

    name: str
    minimum: int
    maximum: int
    step: int
    unit: str
    harder: int
    description: str
    default: int

    @property
    def grid(self) -> range:
        """Every value the knob can take, ascending."""
        return range(self.minimum, self.maximum + 1, self.step)

    def nearest(self, value: float) -> int:
        """The grid value closest to ``value`` (ties go down)."""
        steps = max(0, min(len(self.grid) - 1, int(-(-((value - self.minimum) / self.step - 0.5) // 1))))
        return self.grid[steps]


def knob(default: int, *, minimum: int, maximum: int, step: int, unit: str, harder: int, description: str) -> Any:
    """A pydantic field that carries a :class:`KnobSpec`."""
    return Field(
        default=default,
        ge=minimum,
        le=maximum,
        multiple_of=step,
        description=description,
        json_schema_extra={"step": step, "unit": unit, "harder": harder},
    )


class StratumKnobs(BaseModel):
    """The knobs of one stratum. Subclasses add difficulty knobs beside the data share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: int = knob(
        50, minimum=0, maximum=100, step=10, unit="%", harder=0, description="weight of this stratum in the next stage"
    )

    @classmethod
    def specs(cls) -> tuple[KnobSpec, ...]:
        """The columns of the table, in field order."""
        out = []
        for name, info in cls.model_fields.items():
            extra = info.json_schema_extra
            if not isinstance(extra, dict) or "step" not in extra:
                raise TypeError(f"{cls.__name__}.{name} is not a knob: declare it with environments.base.knob(...)")
            bounds = {type(m).__name__: m for m in info.metadata}
            out.append(
                KnobSpec(
                    name=name,
                    minimum=int(bounds["Ge"].ge),
                    maximum=int(bounds["Le"].le),
                    step=int(str(extra["step"])),
                    unit=str(extra["unit"]),
                    harder=int(str(extra["harder"])),
                    description=info.description or "",
                    default=int(info.default),
                )
            )
        return tuple(out)


S = TypeVar("S", bound=StratumKnobs)


class Knobs(BaseModel, Generic[S]):
    """An environment configuration: one row of knobs per stratum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strata: dict[str, S]

    @field_validator("strata")
    @classmethod
    def _some_data(cls, strata: dict[str, S]) -> dict[str, S]:
        if not strata or all(row.share == 0 for row in strata.values()):
            raise ValueError("every share is 0: at least one stratum needs data")
        return strata

    def digest(self) -> str:
        """Content hash, stable across processes."""
        return digest(self.model_dump(mode="json"))

    def weights(self) -> dict[str, float]:
        """Share of each stratum, normalised to sum to one."""
        total = sum(row.share for row in self.strata.values())
        return {name: row.share / total for name, row in self.strata.items()}

    def reweighted(self, weights: Mapping[str, float]) -> Knobs[S]:
        """The same configuration with shares in proportion to ``weights``: the largest becomes the top of the grid.

        A weight above 0 gets at least one grid step, so that rounding drops no stratum.
        """
        top = max(weights.get(name, 0.0) for name in self.strata)
        if top <= 0:
            raise ValueError("every weight is 0: at least one stratum needs data")
        rows = {}
        for name, row in self.strata.items():
            spec = type(row).specs()[0]
            weight = weights.get(name, 0.0)
            share = max(spec.nearest(spec.maximum * weight / top), spec.step) if weight > 0 else 0
            rows[name] = row.model_copy(update={"share": share})
        return self.model_copy(update={"strata": rows})

    def normalised(self) -> Knobs[S]:
        """Canonical form: only the proportions of shares matter, so the largest is put at the top of the grid."""
        return self.reweighted(self.weights())

    def changes(self, other: Knobs[S]) -> list[Change]:
        """What turns ``self`` into ``other``, in table order."""
        return [
            Change(name, spec.name, before, after)
            for name, row in self.strata.items()
            for spec in type(row).specs()
            if (before := getattr(row, spec.name)) != (after := getattr(other.strata[name], spec.name))
        ]


@dataclass(frozen=True, slots=True)
class Change:
    """One knob turned."""

    stratum: str
    knob: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.stratum} {self.knob} {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a configuration cannot be used as it is, and the nearest value that can."""

    stratum: str
    knob: str
    value: int
    reason: str
    nearest: int | None = None

    def __str__(self) -> str:
        hint = "" if self.nearest is None else f" (nearest that works: {self.nearest})"
        return f"{self.stratum}.{self.knob} = {self.value}: {self.reason}{hint}"


def random_knobs(model: type[Knobs[S]], row: type[S], strata: Sequence[str], rng: random.Random) -> Knobs[S]:
    """A configuration with every knob drawn uniformly from its grid and at least one non-zero share."""
    while True:
        rows = {s: {spec.name: rng.choice(spec.grid) for spec in row.specs()} for s in strata}
        if any(values["share"] for values in rows.values()):
            return model.model_validate({"strata": rows})


# -------------------------------------------------------------------------------------------------------------- records


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> str:
    """blake2b content hash of a JSON value, 16 bytes as hex."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=16).hexdigest()


def stream(*key: str | int) -> random.Random:
    """A private random stream that is a pure function of its key (never of a global generator)."""
    seed = hashlib.blake2b(canonical_json(list(key)).encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(seed, "big"))


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do. ``payload`` is canonical JSON that only the environment reads.

    ``id`` hashes environment and payload alone, so equal tasks from different stages have one id.
    """

    environment: str
    payload: str
    stratum: str
    split: str
    index: int
    stage: int = 0
    knobs_digest: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def id(self) -> str:
        """Content hash of the task."""
        return digest([self.environment, self.payload])

    def data(self) -> dict[str, Any]:
        """The payload, parsed."""
        parsed: dict[str, Any] = json.loads(self.payload)
        return parsed

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return {**asdict(self), "id": self.id}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker said. ``outcome`` is a member of the environment's closed enumeration."""

    reward: float
    outcome: str
    facts: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


class Outcomes(enum.StrEnum):
    """What a closed list of outcomes derives from: members are ``NAME = "value", "one-line description"``."""

    description: str

    def __new__(cls, value: str, description: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_, member.description = value, description
        return member


class NoAnswer(ValueError):
    """The environment knows no best answer to its tasks."""


class FailureKind(enum.StrEnum):
    """Why something could not be decided. None of these is ever a reward."""

    INFRASTRUCTURE = "infrastructure"
    DATA = "data"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Failure:
    """A typed failure: counted, retried elsewhere, never turned into a reward."""

    kind: FailureKind
    message: str
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class FrozenSet:
    """Fixed tasks with a checksum over boards and labels."""

    name: str
    tasks: tuple[Task, ...]
    checksum: str


@dataclass(frozen=True, slots=True)
class Yield:
    """Measured while generating one stratum: how many candidates were drawn, kept, and how many kept were distinct."""

    drawn: int
    kept: int
    distinct: int


# ------------------------------------------------------------------------------------------------------------- contract


@runtime_checkable
class Labeller(Protocol):
    """Ground truth for a batch of payloads, in order. In-process by default; the actors inject a pool.

    It may have array methods beside it, named ``label_…``: arrays [B, ...] in, a dataclass of arrays [B] or one Failure
    out, each row independent of the others; a pool cuts and joins them by row.
    """

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        """Labels of each payload (a JSON object whose keys the environment documents), or a typed failure."""
        ...


AnyKnobs: TypeAlias = Knobs[Any]
"""Knobs of whatever environment. (Inside ``Environment`` the name ``Knobs`` is the class variable.)"""


class Environment(Protocol):
    """What a task family implements. Instances are cheap, hold no randomness and may be built in any process."""

    name: ClassVar[str]
    version: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]
    Knobs: ClassVar[type[AnyKnobs]]
    Outcome: ClassVar[type[enum.StrEnum]]
    """Closed enumeration of outcomes, worst first; each member has a one-line ``description`` attribute."""
    solved: ClassVar[frozenset[str]]
    """The outcomes that count as success (valid answers)."""
    labeller: Labeller
    """The injected ground truth, or the environment's own in-process one."""

    def __init__(self, settings: BaseModel, labeller: Labeller | None = None) -> None: ...

    def stratum_names(self) -> tuple[str, ...]:
        """The strata of this run, easiest first."""
        ...

    def default_knobs(self) -> AnyKnobs:
        """The configuration a person would start from."""
        ...

    def random_knobs(self, rng: random.Random) -> AnyKnobs:
        """A feasible configuration drawn at random: stage 0."""
        ...

    def strata(self, knobs: AnyKnobs) -> dict[str, float]:
        """Weight of each stratum, summing to one."""
        ...

    def reweight(self, knobs: AnyKnobs, weights: Mapping[str, float]) -> AnyKnobs:
        """The same knobs with other stratum weights."""
        ...

    def feasibility(self, knobs: AnyKnobs) -> list[Problem]:
        """Knobs that the generator cannot meet, by measured yield, each with the nearest that it can."""
        ...

    def generate(
        self, knobs: AnyKnobs, seed: int, start: int, count: int, *, split: str = "train", stage: int = 0
    ) -> list[Task]:
        """Items ``start`` .. ``start + count - 1`` of a stream; item i is a pure function of its position."""
        ...

    def prompt(self, task: Task) -> list[Message]:
        """The chat that asks for an answer."""
        ...

    def answer(self, task: Task) -> str:
        """A best possible completion, for warm starts and checking the checker; raises NoAnswer if none is known."""
        ...

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict | Failure:
        """Judge any string, deterministically."""
        ...

    def validation(self) -> FrozenSet:
        """Fixed tasks that steer training (never used for claims)."""
        ...

    def held_out(self) -> FrozenSet:
        """Fixed tasks for claims, never seen by warm start, training or the gate."""
        ...

    def render(self, task: Task, completion: str | None = None) -> str:
        """The task, and the answer carried out on it if given, for a person."""
        ...

    def vocabulary(self) -> tuple[str, ...]:
        """Words of prompts and answers that a small tokenizer should hold as single tokens."""
        ...
