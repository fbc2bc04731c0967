"""Boards from elsewhere: every shape that the mapping documents, and one clear sentence for what cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environments.mapf_frozenlake import MapfFrozenLake
from environments.mapf_frozenlake.foreign_boards import Fields, ForeignBoardsError, main, read_boards

PLAIN = {"n": 3, "holes": [4], "starts": [0, 2], "goals": [8, 3]}
PAIRS = {"map_size": "3x3", "holes": [[1, 1]], "starts": [[0, 0], [0, 2]], "goals": [[2, 2], [1, 0]]}
AGENTS = {
    "board": {"grid": ["...", ".H.", "..."]},
    "agents": {"0": {"start": [0, 0], "goal": [2, 2]}, "1": {"start": [0, 2], "goal": [1, 0]}},
}
X_Y = {"grid": "000\n010\n000", "starts": "[[0, 0], [2, 0]]", "goals": "[[2, 2], [0, 1]]"}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def payload(path: Path, **fields: Any) -> dict[str, Any]:
    (task,) = read_boards(path, Fields(**fields)).tasks
    return task.data()


def test_one_board_in_four_notations_becomes_one_task(tmp_path: Path) -> None:
    expected = payload(write(tmp_path / "plain.jsonl", PLAIN))
    assert expected == {
        **PLAIN, "makespan": 4, "sum_of_costs": 7, "wait_makespan": False, "wait_sum_of_costs": False
    }  # fmt: skip
    assert payload(write(tmp_path / "pairs.json", PAIRS), size="map_size") == expected
    inside = {"grid": "board.grid", "starts": "agents[].start", "goals": "agents[].goal"}
    assert payload(write(tmp_path / "agents.jsonl", AGENTS), **inside) == expected
    assert payload(write(tmp_path / "x_y.jsonl", X_Y), grid="grid", order="x_y") == expected


def test_every_container_gives_the_same_set(tmp_path: Path) -> None:
    rows = [PLAIN, {**PLAIN, "starts": [2, 0], "goals": [3, 8]}]
    lines = read_boards(write(tmp_path / "boards.jsonl", *rows))
    (tmp_path / "array").mkdir()
    (tmp_path / "array" / "boards.json").write_text(json.dumps({"data": rows}, indent=1))
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")
    (tmp_path / "saved").mkdir()
    with pa.ipc.new_stream(tmp_path / "saved" / "data-00000-of-00001.arrow", pa.Table.from_pylist(rows).schema) as sink:
        sink.write_table(pa.Table.from_pylist(rows))
    (tmp_path / "saved" / "state.json").write_text("{}")
    for other in (tmp_path / "array" / "boards.json", tmp_path / "hub", tmp_path / "saved"):
        found = read_boards(other)
        assert found.checksum == lines.checksum and [t.payload for t in found.tasks] == [t.payload for t in lines.tasks]


def test_the_tasks_can_be_asked_answered_and_judged(tmp_path: Path) -> None:
    env = MapfFrozenLake()
    (task,) = read_boards(write(tmp_path / "plain.jsonl", PLAIN)).tasks
    assert env.prompt(task) and env.score(task, env.answer(task)).reward == 1.0  # type: ignore[union-attr]
    assert (task.split, task.stratum) == ("plain", "3x3")


@pytest.mark.parametrize(
    ("change", "fields", "said"),
    [
        ({"goals": None}, {}, "row 2: goals = None is not a list of cells"),
        ({"starts": [0, 9]}, {}, r"row 2: starts has 9; a cell is a number 0\.\.8"),
        ({"starts": [0, True]}, {}, "row 2: starts has True"),
        ({"starts": [0, 4]}, {}, "row 2: starts and goals must be free cells"),
        ({"starts": [0], "goals": [8]}, {}, "row 2: starts has 1 agents; 2 to 5 are allowed"),
        ({"n": 11}, {}, "row 2: size = 11; boards from 3 to 10 are allowed"),
        ({"n": 2.5}, {}, "row 2: size = 2.5; a whole number"),
        (
            {"holes": [1, 3, 4, 5], "starts": [0, 2], "goals": [8, 7]},
            {},
            "row 2: the board is unsolvable",
        ),
        ({"makespan": 5}, {"makespan": "makespan"}, "row 2: makespan = 5, the solver finds 4"),
        ({}, {"starts": "agents[].start"}, "row 2: no `agents`.*there is n, holes, starts, goals. Say with `starts`"),
        ({}, {"grid": "holes"}, "row 2: grid is not square"),
        ({}, {"size": None}, "give `grid`, or both `size` and `holes`"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_row(
    change: dict[str, Any], fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    good = {"makespan": 4, "agents": [{"start": 0}, {"start": 2}], **PLAIN}
    path = write(tmp_path / "boards.jsonl", good, {**PLAIN, **change})
    if fields.get("grid") or "size" in fields:
        said = said.replace("row 2", "row 1")
    with pytest.raises(ForeignBoardsError, match=said):
        read_boards(path, Fields(**fields))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"n": 3}\n{"n": \n', "a.jsonl, line 2: it is not JSON"),
        ("b.json", b"7", "b.json: it is a JSON int"),
        ("c.json", b"\xff\xfe", "c.json: it cannot be read"),
        ("d.parquet", b"PAR1 no", "d.parquet: it cannot be read"),
        ("e.csv", b"n", r"files ending in .parquet, .arrow, .jsonl, .json are allowed"),
        ("f.jsonl", b"\n", "it holds no rows"),
        ("g.jsonl", b"[1]\n[2]\n", "g.jsonl, row 1: it is a list; a row must be an object"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ForeignBoardsError, match=said):
        read_boards(tmp_path / name)
    with pytest.raises(ForeignBoardsError, match="no such file or folder"):
        read_boards(tmp_path / "absent.json")


def test_the_command_stores_labelled_boards_and_refuses_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "pairs.jsonl", PAIRS)
    assert main([str(path), "--field", "size=map_size", "--write", str(out)]) == 0
    assert "2 agents, 3x3: 1 boards, 0 need a wait" in capsys.readouterr().out
    assert read_boards(out).tasks[0].payload == out.read_text().strip()
    for wrong in (["--field", "siez=map_size"], ["--field", "order=z"], []):
        assert main([str(path), *wrong, "--write", str(tmp_path / "none.jsonl")]) == 1
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "none.jsonl").exists()
