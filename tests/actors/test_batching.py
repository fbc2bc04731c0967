import json

import pytest

from actors.batching import make_batch
from actors.config import AlgorithmConfig
from actors.records import Group, Row, Sample, Scored
from environments.base import Failure, FailureKind, Task, Verdict

PLAIN = AlgorithmConfig(normalise_std=False)
LOST = Failure(FailureKind.INFRASTRUCTURE, "an engine was lost")


def task(index):
    return Task("toy", json.dumps({"i": index}), "easy", "train", index)


def member(index, result, *, sampled=True):
    """A member whose token ids and log-probs tell which one it is."""
    sample = Sample(
        task_id="t",
        prompt_ids=(1, 2),
        token_ids=(100 + index, 200 + index),
        logprobs=(-0.1 * index, -0.2 * index),
        versions=(0, 0),
        text="",
        finish_reason="stop",
        index=index,
        seed=index,
        worker="rollout-0",
    )
    return Scored(sample if sampled else None, result)


def group(index, results):
    return Group(task(index), tuple(member(10 * index + i, result) for i, result in enumerate(results)))


def judged(*rewards):
    return [Verdict(reward, "valid" if reward else "hole") for reward in rewards]


def test_every_row_carries_the_advantage_of_its_own_sample():
    batch = make_batch([group(1, judged(1.0, 0.0, 0.5, 0.5)), group(2, judged(0.0, 1.0))], PLAIN)
    assert {row.token_ids[0]: row.advantage for row in batch.rows} == {
        110: 0.5, 111: -0.5, 112: 0.0, 113: 0.0, 120: -0.5, 121: 0.5
    }  # fmt: skip
    assert [row.token_ids[0] for row in batch.rows] == [110, 111, 112, 113, 120, 121]
    assert all(row.logprobs == pytest.approx((-0.1 * (row.token_ids[0] - 100), -0.2 * (row.token_ids[0] - 100)))
               for row in batch.rows)  # fmt: skip
    assert all(row.prompt_ids == (1, 2) and len(row.token_ids) == 2 for row in batch.rows)


def test_groups_without_a_signal_are_left_out():
    solved, failed, lone = group(1, judged(1.0, 1.0)), group(2, judged(0.0, 0.0)), group(3, judged(1.0))
    batch = make_batch([solved, group(4, judged(1.0, 0.0)), failed, lone], PLAIN)
    assert {row.token_ids[0] for row in batch.rows} == {140, 141}


def test_failures_are_left_out_and_do_not_enter_the_mean():
    """Rewards 1, 0 and two failures: mean 1/2, not 1/4."""
    results = judged(1.0, 0.0)
    batch = make_batch([group(1, [LOST, results[0], LOST, results[1]])], PLAIN)
    assert [(row.token_ids[0], row.advantage) for row in batch.rows] == [(111, 0.5), (113, -0.5)]


def test_members_without_a_sample_are_failures_and_make_no_row():
    members = (member(1, LOST, sampled=False), *(member(i, v) for i, v in enumerate(judged(0.0, 1.0), 2)))
    batch = make_batch([Group(task(0), members)], PLAIN)
    assert [(row.token_ids[0], row.advantage) for row in batch.rows] == [(102, -0.5), (103, 0.5)]


@pytest.mark.parametrize("results", [[LOST, LOST], [LOST, Verdict(1.0, "valid")], []])
def test_a_group_with_less_than_two_verdicts_makes_no_row(results):
    assert make_batch([group(1, results)], PLAIN).rows == ()


def test_rounding_noise_between_equal_rewards_is_no_signal():
    assert make_batch([group(1, judged(0.1 + 0.2, 0.3))], AlgorithmConfig(normalise_std=True)).rows == ()


def test_the_deviation_is_used_where_the_algorithm_asks_for_it():
    batch = make_batch([group(1, judged(0.2, 0.4))], AlgorithmConfig(normalise_std=True))
    assert [row.advantage for row in batch.rows] == pytest.approx([-1.0, 1.0], rel=1e-4)


def test_replay_rows_pass_through_untouched():
    replay = (Row((1,), (2, 3)), Row((4,), (5,)))
    batch = make_batch([group(1, judged(1.0, 0.0))], PLAIN, replay)
    assert batch.replay == replay and len(batch.rows) == 2
    assert make_batch([], PLAIN, replay).replay == replay
