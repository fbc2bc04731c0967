"""Who may use the engine when: its own loop over a stand-in for vLLM that counts down the steps of each request."""

import threading
import time
from types import SimpleNamespace

import pytest

from actors.engine import Engine
from actors.records import Delivery
from actors.weight_sync import SyncError

DEADLINE_S = 30.0


class Countdown:
    """vLLM's front: a request is done after as many steps as its first parameter says."""

    def __init__(self):
        self.llm_engine, self.left, self.number = self, {}, 0

    def enqueue(self, requests, parameters, use_tqdm):
        ids = [f"{self.number + i}-tail" for i in range(len(requests))]
        self.number += len(requests)
        self.requests = requests
        self.left |= {i.partition("-")[0]: steps for i, steps in zip(ids, parameters, strict=True)}
        return ids

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        time.sleep(0.001)
        self.left = {i: steps - 1 for i, steps in self.left.items()}
        done = [i for i, steps in self.left.items() if steps <= 0]
        for i in done:
            del self.left[i]
        return [SimpleNamespace(request_id=i, finished=True) for i in done]


@pytest.fixture
def engine():
    made = object.__new__(Engine)
    made._llm, made.version, made._finished, made._salted = Countdown(), 0, {}, True
    made._turn, made._callers_waiting, made._held = threading.RLock(), 0, False
    return made


@pytest.mark.parametrize("callers", [1, 2, 5])
def test_callers_that_want_the_engine_to_themselves_come_between_steps_and_one_after_the_other(engine, callers):
    inside, most, order = 0, 0, []

    def alone(steps):
        nonlocal inside, most
        with engine.between_steps():
            inside += 1
            most = max(most, inside)
            engine._run([[1]], [steps])  # as the check of new weights does
            inside -= 1
            order.append("alone")

    def sample():
        engine._run([[1], [2]], [400, 200])
        order.append("sampled")

    threads = [threading.Thread(target=sample, daemon=True)]
    threads += [threading.Thread(target=alone, args=(5,), daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"still running after {DEADLINE_S:g} s"
    assert most == 1
    assert order == [*["alone"] * callers, "sampled"]
    assert not engine._finished and not engine._held


def test_an_error_inside_gives_the_engine_back(engine):
    with pytest.raises(ValueError, match="lost"), engine.between_steps():
        raise ValueError("lost")
    assert len(engine._run([[1]], [3])) == 1
    assert not engine._held and not engine._callers_waiting


@pytest.mark.parametrize(
    ("salted", "expected"),
    [(True, [{"prompt_token_ids": [1], "cache_salt": "7"}]), (False, [{"prompt_token_ids": [1]}])],
)
def test_prefixes_are_salted_with_the_version_where_weights_change_under_running_requests(engine, salted, expected):
    engine._salted, engine.version = salted, 7
    engine._run([[1]], [2])
    assert engine._llm.requests == expected


@pytest.mark.parametrize("salted", [True, False])
def test_a_cache_of_old_weights_that_cannot_be_dropped_is_refused_unless_it_is_salted(engine, salted, monkeypatch):
    engine._salted, engine.weights = salted, SimpleNamespace(receive=lambda shipment: None)
    engine._llm.update_weight_version = lambda version: None
    engine._llm.reset_prefix_cache = lambda: False
    monkeypatch.setattr(Engine, "score", lambda self, rows: [[0.0]] * len(rows))
    delivery = Delivery(8, None, (None,), ((0.0,),), 1e-3)
    if salted:
        assert engine.load("rollout-0", delivery).version == engine.version == 8
    else:
        with pytest.raises(SyncError, match="rollout-0 could not drop"):
            engine.load("rollout-0", delivery)
        assert engine.version == 0
