import json
from dataclasses import replace

import pytest

from actors.batching import judged_rows, make_batch
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


def of_lengths(*lengths, rewards):
    """A group whose members have these many tokens."""
    members = tuple(member(i, verdict) for i, verdict in enumerate(judged(*rewards)))
    return Group(
        task(0),
        tuple(
            replace(m, sample=replace(m.sample, token_ids=(7,) * n, logprobs=(-1.0,) * n, versions=(0,) * n))
            for m, n in zip(members, lengths, strict=True)
        ),
    )


def advantages(batch):
    return [row.advantage for row in batch.rows]


def test_completions_near_the_token_limit_lose_reward_before_the_baseline_is_taken():
    """Limit 10, buffer 0.2, penalty 0.5: 8 tokens lose 0, 9 lose 0.25, 10 lose 0.5.

    Rewards 1, 1, 1 become 1, 0.75, 0.5, mean 0.75: a group without a signal has one now.
    """
    algorithm = AlgorithmConfig(normalise_std=False, overlong={"buffer": 0.2, "penalty": 0.5})
    batch = make_batch([of_lengths(8, 9, 10, rewards=(1.0, 1.0, 1.0))], algorithm, max_new_tokens=10)
    assert advantages(batch) == pytest.approx([0.25, 0.0, -0.25])
    with pytest.raises(ValueError, match=r"algorithm.overlong.buffer = 0.2 needs max_new_tokens"):
        make_batch([], algorithm)


def test_kl_in_the_reward_goes_to_the_sample_it_belongs_to():
    """Rewards 1, 0 and 0, 1 (a failure between), KL 1, 2, 3, 4 at 0.1: 0.9, -0.2 and -0.3, 0.6; means 0.35, 0.15."""
    algorithm = AlgorithmConfig(normalise_std=False, kl={"coefficient": 0.1, "place": "reward"})
    first, second = judged(1.0, 0.0), judged(0.0, 1.0)
    groups = [group(1, [first[0], LOST, first[1]]), group(2, second)]
    assert [row.token_ids[0] for row in judged_rows(groups)] == [110, 112, 120, 121]
    batch = make_batch(groups, algorithm, reference_kl=[1.0, 2.0, 3.0, 4.0])
    assert advantages(batch) == pytest.approx([0.55, -0.55, -0.45, 0.45])
    for wrong in (None, [1.0]):
        with pytest.raises(ValueError, match=r"algorithm.kl.place = reward needs the KL of each of 4 samples"):
            make_batch(groups, algorithm, reference_kl=wrong)


def test_kl_in_the_loss_leaves_rewards_alone():
    algorithm = AlgorithmConfig(normalise_std=False, kl={"coefficient": 0.1, "place": "loss"})
    assert advantages(make_batch([group(1, judged(1.0, 0.0))], algorithm)) == [0.5, -0.5]


def test_the_snr_filter_keeps_the_groups_whose_rewards_differ_most():
    """Variances 1/4 and 1/16: the first alone holds 80 %."""
    groups = [group(1, judged(0.5, 0.0)), group(2, judged(1.0, 0.0))]
    batch = make_batch(groups, AlgorithmConfig(normalise_std=False, filters={"snr": 0.8}))
    assert [row.token_ids[0] for row in batch.rows] == [120, 121]
    assert batch.groups == (1,)
    assert len(make_batch(groups, AlgorithmConfig(filters={"snr": 0.9})).rows) == 4


def test_groups_of_equal_rewards_can_be_kept():
    batch = make_batch([group(1, judged(1.0, 1.0))], AlgorithmConfig(filters={"zero_variance": False}))
    assert advantages(batch) == [0.0, 0.0]


def test_the_batch_is_the_baseline_of_reinforce_plus_plus():
    """Rewards 1, 1 and 0, 0: ±1 up to the 1e-6 of the deviation; a lone verdict counts as well as any."""
    algorithm = AlgorithmConfig(name="reinforce_plus_plus")
    batch = make_batch([group(1, judged(1.0, 1.0)), group(2, [LOST, *judged(0.0)]), group(3, judged(0.0))], algorithm)
    assert advantages(batch) == pytest.approx([1.0, 1.0, -1.0, -1.0], rel=3e-6)
    assert make_batch([group(1, [LOST])], algorithm).rows == ()


def test_diagnosed_outcomes_can_weigh_more_or_less():
    """Rewards 1, 0, 0 with outcomes valid, hole, hole: advantages 2/3, -1/3, -1/3; holes count double, then not."""
    groups = [group(1, judged(1.0, 0.0, 0.0))]
    doubled = make_batch(groups, AlgorithmConfig(normalise_std=False, outcome_weights={"hole": 2.0}))
    assert advantages(doubled) == pytest.approx([2 / 3, -2 / 3, -2 / 3])
    silenced = make_batch(groups, AlgorithmConfig(normalise_std=False, outcome_weights={"hole": 0.0}))
    assert advantages(silenced) == pytest.approx([2 / 3, 0.0, 0.0])
