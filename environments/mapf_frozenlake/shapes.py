"""What pictures are made of: plain shapes in pixels from the top left corner, colours, and where the cells are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
"""(x, y) in pixels, or in cells where a name says so."""

AGENT_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
"""Of the Okabe-Ito palette, which stays apart under every common colour blindness."""
ALARM, INK, PAPER, LAKE, RULE, QUIET = "#F0E442", "#111827", "#FFFFFF", "#F1F5F9", "#CBD5E1", "#475569"

SPAN, SMALLEST_CELL, LARGEST_CELL = 480.0, 48.0, 84.0
LINE_STEP = 22.0


@dataclass(frozen=True, slots=True)
class Polygon:
    """A closed or, with ``fill`` None, an open run of points with rounded joints."""

    points: tuple[Point, ...]
    fill: str | None
    stroke: str | None = None
    line: float = 0.0


@dataclass(frozen=True, slots=True)
class Disc:
    """A circle."""

    at: Point
    radius: float
    fill: str
    stroke: str | None = None
    line: float = 0.0


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle with rounded corners; ``at`` is its middle."""

    at: Point
    width: float
    height: float
    corner: float
    fill: str
    stroke: str | None = None
    line: float = 0.0


@dataclass(frozen=True, slots=True)
class Text:
    """One line; ``at`` is the middle of its left end or of the whole line."""

    at: Point
    size: float
    text: str
    fill: str = INK
    anchor: Literal["start", "middle"] = "middle"
    bold: bool = True


Shape = Polygon | Disc | Box | Text


@dataclass(frozen=True, slots=True)
class Canvas:
    """Where things are: ``cell`` and ``margin`` in pixels, ``rows`` lines of text below a board of ``n`` cells."""

    n: int
    agents: int
    rows: int

    @property
    def cell(self) -> float:
        """Side of a cell."""
        return min(LARGEST_CELL, max(SMALLEST_CELL, SPAN // self.n))

    @property
    def margin(self) -> float:
        """Room around the board: an agent that leaves it is still to be seen."""
        return 0.6 * self.cell

    @property
    def width(self) -> int:
        """Of the picture."""
        return round(self.n * self.cell + 2 * self.margin)

    @property
    def height(self) -> int:
        """Of the picture."""
        return round(self.n * self.cell + 1.8 * self.margin + self.rows * LINE_STEP + 8)

    def at(self, row: float, column: float, shift: float = 0.0) -> Point:
        """The middle of a cell, moved right and down by ``shift`` cells."""
        return (
            self.margin + (column + 0.5 + shift) * self.cell,
            self.margin + (row + 0.5 + shift) * self.cell,
        )

    def lane(self, agent: int) -> float:
        """How far, in cells, the path of an agent (from 0) is moved off the middle."""
        apart = min(0.16, 0.42 / (self.agents - 1)) if self.agents > 1 else 0.0
        return apart * (agent - (self.agents - 1) / 2)

    @property
    def stroke(self) -> float:
        """Width of a path."""
        return max(2.6, 0.05 * self.cell)


def mixed(colour: str, share: float) -> str:
    """A colour with ``1 - share`` of white in it."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (part - 255) * share):02X}" for part in parts)


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read."""
    linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    luminance = sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
    return INK if luminance > 0.18 else PAPER


def colour_of(agent: int) -> str:
    """Of an agent, counted from 0."""
    return AGENT_COLOURS[agent % len(AGENT_COLOURS)]
