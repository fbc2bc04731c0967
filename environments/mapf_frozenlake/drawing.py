"""Pictures of a trajectory as lists of plain shapes, in pixels from the top left corner: pure geometry, no format.

Agents are numbered discs at their starts, goals are frames with the same number and colour. Every agent has a lane of
its own inside the cells, so that paths over the same cells lie side by side. Colour is never the only cue.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from environments.mapf_frozenlake.shapes import (
    ALARM,
    INK,
    LAKE,
    LINE_STEP,
    PAPER,
    QUIET,
    RULE,
    Box,
    Canvas,
    Disc,
    Point,
    Polygon,
    Shape,
    Text,
    colour_of,
    ink_on,
    mixed,
)
from environments.mapf_frozenlake.trajectory import Trajectory
from environments.mapf_frozenlake.verdict import MapfOutcome

DISC, SMALL_DISC, FRAME = 0.3, 0.17, 0.86
"""Radius of an agent, of one that breaks a rule in a still picture, and side of a goal, in cells."""
HEAD_SIZE, BODY_SIZE = 16.0, 15.0
BOLD_WIDTH, PLAIN_WIDTH = 0.62, 0.58
"""A letter's width by its size on average, in the widest of the usual fonts: which one a viewer has is not known."""
BURST, BURST_BEHIND, OUTER_BURST = 0.44, 0.62, 0.36
"""Radius of the alarm in cells: in a still picture, behind the agents of a moving one, and in the margin."""


# ------------------------------------------------------------------------------------------------------------- caption


def caption(trajectory: Trajectory, canvas: Canvas) -> list[tuple[str, bool]]:
    """The verdict in lines that fit: (text, whether it is the headline)."""
    width = canvas.width - canvas.margin
    lines = [(line, True) for line in textwrap.wrap(trajectory.headline(), int(width / (BOLD_WIDTH * HEAD_SIZE)))]
    rest = textwrap.wrap(trajectory.explanation(), int(width / (PLAIN_WIDTH * BODY_SIZE)), max_lines=3)
    return lines + [(line, False) for line in rest]


def canvas_for(trajectory: Trajectory) -> Canvas:
    """A canvas with room for the caption and one line more."""
    board = trajectory.board
    narrow = Canvas(board.n, len(board.starts), 0)
    lines = caption(trajectory, narrow)
    return Canvas(board.n, len(board.starts), len(lines) + 1)


def caption_line(canvas: Canvas, row: int, text: str, *, bold: bool = False, quiet: bool = False) -> Text:
    """A line of text below the board."""
    at = (canvas.margin, 1.8 * canvas.margin + canvas.n * canvas.cell + (row + 0.5) * LINE_STEP)
    size = 13.0 if quiet else HEAD_SIZE if bold else BODY_SIZE
    return Text(at, size, text, QUIET if quiet else INK, "start", bold)


def verdict_lines(trajectory: Trajectory, canvas: Canvas, first: int) -> list[Text]:
    """The caption from row ``first`` on."""
    lines = caption(trajectory, canvas)
    return [caption_line(canvas, first + row, text, bold=bold) for row, (text, bold) in enumerate(lines)]


# --------------------------------------------------------------------------------------------------------------- board


def board_shapes(trajectory: Trajectory, canvas: Canvas) -> list[Shape]:
    """Paper, cells, holes, row and column numbers and goals."""
    board, n, cell = trajectory.board, canvas.n, canvas.cell
    middle = (canvas.width / 2, canvas.height / 2)
    shapes: list[Shape] = [Box(middle, canvas.width, canvas.height, 0, PAPER)]
    holes = set(board.holes)
    for index in range(n * n):
        at = canvas.at(*divmod(index, n))
        shapes.append(Box(at, cell, cell, 0, LAKE, RULE, 1))
        if index in holes:
            shapes.append(Box(at, 0.94 * cell, 0.94 * cell, 0.16 * cell, INK))
    for i in range(n):
        shapes += [
            Text(canvas.at(i, -0.78), 12, str(i), QUIET, bold=False),
            Text(canvas.at(-0.78, i), 12, str(i), QUIET, bold=False),
        ]
    for agent, goal in enumerate(board.goals):
        colour, side = colour_of(agent), FRAME * cell
        at = canvas.at(*board.coordinates(goal))
        shapes.append(Box(at, side, side, 0.1 * cell, mixed(colour, 0.18), colour, 0.055 * cell))
    return shapes


def goal_numbers(trajectory: Trajectory, canvas: Canvas) -> Iterator[Shape]:
    """The number of each goal in the corner of its frame; drawn over the paths."""
    side = 0.3 * canvas.cell
    for agent, goal in enumerate(trajectory.board.goals):
        row, column = trajectory.board.coordinates(goal)
        corner, colour = canvas.at(row - 0.32, column + 0.32), colour_of(agent)
        yield Box(corner, side, side, 0.2 * side, colour, INK, 1)
        yield Text(corner, 0.83 * side, str(agent + 1), ink_on(colour))


def agent_shapes(canvas: Canvas, agent: int, at: Point, size: float = DISC) -> list[Shape]:
    """The disc of an agent (from 0), ``size`` cells in radius."""
    colour, radius = colour_of(agent), size * canvas.cell
    return [
        Disc(at, radius, colour, INK, max(1.2, 0.022 * canvas.cell)),
        Text(at, 1.27 * radius, str(agent + 1), ink_on(colour)),
    ]


# --------------------------------------------------------------------------------------------------------------- paths


def place_at(trajectory: Trajectory, agent: int, step: int) -> Point:
    """(row, column) at which an agent is drawn. Who breaks a rule stops on the way: the accident is between cells."""
    row, column = trajectory.places[step][agent]
    violation = trajectory.violation
    if not (step == trajectory.steps and trajectory.crashes and violation and agent + 1 in violation.agents):
        return row, column
    part = {MapfOutcome.EDGE_CONFLICT: 0.2, MapfOutcome.OUT_OF_BOUNDS: 0.15}.get(trajectory.outcome, 0.5)
    before = trajectory.places[step - 1][agent]
    return before[0] + part * (row - before[0]), before[1] + part * (column - before[1])


@dataclass(frozen=True, slots=True)
class Move:
    """One step of an agent from a cell to its neighbour: (row, column) of both, and the steps it waited before."""

    begin: Point
    end: Point
    waited: int

    @property
    def direction(self) -> Point:
        """(rows, columns), a unit vector."""
        rows, columns = self.end[0] - self.begin[0], self.end[1] - self.begin[1]
        length = math.hypot(rows, columns)
        return rows / length, columns / length


def moves_of(trajectory: Trajectory, agent: int, until: int) -> list[Move]:
    """The moves of an agent in the first ``until`` steps."""
    moves, waited = [], 0
    for step in range(1, until + 1):
        begin = place_at(trajectory, agent, step - 1)
        end = place_at(trajectory, agent, step)
        if begin == end:
            waited += 1
        else:
            moves.append(Move(begin, end, waited))
            waited = 0
    return moves


def path_points(canvas: Canvas, agent: int, moves: Sequence[Move], apart: float) -> list[Point]:
    """The corners of a path on its lane, ``apart`` cells to the right of it as the agent goes."""
    lane, points = canvas.lane(agent), list[Point]()
    for before, move, after in zip([None, *moves[:-1]], moves, [*moves[1:], None], strict=True):
        here = _right(move)
        back = (-here[0], -here[1])
        if before is None or _right(before) == back:
            points.append(_shifted(canvas, move.begin, here, apart, lane))
        side = here
        if after is not None and _right(after) == here:
            continue
        if after is not None and _right(after) != back:
            side = (here[0] + _right(after)[0], here[1] + _right(after)[1])
        points.append(_shifted(canvas, move.end, side, apart, lane))
    return points


def _own_offset(trajectory: Trajectory, canvas: Canvas, agent: int) -> float:
    """How far, in cells, an agent keeps to the right: 0 unless it comes back on its own track, so that both show."""
    path = [places[agent] for places in trajectory.places]
    tracks = [frozenset(pair) for pair in pairwise(path) if pair[0] != pair[1]]
    return 0.9 * canvas.stroke / canvas.cell if len(set(tracks)) < len(tracks) else 0.0


def _right(move: Move) -> Point:
    rows, columns = move.direction
    return columns + 0.0, -rows + 0.0


def _shifted(canvas: Canvas, place: Point, side: Point, apart: float, lane: float) -> Point:
    return canvas.at(place[0] + side[0] * apart, place[1] + side[1] * apart, lane)


def path_shapes(trajectory: Trajectory, canvas: Canvas, agent: int, until: int, *, faint: bool = False) -> list[Shape]:
    """The path of an agent in the first ``until`` steps; if not faint, with an arrow head per move and its waits."""
    moves = moves_of(trajectory, agent, until)
    if not moves:
        return []
    lane, apart, colour = canvas.lane(agent), _own_offset(trajectory, canvas, agent), colour_of(agent)
    points, stroke = tuple(path_points(canvas, agent, moves, apart)), canvas.stroke
    if faint:
        return [Polygon(points, None, mixed(colour, 0.55), stroke)]
    shapes: list[Shape] = [Polygon(points, None, INK, stroke + 1.6), Polygon(points, None, colour, stroke)]
    for move in moves:
        side, (rows, columns) = _right(move), move.direction
        part = 0.56 if move is not moves[-1] else math.dist(move.begin, move.end)
        tip = (move.begin[0] + part * rows, move.begin[1] + part * columns)
        shapes.append(_arrow_head(_shifted(canvas, tip, side, apart, lane), move.direction, canvas, colour))
        if move.waited:
            beside_disc = 0.38 if move.waited == 1 else 0.5
            part = beside_disc if move.begin in trajectory.places[0] else 0.2
            held = (move.begin[0] + part * rows, move.begin[1] + part * columns)
            shapes += _wait(_shifted(canvas, held, side, apart, lane), move.waited, canvas, colour)
    return shapes


def _arrow_head(at: Point, direction: Point, canvas: Canvas, colour: str) -> Polygon:
    rows, columns = direction
    long, wide = 1.9 * canvas.stroke, 1.45 * canvas.stroke
    tip = (at[0] + columns * long, at[1] + rows * long)
    tail = (at[0] - columns * 0.5 * long, at[1] - rows * 0.5 * long)
    left, right = (tail[0] - rows * wide, tail[1] + columns * wide), (tail[0] + rows * wide, tail[1] - columns * wide)
    return Polygon((tip, left, right), colour, INK, 0.8)


def _wait(at: Point, steps: int, canvas: Canvas, colour: str) -> Iterator[Shape]:
    """The sign for a pause, with the number of steps if they are several."""
    high = 0.25 * canvas.cell
    wide = high if steps == 1 else 1.9 * high
    yield Box(at, wide, high, high / 2, PAPER, colour, 0.6 * canvas.stroke)
    left = at[0] - (0 if steps == 1 else 0.48 * high)
    for x in (left - 0.14 * high, left + 0.14 * high):
        yield Box((x, at[1]), 0.13 * high, 0.5 * high, 0, INK)
    if steps > 1:
        yield Text((at[0] + 0.34 * high, at[1]), 0.75 * high, f"x{steps}", INK)


# ----------------------------------------------------------------------------------------------------------- violation


def alarm_shapes(trajectory: Trajectory, canvas: Canvas, size: float = BURST) -> Iterator[Shape]:
    """A yellow burst with a black edge and an exclamation mark where the first rule is broken; none if solved."""
    if trajectory.violation and not all(0 <= at < canvas.n for at in trajectory.violation.cell):
        size = OUTER_BURST
    for row, column in _alarm_places(trajectory):
        yield from _burst(canvas.at(row, column), size * canvas.cell)


def _alarm_places(trajectory: Trajectory) -> list[Point]:
    violation = trajectory.violation
    if violation is None:
        return []
    last = [place_at(trajectory, agent - 1, trajectory.steps) for agent in violation.agents]
    if trajectory.outcome is MapfOutcome.GOAL_NOT_REACHED:
        return last
    if trajectory.outcome is MapfOutcome.EDGE_CONFLICT:
        return [((last[0][0] + last[1][0]) / 2, (last[0][1] + last[1][1]) / 2)]
    # Off the board: just outside, where the margin still has room for it.
    row, column = (min(max(at, -0.56), trajectory.board.n - 0.44) for at in violation.cell)
    return [(row, column)]


def culprit_shapes(trajectory: Trajectory, canvas: Canvas) -> Iterator[Shape]:
    """In a still picture: a small disc for each agent that breaks the rule, where it does."""
    violation = trajectory.violation
    for agent in [] if violation is None else [agent - 1 for agent in violation.agents]:
        at = place_at(trajectory, agent, trajectory.steps)
        if at == trajectory.places[0][agent]:
            continue  # its disc is there already
        # Who comes in stands at the edge of the cell; who is there makes room for the exclamation mark.
        aside = 0.0 if at != trajectory.places[-1][agent] else 0.3
        yield from agent_shapes(canvas, agent, canvas.at(*at, aside), SMALL_DISC)


def _burst(at: Point, radius: float) -> Iterator[Shape]:
    points = []
    for tip in range(24):
        reach = radius if tip % 2 == 0 else 0.7 * radius
        angle = math.pi * tip / 12
        points.append((at[0] + reach * math.sin(angle), at[1] - reach * math.cos(angle)))
    yield Polygon(tuple(points), ALARM, INK, max(1.6, 0.07 * radius))
    yield Text(at, 1.15 * radius, "!", INK)


# ------------------------------------------------------------------------------------------------------------- pictures


def still(trajectory: Trajectory) -> tuple[Canvas, list[Shape]]:
    """The whole execution in one picture: agents at their starts, their paths, the first violation, the verdict."""
    canvas = canvas_for(trajectory)
    shapes = board_shapes(trajectory, canvas)
    agents = range(canvas.agents)
    for agent in agents:
        shapes += path_shapes(trajectory, canvas, agent, trajectory.steps)
    shapes += goal_numbers(trajectory, canvas)
    shapes += alarm_shapes(trajectory, canvas)
    for agent in agents:
        shapes += agent_shapes(canvas, agent, canvas.at(*place_at(trajectory, agent, 0)))
    shapes += culprit_shapes(trajectory, canvas)
    shapes += verdict_lines(trajectory, canvas, 0)
    legend = "disc: start, frame: goal, bars: wait"
    return canvas, [*shapes, caption_line(canvas, canvas.rows - 1, legend, quiet=True)]


def frame(trajectory: Trajectory, step: int) -> tuple[Canvas, list[Shape]]:
    """The state after ``step`` steps with faint trails; the last one shows the violation and the verdict."""
    canvas = canvas_for(trajectory)
    shapes = board_shapes(trajectory, canvas)
    agents, last = range(canvas.agents), step == trajectory.steps
    for agent in agents:
        shapes += path_shapes(trajectory, canvas, agent, step, faint=True)
    shapes += goal_numbers(trajectory, canvas)
    if last:
        shapes += alarm_shapes(trajectory, canvas, BURST_BEHIND)
    for agent in agents:
        shapes += agent_shapes(canvas, agent, canvas.at(*place_at(trajectory, agent, step)))
    shapes.append(step_line(trajectory, canvas, step))
    return canvas, shapes + (verdict_lines(trajectory, canvas, 1) if last else [])


def step_line(trajectory: Trajectory, canvas: Canvas, step: int) -> Text:
    """``step 3 of 7`` as the first line of a moving picture."""
    return caption_line(canvas, 0, f"step {step} of {trajectory.steps}")
