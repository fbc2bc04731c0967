"""A moving SVG plays: read by the rules of SMIL, it shows each step of the plan at its time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from environments.mapf_frozenlake import pictures
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.drawing import frame, place_at
from environments.mapf_frozenlake.pictures import moving_svg
from environments.mapf_frozenlake.trajectory import Trajectory
from tests.environments.test_mapf_pictures import ALL, ANSWERS, SVG, trajectory


class Animation:
    """An ``animate`` or ``animateTransform`` element, read by the rules of SMIL."""

    def __init__(self, node: ElementTree.Element) -> None:
        assert node.get("repeatCount") == "indefinite" and not {"begin", "end", "by", "from", "to"} & set(node.keys())
        self.milliseconds = int(node.attrib["dur"].removesuffix("ms"))
        self.times = [float(share) * self.milliseconds for share in node.attrib["keyTimes"].split(";")]
        self.values = [tuple(map(float, value.split())) for value in node.attrib["values"].split(";")]
        self.discrete = node.get("calcMode") == "discrete"
        assert len(self.times) == len(self.values)
        assert self.times[0] == 0 and all(before < after for before, after in pairwise(self.times))
        assert self.times[-1] == self.milliseconds or (self.discrete and self.times[-1] < self.milliseconds)

    def at(self, milliseconds: float) -> tuple[float, ...]:
        """The value at a time of the first pass."""
        begin = max(place for place, time in enumerate(self.times) if time <= milliseconds)
        if self.discrete or begin + 1 == len(self.times):
            return self.values[begin]
        part = (milliseconds - self.times[begin]) / (self.times[begin + 1] - self.times[begin])
        return tuple(a + part * (b - a) for a, b in zip(self.values[begin], self.values[begin + 1], strict=True))


def animated(found: Trajectory, tag: str) -> list[tuple[Animation, str]]:
    """The animations of a kind, each with the text in the group that it animates."""
    groups = ElementTree.fromstring(moving_svg(found)).iter(f"{SVG}g")
    return [(Animation(node), "".join(group.itertext())) for group in groups for node in group.findall(f"{SVG}{tag}")]


@ALL
def test_every_agent_of_a_moving_svg_is_at_each_step_where_its_plan_takes_it(outcome: str) -> None:
    found = trajectory(outcome)
    canvas, _ = frame(found, 0)
    motions = animated(found, "animateTransform")
    assert [name for _, name in motions] == [str(agent + 1) for agent in range(len(found.board.starts))]
    for agent, (motion, _) in enumerate(motions):
        assert motion.milliseconds == pictures.STEP_MS * (found.steps + 1) + pictures.HOLD_MS
        places = [place_at(found, agent, step) for step in range(found.steps + 1)]
        if outcome in ("valid", "optimal"):
            assert places == [cells[agent] for cells in walked(found.board, ANSWERS[outcome])]
        for step, place in enumerate(places):
            assert motion.at(pictures.STEP_MS * (step + 1)) == pytest.approx(canvas.at(*place), abs=0.05), step
        for still_time in (0, 1, pictures.STEP_MS - 1):
            assert motion.at(still_time) == pytest.approx(canvas.at(*places[0]), abs=0.05)
        for late in (motion.milliseconds - pictures.HOLD_MS + 1, motion.milliseconds):
            assert motion.at(late) == pytest.approx(canvas.at(*places[-1]), abs=0.05)


def walked(board: Board, answer: str) -> list[tuple[tuple[int, int], ...]]:
    """(row, column) of every agent after each step of an answer in lines, by hand."""
    moves = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1), "WAIT": (0, 0)}
    plans = [line.split(":")[1].split() for line in answer.splitlines()]
    places = [[divmod(start, board.n)] for start in board.starts]
    for path, plan in zip(places, plans, strict=True):
        for action in (*plan, *["WAIT"] * (max(map(len, plans)) - len(plan))):
            path.append((path[-1][0] + moves[action][0], path[-1][1] + moves[action][1]))
    return list(zip(*places, strict=True))


@ALL
def test_a_moving_svg_names_one_step_at_a_time_and_ends_with_the_verdict(outcome: str) -> None:
    found = trajectory(outcome)
    shown = animated(found, "animate")
    verdict = [motion for motion, text in shown if found.headline().split()[0] in text]
    assert len(verdict) == 1 and len(shown) == found.steps + 2
    for time in range(0, shown[0][0].milliseconds, pictures.STEP_MS // 7):
        lines = [text for motion, text in shown if motion.at(time + 1) == (1.0,) and motion not in verdict]
        step = max(0, (time + 1) // pictures.STEP_MS - 1)
        assert lines == [f"step {min(step, found.steps)} of {found.steps}"]
        assert verdict[0].at(time + 1) == (float(time + 1 >= pictures.STEP_MS * (found.steps + 1)),)
