"""Counts of small whole numbers as text: bars with one line per bin, and a strip with one character per value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

LEVELS = " ▁▂▃▄▅▆▇█"
STRIP = 60
"""Most characters of a strip."""


def bars(values: Sequence[int], *, most: int = 8, width: int = 50) -> list[str]:
    """At most ``most`` lines ``from-to bar count`` over equal bins; a bin that is not empty has a visible bar."""
    step = _step(max(values) - min(values) + 1, most)
    counts = Counter(value // step for value in values)
    digits = len(str(max(values) + step))
    top = max(counts.values())
    lines = []
    for place in range(min(counts), max(counts) + 1):
        low, count = place * step, counts[place]
        name = f"{low:>{digits}}" if step == 1 else f"{low:>{digits}}-{low + step - 1:<{digits}}"
        bar = ("█" * round(width * count / top) or "▏") if count else ""
        lines.append(f"  {name} {bar:<{width}} {count}")
    return lines


def strips(rows: Mapping[str, Sequence[int]]) -> list[str]:
    """One line per row over a common axis from 0: how often each value comes, then least, median and greatest."""
    highest = max(value for values in rows.values() for value in values)
    step = _step(highest + 1, STRIP)
    width = highest // step + 1
    name_width = max(map(len, rows))
    axis = "".join(f"{tick * step:<5}" for tick in range(0, width, 5))
    lines = [f"  {'':<{name_width}}  {axis}".rstrip()]
    for name, values in rows.items():
        counts = Counter(value // step for value in values)
        top = max(counts.values())
        strip = "".join(LEVELS[-(-counts[place] * (len(LEVELS) - 1) // top)] for place in range(width))
        spread = f"{min(values)} .. {median(values):g} .. {max(values)}"
        lines.append(f"  {name:<{name_width}}  {strip:<{len(axis)}} {spread}")
    return lines


def _step(span: int, most: int) -> int:
    """The least of 1, 2, 5, 10, 20, ... that cuts ``span`` values, wherever they begin, into at most ``most`` bins."""
    scale = 1
    while True:
        for step in (scale, 2 * scale, 5 * scale):
            bins = span if step == 1 else -(-span // step) + 1
            if bins <= most:
                return step
        scale *= 10
