"""Claims about OpenAI-compatible endpoints, against a small server of the test: what fails is never a completion."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from environments.base import Failure, FailureKind, Task
from environments.mapf_frozenlake import MapfFrozenLake
from orchestrator.config import ConfigError
from orchestrator.eval import loop
from orchestrator.eval.endpoint import Endpoint, EndpointConfig
from orchestrator.eval.journal import Journal
from orchestrator.eval.records import Question, Reply, Sampling
from orchestrator.evaluation import EvaluationFailed

ENVIRONMENT = MapfFrozenLake()
TASKS = ENVIRONMENT.validation().tasks[:12]
SAID = "1: UP\n2: DOWN"
Act = Callable[["Server", BaseHTTPRequestHandler, dict[str, Any]], None]


class Server(ThreadingHTTPServer):
    """Acts out ``script``, one entry per request, then answers properly; keeps requests and the most at once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Act] = []
        self.default: Act = well
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.released = threading.Event()
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.requests.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
            act = self.server.script.pop(0) if self.server.script else self.server.default
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            act(self.server, self, body)
        finally:
            with self.server.lock:
                self.server.now -= 1

    def log_message(self, *arguments: Any) -> None:
        pass


def send(handler: BaseHTTPRequestHandler, status: int, text: str, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"content-length": str(len(text.encode())), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(text.encode())


def completion(content: str | None = SAID, reason: str = "stop") -> str:
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": reason}], "usage": usage})


def well(server: Server, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    send(handler, 200, completion())


def says(status: int, text: str, **headers: str) -> Act:
    return lambda server, handler, body: send(handler, status, text, **headers)


def hangs(server: Server, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    server.released.wait(10)


def drips(server: Server, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    """A byte now and then: no single read ever times out."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    while not server.released.wait(0.02):
        handler.wfile.write(b" ")
        handler.wfile.flush()


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


class Asked:
    """Asks tasks through an endpoint with fake sleeps, and keeps what came of it."""

    def __init__(self, server: Server, tasks=TASKS[:1], key="sk-secret", temperature=0.0, **config: Any) -> None:
        self.waits: list[float] = []
        self.found: dict[str, Reply | Failure] = {}
        config = {"base_url": server.url, "model": "some-model", "deadline_s": 5.0, **config}
        self.endpoint = Endpoint(
            EndpointConfig(**config),
            ENVIRONMENT,
            Sampling(temperature, 64),
            key,
            sleep=self._sleep,
            rng=random.Random(0),
        )
        self.questions = [Question.of(task, 0, 0) for task in tasks]

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)

    def go(self) -> list[Reply | Failure]:
        self.endpoint.answer(self.questions, lambda question, found: self.found.update({question.task.id: found}))
        return [self.found[question.task.id] for question in self.questions]


def test_a_request_holds_prompt_sampling_and_key_and_the_reply_its_tokens(server):
    (reply,) = Asked(server, temperature=0.7).go()
    assert (reply.text, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) == (SAID, "stop", 100, 7)
    assert 0 < reply.latency_s < 5
    ((path, body, headers),) = server.requests
    assert path == "/v1/chat/completions" and headers["authorization"] == "Bearer sk-secret"
    assert body["messages"] == ENVIRONMENT.prompt(TASKS[0])
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("some-model", 0.7, 64)
    assert body["seed"] == Question.of(TASKS[0], 0, 0).seed


def test_a_greedy_request_has_no_seed_and_without_a_key_there_is_no_header(server):
    Asked(server, key=None).go()
    _, body, headers = server.requests[0]
    assert "seed" not in body and "authorization" not in headers


def test_the_extra_body_adds_replaces_and_removes_keys(server):
    Asked(server, body={"top_p": 0.5, "temperature": None, "max_tokens": None, "max_completion_tokens": 9}).go()
    body = server.requests[0][1]
    assert body["top_p"] == 0.5 and body["max_completion_tokens"] == 9
    assert not {"temperature", "max_tokens"} & body.keys()


@pytest.mark.parametrize(
    "trouble",
    [
        says(429, "slow down"),
        says(503, "<html>busy</html>"),
        says(200, "<html>a proxy</html>"),
        says(200, '{"choices": []}'),
        says(200, '{"choices": [{"message": {"content": 5}}]}'),
        says(200, "null"),
        lambda server, handler, body: handler.connection.close(),
    ],
    ids=["429", "503", "no JSON", "no choice", "no text", "null", "connection lost"],
)
def test_a_passing_trouble_is_tried_again_until_it_is_over(server, trouble):
    server.script = [trouble, trouble]
    asked = Asked(server)
    assert asked.go()[0].text == SAID
    assert len(server.requests) == 3 and len(asked.waits) == 2


def test_waits_grow_with_jitter_and_obey_the_servers_own_wish_within_reason(server):
    server.script = [says(500, "")] * 8
    asked = Asked(server, retries=8)
    asked.go()
    assert all(0 <= wait <= min(60, 2**i) for i, wait in enumerate(asked.waits))
    assert len(set(asked.waits)) == 8 and max(asked.waits) > 8
    server.script = [
        says(429, "", retry_after="7"),
        says(429, "", retry_after="9999"),
        says(429, "", retry_after="soon"),
    ]
    asked = Asked(server)
    asked.go()
    assert asked.waits[0] == 7 and asked.waits[1] == 60 and asked.waits[2] <= 4


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (says(429, "slow down"), FailureKind.INFRASTRUCTURE, "429: slow down"),
        (says(200, "{"), FailureKind.INFRASTRUCTURE, "no chat completion"),
        (hangs, FailureKind.TIMEOUT, "within 0.2 s"),
        (drips, FailureKind.TIMEOUT, "within 0.2 s"),
    ],
    ids=["429", "malformed", "hanging", "dripping"],
)
def test_what_never_succeeds_is_a_typed_failure_after_the_retries(server, act, kind, words):
    server.default = act
    (failure,) = Asked(server, retries=2, deadline_s=0.2).go()
    assert isinstance(failure, Failure) and failure.kind == kind and words in failure.message
    assert len(server.requests) == 3


def test_a_request_that_the_server_calls_wrong_is_a_data_failure_and_not_repeated(server):
    server.default = says(400, '{"error": "context too long for sk-secret"}')
    (failure,) = Asked(server).go()
    assert failure.kind == FailureKind.DATA and "context too long" in failure.message
    assert "sk-secret" not in failure.message and len(server.requests) == 1


@pytest.mark.parametrize(("status", "hint"), [(401, "SOME_KEY"), (402, "pay"), (403, "SOME_KEY"), (404, "--model")])
def test_what_every_request_would_be_told_ends_the_evaluation_at_once(server, status, hint):
    server.default = says(status, "no such thing")
    asked = Asked(server, TASKS, key_variable="SOME_KEY", concurrency=2)
    with pytest.raises(ConfigError, match=f"{status}: no such thing.*{hint}"):
        asked.go()
    assert len(server.requests) <= 2


def test_an_address_that_is_none_is_one_clear_error(server):
    with pytest.raises(ConfigError, match="--endpoint 'nowhere' is no address"):
        Asked(server, base_url="nowhere").go()


def test_a_server_that_is_not_there_is_an_infrastructure_failure(server):
    (failure,) = Asked(server, base_url="http://127.0.0.1:9/v1", retries=1).go()
    assert failure.kind == FailureKind.INFRASTRUCTURE and "ConnectError" in failure.message


def test_no_more_requests_are_open_at_once_than_allowed(server):
    def slow(server: Server, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        time.sleep(0.05)
        well(server, handler, body)

    server.default = slow
    assert len(Asked(server, TASKS, concurrency=3).go()) == len(TASKS)
    assert server.most == 3


def test_an_empty_message_is_an_empty_completion_and_the_token_limit_is_seen(server):
    server.default = says(200, completion(None, "length"))
    (reply,) = Asked(server).go()
    assert reply.text == "" and reply.truncated
    answer = loop.judged(Question.of(TASKS[0], 0, 0), reply, ENVIRONMENT)
    assert (answer.outcome, answer.reward) == ("truncated", 0.0)


def test_a_failure_has_neither_outcome_nor_reward():
    failure = Failure(FailureKind.TIMEOUT, "late")
    answer = loop.judged(Question.of(TASKS[0], 0, 0), failure, ENVIRONMENT)
    assert answer.outcome is None and answer.reward is None
    assert answer.failure == {"kind": "timeout", "message": "late"}


def test_an_optimal_plan_below_its_label_is_a_failure_and_not_a_reward():
    data = TASKS[0].data() | {"makespan": 9, "sum_of_costs": 18}
    wrong = Task(ENVIRONMENT.name, json.dumps(data), TASKS[0].stratum, "file", 0)
    reply = Reply(ENVIRONMENT.answer(TASKS[0]), "stop", 0.1)
    assert loop.judged(Question.of(wrong, 0, 0), reply, ENVIRONMENT).failure["kind"] == "data"


def test_many_failures_in_a_row_end_the_evaluation_and_keep_what_was_answered(server, monkeypatch):
    monkeypatch.setattr(loop, "STREAK", 4)
    server.script = [well, well]
    server.default = says(400, "not today")
    asked, journal = Asked(server, TASKS, concurrency=1), Journal()
    with pytest.raises(EvaluationFailed, match=r"4 questions in a row failed.*not today"):
        loop.ask(asked.endpoint, asked.questions, ENVIRONMENT, journal, lambda: None)
    assert len(server.requests) == 6 and sum(journal.done(q.key) for q in asked.questions) == 2


def test_a_rerun_asks_only_what_failed(server):
    server.script = [well, says(400, "no"), well]
    asked, journal = Asked(server, TASKS[:3], concurrency=1), Journal()
    for _ in range(2):
        loop.ask(asked.endpoint, asked.questions, ENVIRONMENT, journal, lambda: None)
    assert len(server.requests) == 4
    assert all(journal.done(question.key) for question in asked.questions)
