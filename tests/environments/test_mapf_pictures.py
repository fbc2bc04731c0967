"""Every picture shows the same trajectory: where the agents went, up to and including the first violation."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from environments.mapf_frozenlake import pictures
from environments.mapf_frozenlake.board import Board
from environments.mapf_frozenlake.cases import KINDS, CaseError, committed, find, labelled, load_case
from environments.mapf_frozenlake.drawing import BOLD_WIDTH, PLAIN_WIDTH, frame, moves_of, path_points, place_at, still
from environments.mapf_frozenlake.environment import MapfFrozenLake
from environments.mapf_frozenlake.pictures import PictureError, gif, moving_svg, png, save, svg
from environments.mapf_frozenlake.plan import PlanFormat
from environments.mapf_frozenlake.shapes import AGENT_COLOURS, Polygon, Text
from environments.mapf_frozenlake.trajectory import Trajectory, follow, frames_text
from environments.mapf_frozenlake.verdict import MapfOutcome

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"

SMALL = Board(3, (1,), (8, 6), (5, 2))
OPTIMA = {"makespan": 4, "sum_of_costs": 8}
ANSWERS = {
    "truncated": "1: UP",
    "parse_error": "I give up & leave <it> there",
    "missing_agent": "1: UP",
    "illegal_move": "1: (2, 2) (0, 0)\n2: (2, 0) (2, 1)",
    "out_of_bounds": "1: DOWN\n2: RIGHT",
    "hole": "1: UP LEFT UP\n2: WAIT",
    "vertex_conflict": "1: UP WAIT WAIT\n2: RIGHT RIGHT UP",
    "edge_conflict": "1: LEFT\n2: RIGHT",
    "goal_not_reached": "1: LEFT\n2: UP UP",
    "valid": "1: UP LEFT WAIT WAIT RIGHT\n2: RIGHT RIGHT UP UP",
    "optimal": "1: UP WAIT LEFT RIGHT\n2: RIGHT RIGHT UP UP",
}
VIOLATIONS = ("illegal_move", "out_of_bounds", "hole", "vertex_conflict", "edge_conflict", "goal_not_reached")
ALL = pytest.mark.parametrize("outcome", ANSWERS)


def trajectory(outcome: str) -> Trajectory:
    board = Board(3, (1,), (7, 6), (5, 2)) if outcome == "edge_conflict" else SMALL
    plan_format: PlanFormat = "coordinates" if outcome == "illegal_move" else "lines"
    return follow(board, OPTIMA, ANSWERS[outcome], truncated=outcome == "truncated", plan_format=plan_format)


def large() -> Trajectory:
    task = load_case("paper-10x10")
    return follow(Board.from_payload(task.data()), task.data(), MapfFrozenLake().answer(task))


@ALL
def test_a_trajectory_ends_as_the_checker_says(outcome: str) -> None:
    found = trajectory(outcome)
    assert found.outcome == outcome
    assert found.places[0] == tuple(map(found.board.coordinates, found.board.starts))
    if found.violation is not None:
        assert found.steps == found.violation.step
        if found.crashes and outcome != "edge_conflict":
            assert found.places[-1][found.violation.agents[0] - 1] == found.violation.cell
    else:
        assert found.steps == (0 if "reason" in found.facts else found.facts["makespan"])


def test_the_step_of_a_crash_holds_where_everyone_was_bound_for() -> None:
    assert trajectory("out_of_bounds").places == (((2, 2), (2, 0)), ((3, 2), (2, 1)))
    assert trajectory("edge_conflict").places == (((2, 1), (2, 0)), ((2, 0), (2, 1)))


@pytest.mark.parametrize(
    ("path", "explanation"),
    [
        ("(2, 2) (9, -900)", "step 1: agent 1 jumps to row 9, column -900"),
        ("(7, 7) (7, 8)", "step 0: agent 1 does not begin at its start but at row 7, column 7"),
    ],
)
def test_a_path_that_leaps_off_the_board_is_explained_and_drawn_inside_its_picture(path: str, explanation: str) -> None:
    found = follow(SMALL, OPTIMA, f"1: {path}\n2: (2, 0)", plan_format="coordinates")
    assert (found.outcome, found.explanation()) == (MapfOutcome.ILLEGAL_MOVE, explanation)
    assert frames_text(found).count("1!") == 1
    canvas, shapes = still(found)
    for x, y in (point for shape in shapes if isinstance(shape, Polygon) for point in shape.points):
        assert 0 <= x <= canvas.width and 0 <= y <= canvas.height


def test_a_plan_that_beats_its_label_is_no_picture() -> None:
    with pytest.raises(ValueError, match="below the label"):
        follow(SMALL, {"makespan": 9, "sum_of_costs": 9}, ANSWERS["optimal"])


@ALL
def test_svg_is_well_formed_and_numbers_every_agent_at_start_and_goal(outcome: str) -> None:
    found = trajectory(outcome)
    for text in (svg(found), moving_svg(found)):
        root = ElementTree.fromstring(text)
        words = [node.text or "" for node in root.iter(f"{SVG}text") if node.get("font-weight")]
        colours = {node.get("fill") for node in root.iter()}
        for agent in range(len(found.board.starts)):
            assert words.count(str(agent + 1)) >= 2
            assert AGENT_COLOURS[agent] in colours
        assert found.headline() in " ".join(words)


def test_a_start_is_numbered_in_its_cell_and_a_goal_in_its_own() -> None:
    found = large()
    canvas, shapes = still(found)
    for cells in (found.board.starts, found.board.goals):
        for agent, cell in enumerate(cells):
            x, y = canvas.at(*found.board.coordinates(cell))
            inside = [
                s for s in shapes if isinstance(s, Text) and max(abs(s.at[0] - x), abs(s.at[1] - y)) < canvas.cell / 2
            ]
            assert str(agent + 1) in {s.text for s in inside}


@pytest.mark.parametrize("outcome", VIOLATIONS)
def test_the_violation_is_marked_and_explained_in_every_format(outcome: str) -> None:
    found = trajectory(outcome)
    assert found.violation is not None
    for text in (svg(found), moving_svg(found)):
        marks = [n for n in ElementTree.fromstring(text).iter(f"{SVG}polygon") if n.get("fill") == "#F0E442"]
        assert len(marks) == (len(found.violation.agents) if outcome == "goal_not_reached" else 1)
        assert f"step {found.violation.step}: " in text
    assert "!" in frames_text(found)
    assert _yellow(png(found)) > 300
    pillow_image = pytest.importorskip("PIL.Image")
    image = pillow_image.open(io.BytesIO(gif(found)))
    if found.steps:
        assert not _yellow_in(image)
    image.seek(found.steps)
    assert _yellow_in(image) > 300


@pytest.mark.parametrize("outcome", ["parse_error", "valid", "optimal"])
def test_what_breaks_no_rule_of_movement_has_no_mark(outcome: str) -> None:
    found = trajectory(outcome)
    assert "#F0E442" not in svg(found) + moving_svg(found)
    assert "!" not in frames_text(found)
    assert not _yellow(png(found))


def _yellow(data: bytes) -> int:
    return _yellow_in(pytest.importorskip("PIL.Image").open(io.BytesIO(data)))


def _yellow_in(image: object) -> int:
    """Pixels as yellow as the mark."""
    pixels = image.convert("RGB").tobytes()  # type: ignore[attr-defined]
    return sum(r > 225 and g > 215 and b < 90 for r, g, b in zip(pixels[::3], pixels[1::3], pixels[2::3]))


@ALL
def test_text_has_one_board_per_step(outcome: str) -> None:
    found = trajectory(outcome)
    shown = frames_text(found)
    assert re.findall(r"^step (\d+)$", shown, re.MULTILINE) == [str(step) for step in range(found.steps + 1)]
    assert shown.endswith("\n".join(filter(None, (found.headline(), found.explanation()))) + "\n")


def test_text_shows_agents_goals_and_holes_of_a_step() -> None:
    second = frames_text(trajectory("vertex_conflict")).split("\n\n")[3]
    assert second == "step 2\n    0  1  2\n 0  .  #  b\n 1  .  .  1a\n 2  .  .  2"
    last = frames_text(trajectory("vertex_conflict")).split("\n\n")[4]
    assert last.splitlines()[3].split() == ["1", ".", ".", "1!2!a"]


@ALL
def test_a_gif_has_one_frame_per_step_and_holds_the_last(outcome: str) -> None:
    found = trajectory(outcome)
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(gif(found)))
    assert image.n_frames == found.steps + 1
    durations = []
    for number in range(image.n_frames):
        image.seek(number)
        durations.append(image.info["duration"])
    assert durations == [pictures.STEP_MS] * found.steps + [pictures.HOLD_MS]


def test_a_picture_fits_its_board() -> None:
    pillow_image = pytest.importorskip("PIL.Image")
    for found in (trajectory("goal_not_reached"), large()):
        canvas, shapes = still(found)
        assert pillow_image.open(io.BytesIO(png(found))).size == (canvas.width, canvas.height)
        for shape in (s for s in shapes if isinstance(s, Text)):
            wide = (BOLD_WIDTH if shape.bold else PLAIN_WIDTH) * shape.size * len(shape.text)
            left = shape.at[0] - (wide / 2 if shape.anchor == "middle" else 0)
            assert left >= 0 and left + wide <= canvas.width, shape.text
            assert shape.at[1] + shape.size / 2 <= canvas.height, shape.text


def test_paths_over_the_same_cells_lie_side_by_side() -> None:
    canvas, _ = still(large())
    lanes = [canvas.lane(agent) * canvas.cell for agent in range(canvas.agents)]
    assert min(b - a for a, b in pairwise(lanes)) > canvas.stroke + 1.6
    assert max(lanes) < canvas.cell / 4


def test_an_agent_that_comes_back_on_its_own_track_draws_two_lines() -> None:
    found = trajectory("valid")
    moves = moves_of(found, 0, found.steps)
    canvas, _ = still(found)
    straight, apart = path_points(canvas, 0, moves, 0.0), path_points(canvas, 0, moves, 0.05)
    assert len(set(straight)) < len(straight) and len(set(apart)) == len(apart)


def test_who_breaks_a_rule_stops_on_the_way_and_the_others_arrive() -> None:
    found = trajectory("out_of_bounds")
    assert place_at(found, 0, 1) == (2.15, 2.0)
    assert place_at(found, 1, 1) == (2, 1)
    swapped = trajectory("edge_conflict")
    assert place_at(swapped, 0, 1)[1] > place_at(swapped, 1, 1)[1], "they have not passed each other"


@pytest.mark.parametrize("ending", pictures.WRITERS)
def test_equal_trajectories_give_equal_bytes(ending: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        save(trajectory("hole"), tmp_path / f"{name}{ending}")
    one, other = ((tmp_path / f"{name}{ending}").read_bytes() for name in ("one", "other"))
    assert one == other
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"one{ending}", f"other{ending}"]


def test_a_still_svg_does_not_move() -> None:
    assert "<animate" not in svg(trajectory("optimal"))


def test_another_ending_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"allowed are \.moving\.svg, \.svg, \.png, \.gif, \.txt"):
        save(trajectory("hole"), tmp_path / "board.bmp")
    assert not list(tmp_path.iterdir())


def test_a_picture_that_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "board.svg"
    target.write_text("old")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(PictureError, match="no space left"):
        save(trajectory("hole"), target)
    assert [p.name for p in tmp_path.iterdir()] == ["board.svg"] and target.read_text() == "old"
    with pytest.raises(PictureError, match="cannot be written"):
        save(trajectory("hole"), tmp_path / "nowhere" / "board.svg")


def test_without_pillow_one_message_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PictureError, match="pip install pillow"):
        save(trajectory("hole"), tmp_path / "board.png")
    save(trajectory("hole"), tmp_path / "board.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["board.svg"]


def test_the_pictures_of_the_documentation_are_what_they_claim_and_rebuild_to_the_same_bytes(tmp_path: Path) -> None:
    assert pictures.main([str(tmp_path)]) == 0
    for name in pictures.DOCUMENTED:
        assert (tmp_path / name).read_bytes() == (IMAGES / name).read_bytes(), (
            f"{name}: run `python -m environments.mapf_frozenlake.pictures docs/images` and look at it"
        )
        assert (IMAGES / name).stat().st_size < 150_000
    good = follow(pictures.SHOWN, pictures.SHOWN_OPTIMA, pictures.GOOD_PLAN)
    bad = follow(pictures.SHOWN, pictures.SHOWN_OPTIMA, pictures.BAD_PLAN)
    assert (good.outcome, bad.outcome) == (MapfOutcome.OPTIMAL, MapfOutcome.EDGE_CONFLICT)


def test_the_board_of_the_documentation_has_the_labels_that_the_solver_finds() -> None:
    labels = labelled(pictures.SHOWN)
    assert {name: labels[name] for name in pictures.SHOWN_OPTIMA} == pictures.SHOWN_OPTIMA


# ------------------------------------------------------------------------------------------------------------- cases


@pytest.mark.parametrize("name", KINDS)
def test_a_committed_case_is_the_first_board_of_its_kind(name: str) -> None:
    payload, kind = committed()[name], KINDS[name]
    assert find(name) == payload
    assert (payload["n"], len(payload["starts"])) == (kind.n, kind.agents)
    assert len(payload["holes"]) == round(kind.hole_ratio * kind.n**2 / 100)
    assert payload["makespan"] >= kind.makespan and payload["wait_makespan"]
    assert load_case(name).data() == payload


def test_the_cases_are_those_of_the_paper() -> None:
    shapes = {(kind.n, kind.agents) for kind in KINDS.values()}
    assert shapes == {(3, 2), (10, 5)} and KINDS["paper-10x10"].hole_ratio == 50


def test_a_board_in_a_file_gets_its_labels_from_the_solver(tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text('{"n": 3, "holes": [1], "starts": [8, 6], "goals": [5, 2]}')
    assert load_case(str(file)).data() == committed()["paper-3x3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "neither a file nor one of paper-3x3, paper-10x10"),
        ("{", "cannot be read as JSON"),
        ("\x00\xff", "cannot be read as JSON"),
        ("[]", "a board is a JSON object with n, holes, starts, goals; it is a list"),
        ('{"n": 3, "holes": []}', "starts, goals missing"),
        ('{"n": 3, "holes": 7, "starts": [0, 1], "goals": [2, 3]}', "no board"),
        ('{"n": 3, "holes": [], "starts": [0, 0], "goals": [2, 3]}', "distinct cells"),
        ('{"n": 3, "holes": [2], "starts": [0, 1], "goals": [2, 3]}', "free cells"),
        ('{"n": 11, "holes": [], "starts": [0, 1], "goals": [2, 3]}', "n = 11: boards have 3 to 10 rows"),
        ('{"n": 3, "holes": [], "starts": [0], "goals": [2]}', "1 starts: boards have 2 to 5 agents"),
        ('{"n": 3, "holes": [1, 4, 7], "starts": [0, 3], "goals": [2, 6]}', "the board is unsolvable"),
        ('{"n": 3, "holes": [1], "starts": [8, 6], "goals": [5, 2], "makespan": 3}', "makespan = 3 is wrong"),
    ],
)
def test_a_board_that_is_none_is_one_clear_error(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(CaseError, match=re.escape(message)) as caught:
        load_case(str(file))
    assert "\n" not in str(caught.value) and "board.json" in str(caught.value)


def test_the_frames_of_a_moving_picture_are_of_one_size() -> None:
    found = large()
    sizes = {(canvas.width, canvas.height) for canvas, _ in (frame(found, step) for step in range(found.steps + 1))}
    assert len(sizes) == 1
