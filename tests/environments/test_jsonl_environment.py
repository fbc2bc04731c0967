"""A file of rows and a reward function make an environment; a bad file or reward is named by line and way out."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.base import Failure, FailureKind, NoAnswer, Task, Verdict
from environments.conformance import run_checks
from environments.jsonl import JsonlEnvironment
from environments.registry import BadEnvironment, load_environment

REWARDS = """
def same(prompt, completion, row):
    return float(completion == row["answer"])
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The user's module, importable here and in processes started from here."""
    (tmp_path / "rewards_of_mine.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("rewards_of_mine", None)
    import rewards_of_mine

    return rewards_of_mine


def sums(count: int = 400) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{i} + {j} =", "level": 1 + (i > 9), "answer": str(i + j)}
        for i in range(count // 20)
        for j in range(20)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, **settings: Any) -> JsonlEnvironment:
    found = load_environment("jsonl", {"path": str(path), "reward": "rewards_of_mine:same", **settings})
    assert isinstance(found, JsonlEnvironment)
    return found


@pytest.fixture
def data(tmp_path: Path, rewards: types.ModuleType) -> Path:
    return write(tmp_path / "sums.jsonl", sums())


def test_rows_and_a_reward_keep_the_contract(data: Path) -> None:
    settings = {"path": str(data), "reward": "rewards_of_mine:same", "stratum_key": "level", "answer_key": "answer"}
    results = run_checks(load_environment("jsonl", settings), "jsonl", settings)
    assert not [str(result) for result in results if not result.ok]


def test_without_a_stratum_key_there_is_one_stratum_and_shares_are_the_only_knob(data: Path) -> None:
    environment = load(data)
    assert environment.stratum_names() == ("all",)
    (row,) = environment.default_knobs().strata.values()
    assert [spec.name for spec in row.specs()] == ["share"]


def sets(environment: JsonlEnvironment) -> dict[str, set[str]]:
    trained = environment.generate(environment.default_knobs(), 0, 0, 3_000)
    out = {"train": {task.payload for task in trained}}
    for frozen in (environment.validation(), environment.held_out()):
        out[frozen.name] = {task.payload for task in frozen.tasks}
    return out


def test_every_row_belongs_to_exactly_one_set_of_about_the_asked_size(data: Path) -> None:
    found = sets(load(data, validation=0.1, held_out=0.3))
    assert sum(map(len, found.values())) == len(set.union(*found.values()))
    assert len(found["validation"]) + len(found["held_out"]) + len(found["train"]) <= 400
    assert 20 <= len(found["validation"]) <= 60 and 90 <= len(found["held_out"]) <= 150


def test_rows_with_one_prompt_are_in_one_set_whatever_else_differs(tmp_path: Path, rewards: types.ModuleType) -> None:
    rows = [row | {"id": copy} for row in sums() for copy in range(3)]
    found = sets(load(write(tmp_path / "copies.jsonl", rows)))
    prompts = [{json.loads(payload)["prompt"] for payload in payloads} for payloads in found.values()]
    assert not (prompts[0] & prompts[1] or prompts[0] & prompts[2] or prompts[1] & prompts[2])


def test_a_growing_or_shuffled_file_moves_no_row_to_another_set(tmp_path: Path, rewards: types.ModuleType) -> None:
    small, large = (load(write(tmp_path / f"{n}.jsonl", sums(n)[::-1])) for n in (400, 600))
    assert sets(small)["held_out"] <= sets(large)["held_out"]
    shuffled = load(write(tmp_path / "shuffled.jsonl", sums(400)))
    assert shuffled.held_out() == small.held_out() and shuffled.data == small.data
    assert shuffled.generate(small.default_knobs(), 1, 0, 20) == small.generate(small.default_knobs(), 1, 0, 20)


def test_duplicates_are_counted_and_used_once(tmp_path: Path, rewards: types.ModuleType) -> None:
    environment = load(write(tmp_path / "twice.jsonl", sums() + sums(40)))
    assert environment.data.duplicates == 40
    assert "40 duplicate rows left out" in environment.summary()
    assert environment.data.checksum in environment.summary()


def test_a_pinned_checksum_refuses_another_file(data: Path, tmp_path: Path) -> None:
    checksum = load(data).data.checksum
    assert load(data, checksum=checksum).validation()
    with pytest.raises(ValueError, match="`checksum` says"):
        load(write(tmp_path / "other.jsonl", sums(360)), checksum=checksum).validation()


def test_chat_prompts_are_passed_on_and_the_reward_gets_them_as_they_are(
    tmp_path: Path, rewards: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {
            "question": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": row["prompt"], "name": "x"},
            ],
            "answer": row["answer"],
        }
        for row in sums()
    ]
    environment = load(write(tmp_path / "chats.jsonl", rows), prompt_key="question")
    task = environment.generate(environment.default_knobs(), 0, 0, 1)[0]
    assert [set(message) for message in environment.prompt(task)] == [{"role", "content"}] * 2
    seen = []
    monkeypatch.setattr(environment, "_reward", lambda *arguments: seen.append(arguments) or 1)
    assert environment.score(task, "text") == Verdict(1.0, "solved")
    assert seen == [(task.data()["question"], "text", task.data())]


def task_of(environment: JsonlEnvironment) -> Task:
    return environment.validation().tasks[0]


@pytest.mark.parametrize(
    ("value", "truncated", "expected"),
    [
        (0, False, Verdict(0.0, "wrong")),
        (0.0, True, Verdict(0.0, "truncated")),
        (0.3, True, Verdict(0.3, "partial")),
        (0.8, False, Verdict(0.8, "solved")),
        (True, False, Verdict(1.0, "solved")),
        (np.float32(0.5), False, Verdict(0.5, "partial")),
    ],
)
def test_the_threshold_decides_what_counts_as_solved(
    data: Path, monkeypatch: pytest.MonkeyPatch, value: Any, truncated: bool, expected: Verdict
) -> None:
    environment = load(data, threshold=0.8)
    monkeypatch.setattr(environment, "_reward", lambda prompt, completion, row: value)
    assert environment.score(task_of(environment), "x", truncated=truncated) == expected


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), None, "1", [1.0]], ids=str)
def test_a_reward_that_is_no_number_from_0_to_1_is_a_data_failure(
    data: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    environment = load(data)
    monkeypatch.setattr(environment, "_reward", lambda prompt, completion, row: value)
    found = environment.score(task_of(environment), "x")
    assert isinstance(found, Failure) and found.kind is FailureKind.DATA
    assert repr(value) in found.message and "from 0 to 1" in found.message


def test_an_exception_in_the_reward_is_a_data_failure_with_its_text(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reward(prompt: Any, completion: str, row: dict[str, Any]) -> float:
        raise KeyError("no such unit")

    environment = load(data)
    monkeypatch.setattr(environment, "_reward", reward)
    found = environment.score(task_of(environment), "x")
    assert isinstance(found, Failure) and found.kind is FailureKind.DATA
    assert "rewards_of_mine:same" in found.message and "KeyError: 'no such unit'" in found.message


def test_judging_and_asking_never_read_the_file(data: Path) -> None:
    environment = load(data)
    task = task_of(environment)
    worker = load(data.with_name("only-on-the-driver.jsonl"))
    assert worker.prompt(task) == environment.prompt(task)
    assert worker.score(task, task.data()["answer"]) == Verdict(1.0, "solved")


def test_without_an_answer_key_there_is_no_answer_to_imitate(data: Path) -> None:
    environment = load(data)
    with pytest.raises(NoAnswer, match="answer_key"):
        environment.answer(task_of(environment))
    results = {result.name: result for result in run_checks(environment, count=10)}
    assert all(result.ok for result in results.values()) and "no answers" in results["own answers"].note


GOOD = b'{"prompt": "a", "level": 1, "answer": "b"}\n'
BAD_FILES: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "empty": (b"", {}, "holds no rows: write one JSON object a line"),
    "blank": (b"\n \n\n", {}, "holds no rows"),
    "binary": (GOOD + b"\x1f\x8b\x08\x00\xff\xfe", {}, "line 2 is not UTF-8 text (byte 2 of the line)"),
    "another encoding": ('{"prompt": "é"}'.encode("latin-1"), {}, "line 1 is not UTF-8 text"),
    "not JSON": (GOOD + b"prompt,answer\n", {}, "line 2 is not JSON"),
    "an array": (b'[{"prompt": "a"},\n{"prompt": "b"}]', {}, "one JSON array: write its elements one a line"),
    "no object": (GOOD + b"[1]\n", {}, "line 2 is a JSON list: each line must be one object"),
    "no number": (b'{"prompt": "a", "x": NaN}', {}, "NaN is no JSON number"),
    "half a pair": (b'{"prompt": "\\ud800"}', {}, "half of a surrogate pair"),
    "deep": (b'{"prompt":' + b"[" * 100_000, {}, "line 1 is not JSON"),
    "no prompt": (GOOD + b'\n{"text": "a"}', {}, "line 3 has no key 'prompt' (it has: text): change `prompt_key`"),
    "no stratum": (GOOD, {"stratum_key": "topic"}, "line 1 has no key 'topic' (it has: answer, level, prompt)"),
    "empty prompt": (b'{"prompt": "  "}', {}, "line 1: 'prompt' has a message without text"),
    "prompt of numbers": (b'{"prompt": [1]}', {}, "without a role of system, user, assistant"),
    "prompt ends early": (
        b'{"prompt": [{"role": "system", "content": "x"}]}',
        {},
        "must end with a message of the user",
    ),
    "spaced stratum": (b'{"prompt": "a", "level": "very hard"}', {"stratum_key": "level"}, "one word, without spaces"),
    "empty answer": (b'{"prompt": "a", "answer": ""}', {"answer_key": "answer"}, "'answer' is empty"),
    "too few": (GOOD, {}, "of 1 rows of stratum all none falls to the"),
    "identifiers": (
        b"".join(b'{"prompt": "%d", "id": %d}\n' % (i, i) for i in range(60)),
        {"stratum_key": "id"},
        "has more than 40 values",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named_by_line_trouble_and_way_out(case: str, tmp_path: Path, rewards: types.ModuleType) -> None:
    content, settings, message = BAD_FILES[case]
    (path := tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(ValueError) as caught:
        load(path, **settings).validation()
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_byte_order_mark_windows_lines_and_blank_lines_are_read(tmp_path: Path, rewards: types.ModuleType) -> None:
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(row) for row in sums())
    (path := tmp_path / "windows.jsonl").write_bytes(text.encode())
    plain = write(tmp_path / "plain.jsonl", sums())
    assert load(path).data == load(plain).data


@pytest.mark.parametrize("path", ["missing.jsonl", "."], ids=["missing", "folder"])
def test_a_file_that_is_not_there_is_named(path: str, tmp_path: Path, rewards: types.ModuleType) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*set environment\.settings\.path"):
        load(tmp_path / path).validation()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "mine"}, "must look like package.module:function"),
        ({"reward": "no_such_module:f"}, "cannot import `no_such_module`"),
        ({"reward": "rewards_of_mine:other"}, "has no function `other`"),
        ({"threshold": 0}, "`threshold`"),
        ({"validation": 0.5, "held_out": 0.5}, "leave no rows for training"),
        ({"promt_key": "x"}, "did you mean `prompt_key`?"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(data: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, BadEnvironment)) as caught:
        load(data, **settings)
    assert message in str(caught.value)
