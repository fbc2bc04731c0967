"""MovingAI files are read as they are defined, at any size, and malformed ones are one clear error."""

from __future__ import annotations

import pytest

from solvers import solve
from solvers.boards import BoardError
from solvers.movingai import Entry, instance, read_map, read_scenario

HEAD = "type octile\nheight {}\nwidth {}\nmap\n"
MAP = HEAD.format(2, 5) + ".G@T.\nSW.O.\n"
SCEN = "version 1\n0\tsmall.map\t5\t2\t0\t0\t1\t0\t1\n3\tsmall.map\t5\t2\t2\t1\t4\t0\t3.41421356\n"


@pytest.fixture
def files(tmp_path):
    """Writes a map and a scenario, and gives their paths."""

    def write(map_text=MAP, scenario=SCEN):
        paths = tmp_path / "small.map", tmp_path / "small.scen"
        for path, text in zip(paths, (map_text, scenario), strict=True):
            path.write_bytes(text.encode("latin-1"))
        return paths

    return write


def test_terrain_is_free_or_a_hole(files):
    assert read_map(files()[0]).tolist() == [[False, False, True, True, False], [False, True, False, True, False]]


def test_a_map_may_be_large(files):
    rows = ["".join("@."[(r * c) % 3 > 0] for c in range(301)) for r in range(200)]
    holes = read_map(files(HEAD.format(200, 301) + "\r\n".join(rows) + "\r\n")[0])
    assert holes.shape == (200, 301)
    assert (holes[7, 9], holes[7, 10]) == (True, False)


def test_entries_are_row_and_column(files):
    first, second = read_scenario(files()[1])
    assert first == Entry(0, "small.map", 2, 5, (0, 0), (0, 1), 1.0)
    assert (second.bucket, second.start, second.goal, second.optimal_length) == (3, (1, 2), (0, 4), 3.41421356)


def test_an_oblong_map_is_padded_with_holes(files):
    board = instance(*files(HEAD.format(2, 5) + ".....\n.....\n"), 2)
    assert [sum(row) for row in board.holes] == [0, 0, 5, 5, 5]
    assert (board.starts, board.goals) == ((0, 7), (1, 4))
    assert solve(board.holes, board.starts, board.goals).sum_of_costs == 1 + 3
    narrow = instance(*files(HEAD.format(1, 2) + "..\n", "version 1.0\n0\tm\t2\t1\t0\t0\t1\t0\t1\n"), 1)
    assert narrow.holes == ((False, False, True), (True, True, True), (True, True, True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' is not allowed; it must be 'type octile'"),
        ("type hex\nheight 2\n", "line 1: 'type hex' is not allowed"),
        ("type octile\n", "line 2: the end of the file is not allowed; it must be height and a positive integer"),
        ("type octile\nwidth 5\n", "line 2: 'width 5'"),
        ("type octile\nheight 0\n", "line 2: 'height 0'"),
        ("type octile\nheight -2\n", "line 2: 'height -2'"),
        ("type octile\nheight 2\nwidth 1e9\n", "line 3: 'width 1e9'"),
        ("type octile\nheight 2\nwidth 5\nmop\n", "line 4: 'mop' is not allowed; it must be 'map'"),
        (HEAD.format(3, 5) + ".....\n.....\n", "2 rows are not allowed after height 3"),
        (HEAD.format(1, 5) + ".....\n.....\n", "2 rows are not allowed after height 1"),
        (HEAD.format(2, 5) + ".....\n...\n", "line 6: 3 cells are not allowed after width 5"),
        (HEAD.format(2, 5) + ".....\n.. ..\n", "line 6: ' ' is not allowed"),
        (HEAD.format(2, 5) + ".....\n..\0..\n", "line 6: .* is not allowed"),
        (HEAD.format(2, 5) + ".....\n..\xe9..\n", "line 6: not ASCII text"),
        (HEAD.format(999_999_999, 999_999_999) + ".....\n", "1 rows are not allowed"),
    ],
)
def test_a_bad_map_is_one_clear_error(files, text, message):
    path, _ = files(text)
    with pytest.raises(BoardError, match=message) as caught:
        read_map(path)
    assert str(path) in str(caught.value)


def entry(**changes):
    fields = dict(zip("bmwhxyXYl", ["0", "small.map", "5", "2", "0", "0", "1", "0", "1.5"], strict=True)) | changes
    return "version 1\n" + "\t".join(fields.values()) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' is not allowed; it must be 'version 1'"),
        ("version 2\n", "line 1: 'version 2'"),
        ("version 1\n\n", "no entry after the version"),
        (entry().replace("\t", " "), "line 2: 1 fields are not allowed; give 9, apart by tabs"),
        (entry()[:-5], "line 2: 8 fields"),
        (entry(b="x"), "line 2: bucket 'x' is not allowed"),
        (entry(x="-1"), "line 2: start x '-1' is not allowed; it must be an integer of 0 or more"),
        (entry(y="0.5"), "start y '0.5'"),
        (entry(X="9" * 5000), "goal x '9{40}' is not allowed"),
        (entry(X="5"), r"goal x 5 is not allowed; it must be 0\.\.4"),
        (entry(Y="2"), r"goal y 2 is not allowed; it must be 0\.\.1"),
        (entry(l="nan"), "optimal length 'nan'"),
        (entry(l="1e999"), "optimal length '1e999'"),
        (entry(m="\xe9"), "line 2: not ASCII text"),
    ],
)
def test_a_bad_scenario_is_one_clear_error(files, text, message):
    _, path = files(scenario=text)
    with pytest.raises(BoardError, match=message) as caught:
        read_scenario(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("map_text", "scenario", "agents", "message"),
    [
        (MAP, SCEN, 3, r"agents: 3 is not allowed; give 1\.\.2 .the scenario has 2 entries"),
        (MAP, SCEN, 0, "agents: 0 is not allowed"),
        (MAP, SCEN.replace("\t5\t2\t2", "\t5\t3\t2"), 2, "entry 2: map height and width 3x5 are not those of map"),
        (MAP, entry(X="2"), 1, "goals: cell 2 .row 0, column 2. of agent 1 is a hole"),
        (MAP, SCEN + SCEN.splitlines()[1] + "\n", 3, "starts: cell 0 is there twice"),
        (HEAD.format(1, 11) + "." * 11, entry(w="11", h="1"), 1, r"1x11 is too large; .*3\.\.10 rows"),
    ],
)
def test_what_the_solver_cannot_take_is_one_clear_error(files, map_text, scenario, agents, message):
    with pytest.raises(BoardError, match=message):
        instance(*files(map_text, scenario), agents)


def test_a_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(BoardError, match=r"map .*none\.map: cannot be read .No such file"):
        read_map(tmp_path / "none.map")
