"""Claims about `envwright solve`: answers in order, one clear error, whole lines whatever ends it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import orchestrator.solve
from orchestrator.cli import main
from orchestrator.config import ConfigError
from orchestrator.solve import Question, line_blocks, sniffed, solve_lines
from solvers import Status, solve, solve_batch, validate_plan
from solvers.boards import MAX_BYTES, from_json

ROOT = Path(__file__).parents[2]
DRAWING = b"1 . b\n. # .\na . 2\n"
BOARD = b'{"n": 3, "holes": [4], "starts": [0, 8], "goals": [6, 2]}'
RING = b'{"id": "ring", "n": 3, "holes": [4], "starts": [0, 2, 8], "goals": [2, 0, 8]}'
# Three agents on a ring who must wait for one another: one expansion settles nothing.
HARD = b'{"n": 3, "holes": [4], "starts": [3, 6, 5], "goals": [8, 1, 0]}'


@pytest.fixture
def command(monkeypatch, capfd):
    """Runs the command in this process: (exit code, standard output, standard error)."""

    def call(*arguments, data=b""):
        monkeypatch.setattr(sys, "argv", ["envwright", "solve", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


def lines_of(text):
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def answered(lines, clock=lambda: 0.0, question=None):
    """What `solve_lines` writes for these lines, parsed, and the number of bad lines."""
    written: list[bytes] = []
    bad = solve_lines(line_blocks(io.BytesIO(b"\n".join(lines))), question or Question(), written.extend, clock)
    return lines_of(b"".join(written).decode()), bad


def random_lines(count):
    generator = np.random.default_rng(4)
    for _ in range(count):
        n, k = int(generator.integers(3, 6)), int(generator.integers(1, 4))
        cells = generator.permutation(n * n)
        free = cells[2:]
        starts, goals = (generator.permutation(free)[:k].tolist() for _ in range(2))
        yield json.dumps({"n": n, "holes": cells[:2].tolist(), "starts": starts, "goals": goals}).encode()


# ------------------------------------------------------------------------------------------------------------ one board


def test_one_board_is_answered_for_a_person(command, tmp_path):
    (tmp_path / "board.txt").write_bytes(DRAWING)
    code, out, err = command(tmp_path / "board.txt")
    assert (code, err) == (0, "")
    assert out.startswith("status: solvable\nmakespan T*: 2\nsum of costs: 4\n")
    assert "every plan of least makespan waits: no" in out
    assert out.count("  agent 1: DOWN DOWN\n  agent 2: UP UP\n") == 2
    assert command(data=DRAWING)[1] == command("-", data=BOARD)[1] == out
    assert command(data=json.dumps(json.loads(BOARD), indent=2).encode())[1] == out


def test_a_proof_and_an_undecided_board_are_answers(command):
    code, out, err = command(data=RING)
    assert (code, err) == (0, "") and out.startswith("status: unsolvable (proven)\nexpansions: ")
    code, out, err = command("--node-budget", 1, data=HARD)
    assert (code, err) == (0, "")
    assert out.startswith("status: undecided: 1 expansions were not enough; raise --node-budget\n")
    assert "makespan T*: unknown" in out


def test_only_wanted_labels_are_shown(command):
    _, out, _ = command("--want", "makespan", data=BOARD)
    assert "makespan T*: 2" in out and "sum of costs" not in out and "waits" not in out


def test_json_of_one_board_is_one_line(command):
    for data in (DRAWING, BOARD):
        code, out, err = command("--json", data=data)
        (answer,) = lines_of(out)
        assert (code, err) == (0, "")
        assert (answer["line"], answer["status"], answer["plan_makespan"][1]) == (1, "solvable", ["UP", "UP"])


def test_a_movingai_scenario_is_one_board(command, tmp_path):
    (tmp_path / "m.map").write_text("type octile\nheight 2\nwidth 4\nmap\n....\n.@@.\n")
    (tmp_path / "m.scen").write_text("version 1\n0\tm.map\t4\t2\t0\t1\t3\t1\t5\n0\tm.map\t4\t2\t1\t0\t2\t0\t1\n")
    names = ("--map", tmp_path / "m.map", "--scen", tmp_path / "m.scen")
    code, out, _ = command(*names, "--agents", 1)
    assert code == 0 and "agent 1: UP RIGHT RIGHT RIGHT DOWN" in out
    assert lines_of(command(*names, "--agents", 2, "--json")[1])[0]["status"] == "unsolvable"
    for arguments, wanted in (
        (names, "--agents missing; --map, --scen and --agents go together"),
        ((*names, "--agents", 3), "agents: 3 is not allowed; give 1..2"),
        (("board.txt", *names, "--agents", 1), "board.txt is not allowed beside --map"),
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (1, "") and wanted in err and err.count("\n") == 1


BAD = {
    "nothing": (b"", "the input is empty"),
    "blank lines": (b"\n \n\n", "the input is empty"),
    "binary": (bytes(range(256)) * 8, "not UTF-8 text"),
    "an image": (b"\x89PNG\r\n\x1a\n\x00\x00", "byte 0x89 is not UTF-8 text"),
    "zero bytes": (b"\0" * 100, "not allowed; write . (free)"),
    "one endless line": (b"." * (5 * MAX_BYTES), f"longer than {MAX_BYTES} bytes"),
    "endless blank lines": (b"\n" * (20 * MAX_BYTES), f"longer than {MAX_BYTES} bytes"),
    "prose": (b"hello\nworld\n", 'line 1, cell 1: "h" is not allowed'),
    "an oblong board": (b"1 a . .\n. . . .\n. . . .", "line 1: 4 cells are not allowed in a board of 3 rows"),
    "a small board": (b"1 a\n. .", "holes: 2 rows are not allowed"),
    "a large board": (b"1 a" + b" ." * 9 + b"\n. . ." * 10, "holes: 11 rows are not allowed"),
    "six agents": (b"1 2 3\n4 5 6\n. . .", '"6" is not allowed'),
    "a goal alone": (b"1 a b\n. . .\n. . .", "starts: agent 2 has no start"),
    "cut JSON": (BOARD[:-9], "not JSON"),
    "cut JSON over lines": (b'{\n "n": 3,\n "holes"', "line 3, column 9: not JSON"),
    "deep JSON": (b"[" * 60_000, "nested too deeply"),
    "a list of boards": (b"[" + BOARD + b"]", "a list is not a board"),
    "unknown key": (BOARD.replace(b"goals", b"golas"), 'unknown key "golas"; did you mean goals'),
    "start in hole": (BOARD.replace(b"[0, 8]", b"[4, 8]"), "starts: cell 4 (row 1, column 1) of agent 1 is a hole"),
    "same goals": (BOARD.replace(b"[6, 2]", b"[6, 6]"), "goals: cell 6 is there twice"),
    "booleans": (BOARD.replace(b"[6, 2]", b"[true, 2]"), "goals: true is not allowed"),
    "NaN": (BOARD.replace(b"[6, 2]", b"[NaN, 2]"), "NaN is not allowed"),
    "fractions": (BOARD.replace(b"[6, 2]", b"[6.5, 2]"), "goals: 6.5 is not allowed"),
    "huge numbers": (BOARD.replace(b"[6, 2]", b"[6, " + b"9" * 4000 + b"]"), "goals: 9999"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_board_is_one_line_of_error(command, case):
    data, wanted = BAD[case]
    code, out, err = command(data=data)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and wanted in err and err.count("\n") == 1 and len(err) < 400
    code, out, err = command("--json", data=data)
    (answer,) = lines_of(out)
    assert code == 1 and wanted in answer["error"] and answer["line"] == 1 and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["none.json"], "none.json: cannot be read (No such file or directory); give a file"),
        (["."], ".: cannot be read (Is a directory)"),
        (["--want", "makspan"], "--want: 'makspan' is not allowed; did you mean makespan?"),
        (["--want", ""], "--want: '' is not allowed"),
        (["--node-budget", "0"], "--node-budget: 0 is not allowed; give 1.."),
        (["--node-budget", "9" * 40], "is not allowed; give 1.."),
        (["--map", "a.map"], "--scen and --agents missing"),
    ],
)
def test_a_bad_option_is_one_line_of_error(command, arguments, wanted):
    code, out, err = command(*arguments, data=BOARD)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and wanted in err and err.count("\n") == 1


# -------------------------------------------------------------------------------------------------------------- streams


def test_a_stream_of_good_and_bad_lines_keeps_its_order(command):
    code, out, err = command(data=b"\n".join([BOARD, b"junk", b"", RING, b"{", HARD]))
    answers = lines_of(out)
    assert [answer["line"] for answer in answers] == [1, 2, 4, 5, 6]
    assert [answer.get("status", "error") for answer in answers] == [
        "solvable", "error", "unsolvable", "error", "solvable",
    ]  # fmt: skip
    assert answers[2]["id"] == "ring" and "id" not in answers[0]
    assert (code, err) == (1, "error: 2 lines are no board; the output says why, at the same place\n")


@pytest.mark.parametrize("first", [b"junk", b"{", b'{"n": ' + b"9" * (2 * MAX_BYTES)])
def test_a_bad_first_line_does_not_lose_the_others(command, first):
    code, out, _ = command(data=b"\n".join([first, BOARD, RING]))
    assert code == 1
    assert [answer.get("status", "error") for answer in lines_of(out)] == ["error", "solvable", "unsolvable"]


def test_every_line_of_a_mixed_stream_is_solved_as_if_alone():
    lines = list(random_lines(300))
    answers, bad = answered(lines)
    assert bad == 0 and [answer["line"] for answer in answers] == list(range(1, 301))
    for line, answer in zip(lines, answers, strict=True):
        board = from_json(line.decode())
        labels = solve(board.holes, board.starts, board.goals)
        assert answer["status"] == labels.status.name.lower()
        assert (answer["makespan"], answer["sum_of_costs"]) == (labels.makespan, labels.sum_of_costs)
        assert (answer["wait_makespan"], answer["wait_sum_of_costs"]) == (
            labels.wait_makespan,
            labels.wait_sum_of_costs,
        )
        if labels.status == Status.SOLVABLE:
            assert validate_plan(board.holes, board.starts, board.goals, answer["plan_makespan"]).valid


def test_answers_do_not_depend_on_how_windows_fall():
    lines = [*random_lines(100), b"junk", *random_lines(20)]
    ticks = iter(range(10**6))
    assert answered(lines) == answered(lines, clock=lambda: float(next(ticks)))


def test_an_undecided_line_says_what_to_raise():
    (answer,), bad = answered([HARD], question=Question.of("makespan", 1))
    assert bad == 0 and answer["status"] == "undecided" and "raise --node-budget" in answer["hint"]
    assert (answer["makespan"], answer["sum_of_costs"]) == (None, None)


def test_an_overlong_line_costs_bounded_memory():
    class Endless(io.RawIOBase):
        reads = 0

        def read1(self, size):
            self.reads += 1
            return b"x" * size if self.reads < 50 else b"\n" if self.reads == 50 else b""

    (block,) = line_blocks(Endless())
    assert len(block) == 1 and MAX_BYTES < len(block[0]) <= MAX_BYTES + 1


def test_a_live_pipe_is_answered_line_by_line():
    """With --json the first line decides alone, so that a program may wait for the answer before it goes on."""

    def speaking():
        yield [BOARD]
        pytest.fail("the second line was read before the first was answered")

    single, blocks = sniffed(speaking(), as_json=True)
    assert not single and next(blocks) == [BOARD]


def test_ctrl_c_in_a_solve_keeps_what_was_known(monkeypatch):
    def interrupted(holes, *arguments, **options):
        if len(arguments[0][0]) == 3:
            raise KeyboardInterrupt
        return solve_batch(holes, *arguments, **options)

    monkeypatch.setattr(orchestrator.solve, "solve_batch", interrupted)
    written: list[bytes] = []
    with pytest.raises(KeyboardInterrupt):
        solve_lines(iter([[BOARD, b"junk", BOARD, RING, BOARD]]), Question(), written.extend)
    assert [answer["line"] for answer in lines_of(b"".join(written).decode())] == [1, 2, 3]


# ----------------------------------------------------------------------------------------------- the process as a whole


@pytest.fixture
def start():
    """Starts the command on its own; what still runs at the end is killed."""
    started = []

    def popen(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "solve", *map(str, arguments)],
            cwd=ROOT, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def long_stream(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "boards.jsonl"
    path.write_bytes(b"\n".join([*random_lines(50)] * 8000))
    return path


@pytest.mark.parametrize("reader", ["reads on", "is stuck"])
def test_ctrl_c_ends_with_whole_lines(start, long_stream, reader):
    process = start(long_stream)
    first = process.stdout.read(1)
    if reader == "is stuck":
        time.sleep(0.5)  # long enough to fill the pipe
    process.send_signal(signal.SIGINT)
    if reader == "is stuck":
        process.wait(timeout=20)
    out, err = process.communicate(timeout=200)
    answers = lines_of((first + out).decode())
    assert process.returncode == 130
    assert [answer["line"] for answer in answers] == list(range(1, len(answers) + 1))
    assert 0 < len(answers) < 400_000
    assert err.decode().splitlines() == ["interrupted; every line written is whole"]


def test_a_closed_pipe_ends_quietly(start, long_stream):
    process = start(long_stream)
    assert json.loads(process.stdout.readline())["line"] == 1
    process.stdout.close()
    assert (process.wait(timeout=200), process.stderr.read()) == (0, b"")


def test_a_full_disk_is_one_line_of_error(command, monkeypatch):
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(orchestrator.solve, "STDOUT", full.fileno())
        code, _, err = command("--json", data=BOARD)
    assert code == 1
    assert err == "error: the output cannot be written (No space left on device); free space or redirect it\n"


def test_the_how_to_shows_what_the_command_says(tmp_path):
    page = (ROOT / "docs" / "how-to" / "solve.md").read_text()
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands = [body for language, body in fences if not language]
    (tmp_path / "envwright").write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n')
    (tmp_path / "envwright").chmod(0o755)
    search = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)], cwd=ROOT, env=search, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.search(r"^```text\n(.*?)^plan of least makespan", page, re.MULTILINE | re.DOTALL)
    assert shown and done.stdout.startswith(shown.group(1))
    assert [answer["status"] for answer in lines_of(done.stdout[done.stdout.index("{") :])] == [
        "solvable", "solvable", "unsolvable",
    ]  # fmt: skip


def test_a_question_names_the_nearest_label():
    with pytest.raises(ConfigError, match="did you mean sum_of_costs"):
        Question.of("makespan,sum_of_cost", None)
