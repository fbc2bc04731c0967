"""What is fixed for a run (Settings) and what the engineer may turn (one row of knobs per map size)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from environments.base import Knobs, StratumKnobs, knob
from environments.mapf_frozenlake.plan import PlanFormat

SMALLEST, LARGEST = 3, 10
Objective = Literal["makespan", "sum_of_costs"]
BoardView = Literal["grid", "coordinates", "both"]


class MapfSettings(BaseModel):
    """Fixed for a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agents: int = Field(default=2, ge=2, le=5, description="agents on every board")
    sizes: tuple[int, ...] = Field(
        default=tuple(range(SMALLEST, LARGEST + 1)), min_length=1, description="map sizes, each one stratum"
    )
    objective: Objective = Field(default="makespan", description="what an optimal plan minimises")
    template: Literal["text", "compact"] = Field(
        default="text", description="`text` for a language model, `compact` for a small model with a word tokenizer"
    )
    board_view: BoardView = Field(
        default="both",
        description="a `grid` of symbols, `coordinates` of holes, starts and goals, or the grid with the coordinates "
        "of starts and goals (`both`)",
    )
    plan_format: PlanFormat = Field(
        default="lines",
        description="a line of actions per agent, one `json` object of lists of actions, or a line with the "
        "`coordinates` of the cells of each agent's path",
    )
    goal_credit: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="reward of a plan that is not valid, times its share of agents on their goals",
    )
    prefix_credit: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="reward of a plan that is not valid, times its steps before a broken rule over the least makespan "
        "(at most 1)",
    )

    @field_validator("sizes")
    @classmethod
    def _sizes_on_range(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) != len(sizes) or any(not SMALLEST <= n <= LARGEST for n in sizes):
            raise ValueError(f"sizes must be distinct numbers from {SMALLEST} to {LARGEST}: {sizes}")
        return tuple(sorted(sizes))

    @model_validator(mode="after")
    def _valid_plans_earn_more(self) -> Self:
        if self.goal_credit + self.prefix_credit > 0.5:
            raise ValueError(
                f"goal_credit = {self.goal_credit:g} and prefix_credit = {self.prefix_credit:g} must add up to at most "
                "0.5: half of the reward is for valid plans alone"
            )
        return self


class MapfRow(StratumKnobs):
    """The knobs of one map size."""

    hole_ratio: int = knob(
        20, minimum=0, maximum=50, step=10, unit="%", harder=1, description="share of cells that are holes"
    )
    wait_ratio: int = knob(
        10,
        minimum=0,
        maximum=100,
        step=10,
        unit="%",
        harder=1,
        description="share of boards whose optimal plans all need at least one wait (0: none, 100: all)",
    )


class MapfKnobs(Knobs[MapfRow]):
    """One row per map size, named ``3x3`` .. ``10x10``."""

    @field_validator("strata")
    @classmethod
    def _known_strata(cls, strata: dict[str, MapfRow]) -> dict[str, MapfRow]:
        unknown = [name for name in strata if name not in STRATUM_SIZES]
        if unknown:
            raise ValueError(f"unknown strata {unknown}: known are {', '.join(STRATUM_SIZES)}")
        return strata


def stratum_name(n: int) -> str:
    """``4x4`` for 4."""
    return f"{n}x{n}"


STRATUM_SIZES = {stratum_name(n): n for n in range(SMALLEST, LARGEST + 1)}


def hole_count(n: int, hole_ratio: int) -> int:
    """Holes on a board: the ratio of its cells, halves rounded up, in exact integer arithmetic."""
    return (2 * hole_ratio * n * n + 100) // 200
