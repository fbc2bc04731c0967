"""Claims about `envwright eval` and `envwright compare` as commands: files, resuming, refusals."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from environments.mapf_frozenlake import MapfFrozenLake
from orchestrator.cli import main
from orchestrator.config import dump, load
from orchestrator.eval import scripted
from orchestrator.store import RunStore

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "laptop.yaml"
SMALL = ("--set", "validation", "--agents", "2", "--sizes", "3,4", "--per-cell", "6")


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process: (exit code, standard output, standard error)."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", ["envwright", name, *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def answers(folder):
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_the_oracle_is_valid_and_optimal_everywhere_and_the_csv_says_so(command, tmp_path):
    status, shown, _ = command("eval", "--solver", "oracle", *SMALL, "--csv", tmp_path / "table.csv")
    assert status == 0 and "12 answers" in shown
    assert (tmp_path / "table.csv").read_text() == (
        "agents,size,instances,valid,optimal\n2,3,6,100.00,100.00\n2,4,6,100.00,100.00\n"
    )


def every_cell(instances):
    """The text of a table in which all 21 cells are valid and optimal."""
    cells = [(agents, size) for agents in (3, 4, 5) for size in range(agents, 11)]
    lines = [f"{agents},{size},{instances},100.00,100.00" for agents, size in cells]
    return "\n".join(["agents,size,instances,valid,optimal", *lines]) + "\n"


@pytest.mark.parametrize("boards", ["benchmark", "benchmark_held_out"])
def test_the_oracle_gives_100_in_all_21_cells_beside_the_published_rows(command, tmp_path, boards):
    table, options = tmp_path / "table.csv", ("--set", boards, "--per-cell", "6")
    status, shown, _ = command("eval", "--solver", "oracle", *options, "--csv", table)
    assert status == 0 and table.read_text() == every_cell(6)
    assert ("GPT-5.4" in shown) == (boards == "benchmark"), "published rates are of the benchmark's cells"


@pytest.mark.slow
def test_the_oracle_gives_100_on_all_150_boards_of_every_cell(command, tmp_path):
    status, _, _ = command("eval", "--solver", "oracle", "--csv", tmp_path / "table.csv")
    assert status == 0 and (tmp_path / "table.csv").read_text() == every_cell(150)


def test_the_random_solver_is_far_below_the_greedy_one_and_that_below_the_oracle(command, tmp_path):
    valid = {}
    for name in ("random", "greedy", "oracle"):
        command(
            "eval", "--solver", name, "--set", "validation", "--agents", "2", "--sizes", "5", "--csv", tmp_path / name
        )
        (row,) = csv.DictReader((tmp_path / name).open())
        valid[name] = float(row["valid"])
    assert valid["random"] < 10 < 50 < valid["greedy"] < valid["oracle"] == 100


def test_a_random_plan_never_leaves_the_board_or_enters_a_hole_and_repeats_with_its_seed(command, tmp_path):
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        command("eval", "--solver", "random", *SMALL, "--seed", seed, "--samples", "4", "--out", tmp_path / out)
    said = {out: [row["completion"] for row in answers(tmp_path / out)] for out in "abc"}
    assert said["a"] == said["b"] != said["c"] and len(set(said["a"])) > 40
    assert not {row["outcome"] for row in answers(tmp_path / "a")} & {"out_of_bounds", "hole", "parse_error"}


def test_every_file_is_written_with_what_it_promises(command, tmp_path):
    files = {name: tmp_path / name for name in ("e.json", "t.md", "t.tex", "t.csv")}
    out = tmp_path / "new" / "folder"
    status, _, _ = command(
        "eval", "--solver", "greedy", *SMALL, "--out", out, "--evidence", files["e.json"], "--table", files["t.md"]
    )
    assert status == 0 and "| greedy |" in files["t.md"].read_text()
    (record,) = json.loads(files["e.json"].read_text())
    assert sum(sum(r["outcomes"].values()) for r in record["evidence"]["results"]) == 12
    summary = json.loads((out / "summary.json").read_text())
    assert [(c["agents"], c["size"], c["instances"]) for c in summary["cells"]] == [(2, 3, 6), (2, 4, 6)]
    assert summary["usage"]["answers"] == 12 and summary["usage"]["cost"] is None
    for name in ("t.tex", "t.csv"):
        assert command("eval", "--solver", "greedy", *SMALL, "--out", out, "--table", files[name])[0] == 0
        assert "greedy" in files[name].read_text()


def test_several_samples_show_pass_at_k(command, tmp_path):
    _, shown, _ = command("eval", "--solver", "random", *SMALL, "--samples", "4", "--out", tmp_path / "out")
    assert "pass@2: 2 agents" in shown and "pass@4: 2 agents" in shown
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["means_passed"]) == {"2", "4"} and set(summary["cells"][0]["passed"]) == {"2", "4"}


def test_a_file_of_boards_is_labelled_and_evaluated(command, tmp_path):
    boards = tmp_path / "boards.jsonl"
    boards.write_text(
        '{"n": 3, "holes": [4], "starts": [0, 2], "goals": [6, 8]}\n\n'
        '{"holes": [[0,0,0],[0,0,0],[0,0,0]], "starts": [0, 4, 8], "goals": [[2, 2], [0, 0], [0, 1]]}\n'
    )
    assert command("eval", "--solver", "oracle", "--set", boards, "--csv", tmp_path / "t.csv")[0] == 0
    assert (tmp_path / "t.csv").read_text().splitlines()[1:] == ["2,3,1,100.00,100.00", "3,3,1,100.00,100.00"]


# ------------------------------------------------------------------------------------------------------------- resuming


@pytest.fixture
def counted(monkeypatch):
    """The greedy solver, counting; it is interrupted at the answers in ``stop``."""
    calls, stop = [], set()

    def script(environment, task, rng):
        calls.append(task.id)
        if len(calls) in stop:
            raise KeyboardInterrupt
        return scripted.greedy(environment, task, rng)

    monkeypatch.setitem(scripted.SCRIPTS, "greedy", script)
    return calls, stop


def test_an_interrupted_evaluation_keeps_its_answers_and_a_rerun_asks_the_rest(command, counted, tmp_path):
    calls, stop = counted
    stop.add(6)
    arguments = ("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out", "--csv", tmp_path / "t.csv")
    status, shown, _ = command(*arguments)
    assert status == 130 and "5 of 12 answers are kept" in shown and not (tmp_path / "t.csv").exists()
    assert len(answers(tmp_path / "out")) == 5
    assert command(*arguments)[0] == 0
    assert len(calls) == 6 + 7 and len(answers(tmp_path / "out")) == 12
    first = (tmp_path / "t.csv").read_text()
    assert command(*arguments)[0] == 0
    assert len(calls) == 13 and (tmp_path / "t.csv").read_text() == first


def test_a_half_written_last_line_is_dropped_and_asked_again(command, counted, tmp_path):
    arguments = ("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out")
    command(*arguments)
    file = tmp_path / "out" / "answers.jsonl"
    whole = answers(tmp_path / "out")
    file.write_bytes(file.read_bytes()[:-20])
    assert command(*arguments)[0] == 0
    assert len(counted[0]) == 13

    def same(rows):
        return [{k: v for k, v in row.items() if k != "latency_s"} for row in rows]

    assert same(answers(tmp_path / "out")) == same(whole)


def test_more_boards_and_more_samples_continue_the_same_evaluation(command, counted, tmp_path):
    for per_cell in (2, 4):
        arguments = (*SMALL[:-1], per_cell, "--out", tmp_path / "out")
        assert command("eval", "--solver", "greedy", *arguments)[0] == 0
    assert len(counted[0]) == 8


def test_other_settings_into_the_same_folder_are_refused_and_change_nothing(command, tmp_path):
    out = tmp_path / "out"
    command("eval", "--solver", "random", *SMALL, "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for change, words in (
        (("--seed", "3"), "sampling.seed 0 there, 3 here"),
        (("--settings", "objective=sum_of_costs"), "prompt.objective None there, 'sum_of_costs' here"),
    ):
        status, _, error = command("eval", "--solver", "random", *SMALL, "--out", out, *change)
        assert status == 1 and words in error and "give another --out" in error and error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_with_something_else_or_a_broken_line_is_refused(command, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    status, _, error = command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "other")
    assert status == 1 and "holds no evaluation" in error and len(list((tmp_path / "other").iterdir())) == 1
    command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out")
    file = tmp_path / "out" / "answers.jsonl"
    file.write_text("nonsense\n" + file.read_text())
    status, _, error = command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out")
    assert status == 1 and "line 1 is no answer of this evaluation" in error


def test_two_processes_do_not_write_into_one_folder(command, tmp_path):
    import fcntl

    command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out")
    with (tmp_path / "out" / "answers.jsonl").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status, _, error = command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out")
    assert status == 1 and "another evaluation is writing" in error


class Slow(BaseHTTPRequestHandler):
    """Answers the first four requests, then hangs."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.seen += 1
        if self.server.seen > 4:
            self.server.released.wait(30)
            return
        text = json.dumps({"choices": [{"message": {"content": "1: UP\n2: UP"}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


def test_ctrl_c_ends_an_evaluation_that_waits_for_an_endpoint(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads, server.seen, server.released = True, 0, threading.Event()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    arguments = ["eval", "--endpoint", url, "--model", "m", *SMALL, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        deadline = time.monotonic() + 60
        while server.seen < 10 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        server.released.set()
        server.shutdown()
        server.server_close()
    assert process.returncode == 130 and "4 of 12 answers are kept" in shown
    assert len(answers(tmp_path / "out")) == 4


def test_failed_questions_give_exit_code_1_and_are_counted_nowhere(command, monkeypatch, tmp_path):
    monkeypatch.setattr("orchestrator.eval.endpoint.FIRST_WAIT_S", 0.001)
    url = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--retries", "1")
    status, shown, _ = command("eval", *url, *SMALL, "--out", tmp_path / "out", "--csv", tmp_path / "t.csv")
    assert status == 1 and "12 of 12 questions failed (infrastructure 12) and count nowhere" in shown
    assert (tmp_path / "t.csv").read_text() == "agents,size,instances,valid,optimal\n"


# ----------------------------------------------------------------------------------------------------------- comparison


def test_two_evaluations_are_compared_on_the_boards_that_both_have(command, tmp_path):
    command("eval", "--solver", "random", *SMALL, "--out", tmp_path / "a")
    command("eval", "--solver", "oracle", *SMALL[:-1], "4", "--out", tmp_path / "b")
    status, shown, _ = command("compare", tmp_path / "a", tmp_path / "b")
    assert status == 0 and "A: random" in shown and "B: oracle" in shown and "8 boards" in shown
    line = next(line for line in shown.splitlines() if line.startswith("2 agents: valid +"))
    assert "[+" in line


def test_what_cannot_be_compared_is_one_clear_error(command, tmp_path):
    command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "a")
    command("eval", "--solver", "greedy", "--set", "held_out", "--agents", "2", "--sizes", "3", "--out", tmp_path / "b")
    command("eval", "--solver", "greedy", *SMALL, "--settings", "objective=sum_of_costs", "--out", tmp_path / "c")
    for other, words in (("b", "no board"), ("c", "differ in the objective"), ("nowhere", "holds no evaluation")):
        status, _, error = command("compare", tmp_path / "a", tmp_path / other)
        assert status == 1 and words in error and error.count("\n") == 1


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say who answers"),
        (("--solver", "oracle", "--endpoint", "http://x/v1", "--model", "m"), "say who answers"),
        (("--solver", "magic"), "give one of oracle, greedy, random"),
        (("--endpoint", "http://x/v1"), "--endpoint and --model go together"),
        (("--endpoint", "http://x/v1", "--model", "m"), "give --out DIR"),
        (("--endpoint", "http://x/v1", "--model", "m", "--body", "{"), "--body is not JSON"),
        (("--endpoint", "http://x/v1", "--model", "m", "--body", "[]"), "--body is a list"),
        (("nowhere", "--out", "{tmp}/out"), "'nowhere' is no checkpoint"),
        (("{tmp}/unfinished", "--out", "{tmp}/out"), "has no exported model"),
        (("{tmp}/other", "--out", "{tmp}/out"), "was trained on other"),
        (("{tmp}/broken", "--out", "{tmp}/out"), "cannot be read as JSON"),
        (("--solver", "oracle", "--samples", "2"), "gives the same answer every time"),
        (("--solver", "oracle", "--set", "nowhere"), "neither a file of boards nor one of benchmark"),
        (("--solver", "oracle", "--set", "{tmp}/empty.jsonl"), "has no board"),
        (("--solver", "oracle", "--set", "{tmp}/bad.jsonl"), "line 2: column 1: not JSON"),
        (("--solver", "oracle", "--set", "{tmp}/stuck.jsonl"), "line 1: the board is unsolvable"),
        (("--solver", "oracle", *SMALL[:4], "--sizes", "11"), "leave no cell of validation"),
        (("--solver", "oracle", *SMALL[:4], "--sizes", "3;4"), "--sizes '3;4' is not allowed"),
        (("--solver", "oracle", *SMALL, "--settings", "template=small"), "template: "),
        (("--solver", "greedy", *SMALL, "--settings", "plan_format=json"), "writes plans as lines"),
        (("--solver", "oracle", *SMALL, "--csv", "{tmp}/no/such/folder.csv"), "--csv {tmp}/no/such/folder.csv cannot"),
        (("--solver", "oracle", *SMALL, "--table", "{tmp}/t.docx"), "must end in one of .md, .csv, .tex"),
        (("--solver", "oracle", *SMALL, "--out", "{tmp}/bad.jsonl"), "cannot be a folder"),
    ],
)
def test_bad_input_is_one_clear_error(command, tmp_path, arguments, message):
    RunStore.create(tmp_path / "unfinished", dump(load(RECIPE)))
    RunStore.create(tmp_path / "other", dump(load(RECIPE, ["environment.name=other"])))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bad.jsonl").write_text('{"n": 3, "holes": [], "starts": [0, 1], "goals": [7, 8]}\nno board\n')
    (tmp_path / "stuck.jsonl").write_text('{"n": 3, "holes": [1, 3, 4], "starts": [0, 8], "goals": [8, 6]}\n')
    before = {path.name for path in tmp_path.iterdir()}
    status, _, error = command("eval", *(str(a).replace("{tmp}", str(tmp_path)) for a in arguments))
    assert status == 1 and message.replace("{tmp}", str(tmp_path)) in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == before


def test_the_boards_of_a_cell_are_a_prefix_of_the_fixed_set(command, tmp_path):
    command("eval", "--solver", "greedy", *SMALL, "--out", tmp_path / "out")
    fixed = [task.id for task in MapfFrozenLake().validation().tasks if task.stratum == "3x3"][:6]
    assert [row["task_id"] for row in answers(tmp_path / "out") if row["size"] == 3] == fixed
