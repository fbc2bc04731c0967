"""One real engine, and the pool over stand-in workers where only the pool is meant."""

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from actors.config import RolloutConfig
from actors.records import Group, Request, Sample, Sampling, Scored
from actors.rollout import RolloutPool, WorkerReport
from actors.waiting import ActorFailure
from actors.weight_sync import pack
from environments.base import Failure, FailureKind, Task, Verdict

TEMPERATURE = 0.7
SAMPLING = Sampling(TEMPERATURE, 12)

# ------------------------------------------------------------------------------------------------------ the real engine


@pytest.fixture(scope="session")
def requests(tasks):
    """Five tasks, three completions each, a seed of its own for every completion."""
    return [Request(task, (100 + 3 * i, 101 + 3 * i, 102 + 3 * i)) for i, task in enumerate(tasks[:5])]


@pytest.fixture
def pool(engines, original_weights):
    """The engine of the tied model, with the weights it was started with, as version 1."""
    pool = engines(tied=True)
    pool.load(1, original_weights, 120.0)
    return pool


@pytest.fixture
def original_weights(ray_session, new_model):
    return buckets_of(new_model(tied=True)[0])


def buckets_of(model):
    import ray

    return [ray.put(bucket) for bucket in pack(model.named_parameters())]


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


def test_new_weights_change_what_is_sampled(pool, requests, new_model, original_weights):
    import torch

    before = sampled(pool.rollout(requests, SAMPLING)[0])
    model, _ = new_model(tied=True)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1.0)
    pool.load(2, buckets_of(model), 120.0)
    changed = sampled(pool.rollout(requests, SAMPLING)[0])
    assert {v for sample in changed for v in sample.versions} == {2}
    assert [s.token_ids for s in changed] != [s.token_ids for s in before]
    pool.load(3, original_weights, 120.0)
    again = sampled(pool.rollout(requests, SAMPLING)[0])
    assert [s.token_ids for s in again] == [s.token_ids for s in before]


def test_a_killed_engine_is_replaced_and_continues_with_the_current_weights(pool, requests, new_model):
    import ray
    import torch

    model, _ = new_model(tied=True)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1.0)
    pool.load(7, buckets_of(model), 120.0)
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


# ------------------------------------------------------------------------------------------------------------- the pool


class Fake:
    """A worker whose environment is (what troubles it, {"folder": where its processes leave marks})."""

    def __init__(self, name, model, config, environment):
        self.name, self.version = name, 0
        self.trouble, settings = environment
        self.folder = Path(settings["folder"])

    def ready(self):
        return self.name

    def load(self, version, buckets):
        self.version = version
        return version

    def rollout(self, requests, sampling):
        mark = self.folder / self.name
        first = not mark.exists()
        mark.touch()
        if self.name == "rollout-1":
            if self.trouble == "dies" or (self.trouble == "dies once" and first):
                os._exit(1)
            if self.trouble == "hangs":
                time.sleep(600)
            if self.trouble == "raises":
                raise ZeroDivisionError("a bug in the checker")
        return [self.group(request) for request in requests], WorkerReport(0.0, 0.0, len(requests))

    def group(self, request):
        members = []
        for i, seed in enumerate(request.seeds):
            sample = Sample(request.task.id, (1,), (2,), (-0.5,), (self.version,), "", "stop", i, seed, self.name)
            members.append(Scored(sample, Verdict(1.0, "valid")))
        return Group(request.task, tuple(members))


@pytest.fixture
def fake_pool(ray_session, place, monkeypatch, tmp_path):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr("actors.rollout.RolloutWorker", Fake)
    pools = []

    def make(trouble, **settings):
        config = RolloutConfig(**{"workers": 3, "deadline_s": 120.0, **settings})
        pools.append(RolloutPool("no model", config, (trouble, {"folder": str(tmp_path)}), place))
        pools[-1].wait_ready()
        return pools[-1]

    yield make
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for pool in pools:
        for actor in pool._actors:
            ray.kill(actor)


SEVEN = [Request(Task("toy", str(i), "easy", "train", i), (10 * i, 10 * i + 1)) for i in range(7)]


def test_request_i_goes_to_worker_i_modulo_workers_and_the_order_is_kept(fake_pool):
    groups, reports = fake_pool("nothing").rollout(SEVEN, SAMPLING)
    assert [group.task for group in groups] == [request.task for request in SEVEN]
    assert [sample.worker for sample in sampled(groups)] == [f"rollout-{i % 3}" for i in range(7) for _ in range(2)]
    assert [sample.seed for sample in sampled(groups)] == [seed for request in SEVEN for seed in request.seeds]
    assert [report.tokens for report in reports] == [3, 2, 2]


def test_fewer_requests_than_workers_are_served_too(fake_pool):
    pool = fake_pool("nothing")
    assert [group.task for group in pool.rollout(SEVEN[:1], SAMPLING)[0]] == [SEVEN[0].task]
    assert pool.rollout([], SAMPLING)[0] == []


def test_the_stripe_of_a_worker_that_died_is_sampled_by_its_replacement(fake_pool):
    pool = fake_pool("dies once")
    pool.load(5, [], 60.0)
    groups, _ = pool.rollout(SEVEN, SAMPLING)
    assert pool.replaced == 1
    assert [group.task for group in groups] == [request.task for request in SEVEN]
    assert {sample.versions for sample in sampled(groups)} == {(5,)}


@pytest.mark.parametrize(
    ("trouble", "kind", "settings"),
    [("dies", FailureKind.INFRASTRUCTURE, {}), ("hangs", FailureKind.TIMEOUT, {"deadline_s": 3.0})],
)
def test_what_fails_on_the_replacement_too_is_a_failure_and_the_rest_is_kept(fake_pool, trouble, kind, settings):
    pool = fake_pool(trouble, workers=2, **settings)
    groups, _ = pool.rollout(SEVEN, SAMPLING)
    assert [group.task for group in groups] == [request.task for request in SEVEN]
    for i, group in enumerate(groups):
        assert len(group.members) == 2
        if i % 2:
            assert [member.sample for member in group.members] == [None, None]
            assert {member.result.kind for member in group.members} == {kind}
            assert group.rewards == []
        else:
            assert group.rewards == [1.0, 1.0]
    assert pool.replaced == 2


def test_a_bug_in_the_checker_is_loud(fake_pool):
    with pytest.raises(ZeroDivisionError, match="a bug in the checker"):
        fake_pool("raises", workers=2).rollout(SEVEN, SAMPLING)


def test_engines_that_do_not_start_in_time_are_a_timeout_that_names_the_setting(fake_pool):
    with pytest.raises(ActorFailure, match=r"waited 0\.001 s .*start.*rollout\.start_deadline_s") as caught:
        fake_pool("nothing", workers=1, start_deadline_s=0.001)
    assert caught.value.kind is FailureKind.TIMEOUT
