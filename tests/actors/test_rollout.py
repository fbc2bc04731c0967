"""What one real engine samples, writes and loads."""

import json
import os
import re

import pytest

from actors.records import Delivery, Request, Sampling
from actors.weights.shipment import SHARED_MEMORY
from actors.weights.transports import Publisher
from environments.base import Failure, FailureKind, Task

TEMPERATURE = 0.7
SAMPLING = Sampling(TEMPERATURE, 12)

# ------------------------------------------------------------------------------------------------------ the real engine


@pytest.fixture(scope="session")
def requests(tasks):
    """Five tasks, three completions each, a seed of its own for every completion."""
    return [Request(task, (100 + 3 * i, 101 + 3 * i, 102 + 3 * i)) for i, task in enumerate(tasks[:5])]


@pytest.fixture
def pool(engines, deliver, original):
    """The engine of the tied model, with the weights it was started with, as version 1."""
    pool = engines(tied=True)
    deliver(pool, original, 1)
    return pool


@pytest.fixture
def original(new_model):
    return new_model(tied=True)[0]


@pytest.fixture
def other(new_model):
    """The same model, its preferences reversed."""
    import torch

    model, _ = new_model(tied=True)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1.0)
    return model


@pytest.fixture
def delivery():
    """Writes a model's weights to shared memory, which lasts as long as the test."""
    publishers = []

    def of(model, version):
        publishers.append(Publisher())
        pairs = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
        return Delivery(version, publishers[-1].publish(pairs, version, SHARED_MEMORY))

    return of


@pytest.fixture
def deliver(delivery):
    def to(pool, model, version):
        pool.deliver(delivery(model, version), 120.0)
        pool.settle()

    return to


def sampled(groups):
    return [member.sample for group in groups for member in group.members]


def test_groups_come_back_in_the_order_of_the_requests_with_their_seeds(pool, requests):
    groups, reports = pool.rollout(requests, SAMPLING)
    assert [group.task for group in groups] == [request.task for request in requests]
    for group, request in zip(groups, requests, strict=True):
        samples = sampled([group])
        assert tuple(sample.seed for sample in samples) == request.seeds
        assert [sample.index for sample in samples] == [0, 1, 2]
        assert {sample.task_id for sample in samples} == {request.task.id}
        assert {sample.worker for sample in samples} == {"rollout-0"}
    assert reports[0].tokens == sum(len(sample.token_ids) for sample in sampled(groups))


def test_every_token_has_a_log_prob_and_the_version_of_the_weights(pool, requests):
    for sample in sampled(pool.rollout(requests, SAMPLING)[0]):
        assert 1 <= len(sample.token_ids) <= SAMPLING.max_new_tokens
        assert len(sample.logprobs) == len(sample.token_ids)
        assert sample.versions == (1,) * len(sample.token_ids)
        assert sample.truncated == (len(sample.token_ids) == SAMPLING.max_new_tokens)


def test_the_prompt_is_the_chat_of_the_environment_and_the_verdict_its_own(pool, requests, environment, new_model):
    tokenizer = new_model(tied=True)[1]
    for group in pool.rollout(requests[:2], SAMPLING)[0]:
        chat = tokenizer.apply_chat_template(environment.prompt(group.task), add_generation_prompt=True, tokenize=False)
        for member in group.members:
            sample = member.sample
            assert tokenizer.decode(sample.prompt_ids) == chat
            assert sample.text == tokenizer.decode(sample.token_ids, skip_special_tokens=True)
            assert member.result == environment.score(group.task, sample.text, truncated=sample.truncated)


def test_the_same_seeds_repeat_the_same_tokens_whatever_else_is_sampled(pool, requests):
    first = {sample.seed: sample for sample in sampled(pool.rollout(requests, SAMPLING)[0])}
    again = {sample.seed: sample for sample in sampled(pool.rollout(requests[::-1], SAMPLING)[0])}
    alone = sampled(pool.rollout([Request(requests[2].task, requests[2].seeds[:1])], SAMPLING)[0])[0]
    assert {seed: sample.token_ids for seed, sample in again.items()} == {
        seed: sample.token_ids for seed, sample in first.items()
    }
    assert alone.token_ids == first[alone.seed].token_ids
    assert alone.logprobs == pytest.approx(first[alone.seed].logprobs, abs=1e-5)


def test_other_seeds_give_other_tokens(pool, requests):
    (group,), _ = pool.rollout([Request(requests[0].task, tuple(range(8)))], SAMPLING)
    assert len({sample.token_ids for sample in sampled([group])}) > 1


def test_temperature_zero_is_greedy_whatever_the_seeds(pool, requests):
    (group,), _ = pool.rollout([Request(requests[0].task, (1, 2, 3))], Sampling(0.0, 6))
    assert len({sample.token_ids for sample in sampled([group])}) == 1


def test_log_probs_are_those_of_the_sampled_tokens_at_the_sampling_temperature(pool, requests, new_model):
    import torch

    model = new_model(tied=True)[0]
    for sample in sampled(pool.rollout(requests, SAMPLING)[0]):
        ids = torch.tensor([sample.prompt_ids + sample.token_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1] / TEMPERATURE
        expected = logits.log_softmax(-1)[range(len(sample.token_ids)), list(sample.token_ids)]
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def long_task():
    """A board whose compact prompt is longer than the engine takes."""
    board = {"n": 9, "holes": list(range(30, 60)), "starts": [0, 1], "goals": [2, 3]}
    return Task("mapf_frozenlake", json.dumps(board | {"makespan": 2, "sum_of_costs": 4}), "9x9", "train", 0)


def test_a_prompt_that_is_too_long_is_a_data_failure_and_never_a_reward(pool, requests):
    mixed = [requests[0], Request(long_task(), (1, 2)), requests[1]]
    groups, _ = pool.rollout(mixed, SAMPLING)
    assert [group.task for group in groups] == [request.task for request in mixed]
    failed = groups[1].members
    assert [member.sample for member in failed] == [None, None]
    assert all(isinstance(member.result, Failure) and member.result.kind is FailureKind.DATA for member in failed)
    assert "rollout.max_prompt_tokens is 64" in failed[0].result.message
    assert groups[1].rewards == [] and not groups[1].has_signal
    plain, _ = pool.rollout([requests[0], requests[1]], SAMPLING)
    assert [s.token_ids for s in sampled([groups[0], groups[2]])] == [s.token_ids for s in sampled(plain)]
    only_long, _ = pool.rollout(mixed[1:2], SAMPLING)
    assert only_long == [groups[1]]


@pytest.mark.parametrize("pattern", [r"(UP|DOWN) [0-9]{3}", r"size-[3-9]: (yes|no)"])
def test_a_reply_obeys_its_regular_expression(pool, pattern):
    messages = [{"role": "user", "content": "1: UP"}]
    replies = [pool.write(messages, Sampling(1.0, 24), ("regex", pattern), seed) for seed in range(6)]
    assert all(re.fullmatch(pattern, reply) for reply in replies), replies
    assert len(set(replies)) > 1
    assert pool.write(messages, Sampling(1.0, 24), ("regex", pattern), 0) == replies[0]


def test_a_reply_obeys_its_json_schema(pool):
    level = {"type": "integer", "enum": [0, 10, 20]}
    schema = {"type": "object", "properties": {"a": level}, "required": ["a"], "additionalProperties": False}
    reply = pool.write([{"role": "user", "content": "1: UP"}], Sampling(1.0, 24), ("json", schema), 5)
    assert json.loads(reply)["a"] in (0, 10, 20)


def test_an_engineers_prompt_that_fills_the_engine_is_refused_with_the_settings_to_change(pool):
    with pytest.raises(ValueError, match=r"rollout\.max_prompt_tokens.*engineer\.modules"):
        pool.write([{"role": "user", "content": "x" * 200}], SAMPLING, None, 0)


def test_new_weights_change_what_is_sampled(pool, requests, deliver, original, other):
    before = sampled(pool.rollout(requests, SAMPLING)[0])
    deliver(pool, other, 2)
    changed = sampled(pool.rollout(requests, SAMPLING)[0])
    assert {v for sample in changed for v in sample.versions} == {2}
    assert [s.token_ids for s in changed] != [s.token_ids for s in before]
    deliver(pool, original, 3)
    again = sampled(pool.rollout(requests, SAMPLING)[0])
    assert [s.token_ids for s in again] == [s.token_ids for s in before]


def test_weights_that_arrive_while_tokens_are_sampled_are_used_from_the_next_token_on(pool, requests, delivery, other):
    """They come during the fifth decoding step: each token knows whose it is, and nothing sampled so far is lost."""
    import ray

    arriving = delivery(other, 2)

    def interrupt(worker):
        import threading
        import time

        engine = worker._engine
        step, taken = engine._llm.llm_engine.step, []

        def fifth():
            outputs = step()
            taken.append(None)
            if len(taken) == 5:
                threading.Thread(target=worker.load, args=(arriving,)).start()
                while not engine._callers_waiting:
                    time.sleep(0.001)
            return outputs

        engine._llm.llm_engine.step = fifth
        try:
            return worker.rollout(requests, SAMPLING)[0]
        finally:
            engine._llm.llm_engine.step = step

    groups = ray.get(pool._actors[0].__ray_call__.remote(interrupt), timeout=120)
    found = sampled(groups)
    assert [group.task for group in groups] == [request.task for request in requests]
    for sample in found:
        assert sample.versions == ((1,) * 5 + (2,) * 7)[: len(sample.token_ids)]
    assert any(2 in sample.versions for sample in found)
    straight = sampled(pool.rollout(requests, SAMPLING)[0])
    assert {v for sample in straight for v in sample.versions} == {2}


def test_a_killed_engine_is_replaced_and_continues_with_the_current_weights(pool, requests, deliver, other):
    import ray

    deliver(pool, other, 7)
    before = pool.rollout(requests, SAMPLING)[0]
    replaced = pool.replaced
    pid = ray.get(pool._actors[0].__ray_call__.remote(lambda worker: os.getpid()), timeout=60)
    os.kill(pid, 9)
    after = pool.rollout(requests, SAMPLING)[0]
    assert pool.replaced == replaced + 1
    assert ray.get(pool._actors[0].__ray_call__.remote(lambda worker: os.getpid()), timeout=60) != pid
    assert {v for sample in sampled(after) for v in sample.versions} == {7}
    assert [group.task for group in after] == [request.task for request in requests]
    assert [sample.token_ids for sample in sampled(after)] == [sample.token_ids for sample in sampled(before)]
