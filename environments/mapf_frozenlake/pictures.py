"""Pictures of a trajectory as files: SVG by hand, PNG and GIF with Pillow. Equal trajectories give equal bytes.

This draws the pictures of the documentation again:

    python -m environments.mapf_frozenlake.pictures docs/images
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.sax.saxutils import escape

from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.drawing import (
    BURST_BEHIND,
    agent_shapes,
    alarm_shapes,
    board_shapes,
    canvas_for,
    frame,
    goal_numbers,
    path_shapes,
    place_at,
    step_line,
    still,
    verdict_lines,
)
from environments.mapf_frozenlake.shapes import Box, Canvas, Disc, Shape, Text
from environments.mapf_frozenlake.trajectory import Trajectory, follow, frames_text

STEP_MS, HOLD_MS = 700, 2_500
"""How long a moving picture shows a step, and its last state."""

COLOURS = 96
"""Of a GIF: the flat ones and enough of their mixtures at edges."""

SCALE = 3
"""Pillow draws without smoothing: everything is drawn this much larger and shrunk."""

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


class PictureError(ValueError):
    """The picture cannot be made; the message says what to do."""


# ----------------------------------------------------------------------------------------------------------------- SVG


def svg(trajectory: Trajectory) -> str:
    """The still picture."""
    canvas, shapes = still(trajectory)
    return _document(trajectory, canvas, [_element(shape) for shape in shapes])


def moving_svg(trajectory: Trajectory) -> str:
    """The execution as an animation (SMIL) that repeats."""
    canvas = canvas_for(trajectory)
    agents, total = range(canvas.agents), STEP_MS * (trajectory.steps + 1) + HOLD_MS
    times = [0.0, *(STEP_MS * (step + 1) / total for step in range(trajectory.steps + 1)), 1.0]
    shapes = board_shapes(trajectory, canvas)
    for agent in agents:
        shapes += path_shapes(trajectory, canvas, agent, trajectory.steps, faint=True)
    shapes += goal_numbers(trajectory, canvas)
    parts = [_element(shape) for shape in shapes]
    ending = [*alarm_shapes(trajectory, canvas, BURST_BEHIND), *verdict_lines(trajectory, canvas, 1)]
    parts.append(_shown(ending, times[-2], 1.0, total))
    for agent in agents:
        spots = [canvas.at(*place_at(trajectory, agent, step)) for step in range(trajectory.steps + 1)]
        values = ";".join(f"{_number(x)} {_number(y)}" for x, y in [spots[0], *spots, spots[-1]])
        motion = (
            f'<animateTransform attributeName="transform" type="translate" dur="{total}ms" repeatCount="indefinite" '
            f'keyTimes="{";".join(_number(t, 5) for t in times)}" values="{values}"/>'
        )
        rest = " ".join(map(_number, spots[-1]))
        disc = "".join(_element(shape) for shape in agent_shapes(canvas, agent, (0, 0)))
        parts.append(f'<g transform="translate({rest})">{motion}{disc}</g>')
    for step in range(trajectory.steps + 1):
        # A step's line comes as the agents arrive and stays until the next.
        begin, until = (times[step + 1] if step else 0.0), (times[step + 2] if step < trajectory.steps else 1.0)
        parts.append(_shown([step_line(trajectory, canvas, step)], begin, until, total))
    return _document(trajectory, canvas, parts)


def _shown(shapes: Sequence[Shape], begin: float, end: float, total: int) -> str:
    """Shapes that are there from one share of the time to another; where nothing moves, the end is."""
    changes = [(0.0, int(begin == 0)), (begin, 1), (end, 0)]
    kept = [(time, value) for i, (time, value) in enumerate(changes) if time < 1 and not (i == 1 and begin == 0)]
    times, values = ";".join(_number(time, 5) for time, _ in kept), ";".join(str(value) for _, value in kept)
    return (
        f'<g opacity="{int(end == 1)}">'
        f'<animate attributeName="opacity" calcMode="discrete" dur="{total}ms" repeatCount="indefinite" '
        f'keyTimes="{times}" values="{values}"/>{"".join(map(_element, shapes))}</g>'
    )


def _document(trajectory: Trajectory, canvas: Canvas, parts: Sequence[str]) -> str:
    title = escape(" · ".join(filter(None, (trajectory.headline(), trajectory.explanation()))))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{canvas.width}" height="{canvas.height}" '
        f'viewBox="0 0 {canvas.width} {canvas.height}" role="img" font-family="{FONT}" stroke-linejoin="round" '
        f'stroke-linecap="round">'
    )
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>"]) + "\n"


def _element(shape: Shape) -> str:
    if isinstance(shape, Text):
        weight = ' font-weight="700"' if shape.bold else ""
        x, y = _number(shape.at[0]), _number(shape.at[1] + 0.36 * shape.size)
        return (
            f'<text x="{x}" y="{y}" font-size="{_number(shape.size)}" text-anchor="{shape.anchor}"{weight} '
            f'fill="{shape.fill}">{escape(shape.text)}</text>'
        )
    paint = f'fill="{shape.fill or "none"}"'
    if shape.stroke:
        paint += f' stroke="{shape.stroke}" stroke-width="{_number(shape.line)}"'
    if isinstance(shape, Disc):
        return f'<circle cx="{_number(shape.at[0])}" cy="{_number(shape.at[1])}" r="{_number(shape.radius)}" {paint}/>'
    if isinstance(shape, Box):
        left, top = shape.at[0] - shape.width / 2, shape.at[1] - shape.height / 2
        corner = f' rx="{_number(shape.corner)}"' if shape.corner else ""
        size = f'width="{_number(shape.width)}" height="{_number(shape.height)}"'
        return f'<rect x="{_number(left)}" y="{_number(top)}" {size}{corner} {paint}/>'
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
    return f'<{"polyline" if shape.fill is None else "polygon"} points="{points}" {paint}/>'


def _number(value: float, digits: int = 2) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}".rstrip("0").rstrip(".")


# --------------------------------------------------------------------------------------------------------- PNG and GIF


def png(trajectory: Trajectory) -> bytes:
    """The still picture. Raises :class:`PictureError` without Pillow."""
    sink = io.BytesIO()
    _painted(*still(trajectory)).save(sink, "PNG", optimize=True)
    return sink.getvalue()


def gif(trajectory: Trajectory) -> bytes:
    """The execution, one frame per step from step 0 on, the last one held. Raises :class:`PictureError`."""
    frames = [_painted(*frame(trajectory, step)) for step in range(trajectory.steps + 1)]
    palette = _palette(frames[-1])
    plain = [image.quantize(palette=palette, dither=0) for image in frames]
    sink = io.BytesIO()
    times = [STEP_MS] * trajectory.steps + [HOLD_MS]
    plain[0].save(sink, "GIF", save_all=True, append_images=plain[1:], duration=times, loop=0, optimize=False)
    return sink.getvalue()


def _palette(image: Any) -> Any:
    """The colours that cover most of an image, as they are: flat ones would come out mixed otherwise."""
    counted = sorted(image.getcolors(image.width * image.height), key=lambda entry: (-entry[0], entry[1]))
    colours = [colour for _, colour in counted[:COLOURS]]
    palette = _pillow()[0].new("P", (1, 1))
    palette.putpalette([part for colour in colours for part in colour])
    return palette


def _pillow() -> tuple[ModuleType, ModuleType, ModuleType]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise PictureError("PNG and GIF pictures need Pillow: pip install pillow, or save as .svg or .txt") from None
    return Image, ImageDraw, ImageFont


def _painted(canvas: Canvas, shapes: Sequence[Shape]) -> Any:
    """A Pillow image."""
    image_module, draw_module, font_module = _pillow()
    image = image_module.new("RGB", (SCALE * canvas.width, SCALE * canvas.height), "#FFFFFF")
    draw = draw_module.Draw(image)
    for shape in shapes:
        _paint(draw, shape, font_module)
    return image.resize((canvas.width, canvas.height), image_module.Resampling.BOX)


def _paint(draw: Any, shape: Shape, fonts: ModuleType) -> None:
    if isinstance(shape, Text):
        font = fonts.load_default(SCALE * shape.size)
        anchor = "lm" if shape.anchor == "start" else "mm"
        heavier = SCALE * shape.size / 36 if shape.bold else 0
        at = _scaled(shape.at)
        draw.text(at, shape.text, fill=shape.fill, font=font, anchor=anchor, stroke_width=heavier)
        return
    line = round(SCALE * shape.line)
    if isinstance(shape, Disc):
        # Pillow draws outlines inwards, SVG on both sides of the edge.
        reach = SCALE * (shape.radius + shape.line / 2)
        draw.circle(_scaled(shape.at), reach, fill=shape.fill, outline=shape.stroke, width=line)
    elif isinstance(shape, Box):
        (x, y), half = _scaled(shape.at), shape.line / 2
        wide, high = SCALE * (shape.width / 2 + half), SCALE * (shape.height / 2 + half)
        corner = SCALE * (shape.corner + half) if shape.corner else 0
        box = (x - wide, y - high, x + wide, y + high)
        draw.rounded_rectangle(box, corner, fill=shape.fill, outline=shape.stroke, width=line)
    else:
        points = [_scaled(point) for point in shape.points]
        if shape.fill is not None:
            draw.polygon(points, fill=shape.fill)
            points.append(points[0])
        if shape.stroke:
            draw.line(points, fill=shape.stroke, width=line)
            for point in points:
                draw.circle(point, line / 2, fill=shape.stroke)


def _scaled(point: tuple[float, float]) -> tuple[float, float]:
    return SCALE * point[0], SCALE * point[1]


# --------------------------------------------------------------------------------------------------------------- files

WRITERS: Mapping[str, Callable[[Trajectory], str | bytes]] = {
    ".moving.svg": moving_svg,
    ".svg": svg,
    ".png": png,
    ".gif": gif,
    ".txt": frames_text,
}
"""By the end of a file's name."""


def save(trajectory: Trajectory, path: str | Path) -> None:
    """Write the picture that the name's end asks for, whole or not at all; see ``WRITERS``.

    Raises :class:`PictureError` for another ending, a missing Pillow or a place that cannot be written.
    """
    path = Path(path)
    writer = next((writer for ending, writer in WRITERS.items() if path.name.endswith(ending)), None)
    if writer is None:
        raise PictureError(f"{path}: no picture has this ending; allowed are {', '.join(WRITERS)}")
    content = writer(trajectory)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)
        scratch.replace(path)
    except OSError as error:
        raise PictureError(f"{path} cannot be written: {error}") from None
    finally:
        scratch.unlink(missing_ok=True)


SHOWN = Board(5, (5, 6, 17, 20, 23), (16, 10, 11), (24, 9, 8))
SHOWN_OPTIMA = {"makespan": 6, "sum_of_costs": 15}
GOOD_PLAN = """\
1: UP RIGHT RIGHT RIGHT DOWN DOWN
2: WAIT RIGHT RIGHT RIGHT RIGHT UP
3: RIGHT RIGHT UP"""
BAD_PLAN = """\
1: UP RIGHT RIGHT RIGHT DOWN DOWN
2: WAIT WAIT RIGHT RIGHT RIGHT RIGHT UP
3: RIGHT RIGHT RIGHT LEFT UP"""

DOCUMENTED: Mapping[str, str] = {"board-plan.gif": GOOD_PLAN, "board-violation.svg": BAD_PLAN}
"""The pictures of the documentation: an optimal plan carried out, and one that breaks a rule."""


def main(arguments: list[str] | None = None) -> int:
    """Draw the pictures of the documentation into a folder."""
    parser = argparse.ArgumentParser(prog="python -m environments.mapf_frozenlake.pictures", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    for name, plan in DOCUMENTED.items():
        save(follow(SHOWN, SHOWN_OPTIMA, plan), folder / name)
        print(folder / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
