"""Any OpenAI-compatible endpoint as a solver: bounded concurrency, a deadline per request, retries with backoff.

What fails is a typed failure and never a completion: time-outs, 429 and 5xx, lost connections and answers that are no
answers are tried again; 401, 402, 403 and 404 end the evaluation, because every other request would get them too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environments.base import Environment, Failure, FailureKind
from orchestrator.config import ConfigError
from orchestrator.eval.records import Keep, Question, Reply, Sampling
from orchestrator.evaluation import EvaluationFailed

if TYPE_CHECKING:
    import httpx

FATAL = {
    401: "set the key in the environment variable {key}",
    402: "the account behind the key in {key} cannot pay",
    403: "the key in {key} may not use this model",
    404: "check --endpoint (it ends before /chat/completions) and --model",
}
TRY_AGAIN = {408, 409, 425, 429}
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
SHOWN = 300
"""Characters of a server's words that go into a message."""


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Where to ask and how hard to try. ``body`` is merged into every request; None removes a key."""

    base_url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    concurrency: int = 8
    retries: int = 5
    deadline_s: float = 600.0
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A request that brought no completion: whether to try again, and the least wait that the server asked for."""

    failure: Failure
    again: bool
    wait_s: float = 0.0


class Endpoint:
    """See the module. ``sleep``, ``clock`` and ``rng`` are injected by tests."""

    deterministic = False

    def __init__(
        self,
        config: EndpointConfig,
        environment: Environment,
        sampling: Sampling,
        key: str | None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.name = config.model
        self._config, self._environment, self._sampling, self._key = config, environment, sampling, key
        self._sleep, self._clock, self._rng = sleep, clock, rng or random.Random()
        self._url = f"{config.base_url.rstrip('/')}/chat/completions"

    def identity(self) -> dict[str, Any]:
        """Address, model and what is added to its requests; the key is nowhere."""
        config = self._config
        return {"kind": "endpoint", "url": config.base_url, "model": config.model, "body": dict(config.body)}

    def answer(self, questions: Sequence[Question], keep: Keep) -> None:
        """Ask all of them, ``concurrency`` at a time. Raises :class:`ConfigError` for what no retry can help."""
        try:
            asyncio.run(self._answer(questions, keep))
        except BaseExceptionGroup as group:
            expected = group.subgroup((ConfigError, EvaluationFailed))
            raise (expected or group).exceptions[0] from None

    async def _answer(self, questions: Sequence[Question], keep: Keep) -> None:
        import httpx

        pending = iter(questions)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        workers = min(self._config.concurrency, len(questions))
        limits = httpx.Limits(max_connections=workers)
        async with (
            httpx.AsyncClient(headers=headers, timeout=None, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(workers):
                group.create_task(self._work(client, pending, keep))

    async def _work(self, client: httpx.AsyncClient, pending: Iterator[Question], keep: Keep) -> None:
        for question in pending:
            keep(question, await self._ask(client, question))

    async def _ask(self, client: httpx.AsyncClient, question: Question) -> Reply | Failure:
        """The reply, or the last of ``retries`` + 1 failures."""
        request = self.request(question)
        for attempt in range(self._config.retries + 1):
            found = await self._once(client, request)
            if isinstance(found, Reply):
                return found
            if not found.again or attempt == self._config.retries:
                return found.failure
            # Full jitter: clients that were turned away together must not come back together.
            backoff = self._rng.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt))
            await self._sleep(max(backoff, min(found.wait_s, LONGEST_WAIT_S)))
        raise AssertionError("unreachable")

    def request(self, question: Question) -> dict[str, Any]:
        """The body of the chat completion request."""
        sampling = self._sampling
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": self._environment.prompt(question.task),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
        }
        if sampling.temperature > 0:
            body["seed"] = question.seed
        return {key: value for key, value in {**body, **self._config.body}.items() if value is not None}

    async def _once(self, client: httpx.AsyncClient, request: Mapping[str, Any]) -> Reply | _Trouble:
        import httpx

        started = self._clock()
        try:
            async with asyncio.timeout(self._config.deadline_s):
                response = await client.post(self._url, json=request)
        except TimeoutError:
            waited = f"no answer from {self._url} within {self._config.deadline_s:g} s (--deadline)"
            return _Trouble(Failure(FailureKind.TIMEOUT, waited), again=True)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigError(f"--endpoint {self._config.base_url!r} is no address: {error}") from None
        except httpx.HTTPError as error:
            lost = f"{self._url}: {type(error).__name__} {error}".rstrip()
            return _Trouble(Failure(FailureKind.INFRASTRUCTURE, lost), again=True)
        if response.status_code != 200:
            return self._refused(response)
        try:
            return parse(response.text, self._clock() - started)
        except ValueError as error:
            return _Trouble(Failure(FailureKind.INFRASTRUCTURE, f"{self._url}: {error}"), again=True)

    def _refused(self, response: httpx.Response) -> _Trouble:
        status, words = response.status_code, " ".join(response.text.split())[:SHOWN]
        if self._key:
            words = words.replace(self._key, "***")
        message = f"{self._url} answered {status}: {words or response.reason_phrase}"
        if status in FATAL:
            hint = FATAL[status].format(key=self._config.key_variable)
            raise ConfigError(f"{message}; {hint}. What was answered before is kept")
        if status in TRY_AGAIN or status >= 500:
            wait = _seconds(response.headers.get("retry-after", ""))
            return _Trouble(Failure(FailureKind.INFRASTRUCTURE, message), again=True, wait_s=wait)
        return _Trouble(Failure(FailureKind.DATA, message), again=False)


def parse(text: str, latency_s: float) -> Reply:
    """The reply in a chat completion response. Raises ValueError with what is wrong with it.

    A missing content is an empty completion: the model spent its tokens on reasoning, or said nothing.
    """
    import json

    try:
        response = json.loads(text)
        choice = response["choices"][0]
        content, reason = choice["message"].get("content"), choice.get("finish_reason")
        usage = response.get("usage") or {}
        tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        shown = " ".join(text.split())[:SHOWN]
        raise ValueError(f"this is no chat completion ({type(error).__name__}: {error}): {shown}") from None
    if not isinstance(content, str | None) or not all(isinstance(count, int | None) for count in tokens):
        raise ValueError(f"a completion is text and its tokens are numbers, not {content!r:.40}, {tokens}")
    return Reply(content or "", str(reason), latency_s, *tokens)


def _seconds(header: str) -> float:
    """The wait that a Retry-After header asks for; 0 if it is a date or nothing."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return 0.0
