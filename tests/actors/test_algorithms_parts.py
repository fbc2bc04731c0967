"""What algorithms are composed of: KL, importance weights, filters, shaping, means, dynamic sampling, settings."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.algorithms import policy_loss
from actors.algorithms.correction import importance_weights
from actors.algorithms.dynamic_sampling import decide_sampling, shortage_message
from actors.algorithms.filters import kept_indices, variance
from actors.algorithms.kl import estimate, sequence_kl
from actors.algorithms.shaping import overlong_penalty
from actors.config import AlgorithmConfig
from actors.records import Group, Row, Scored
from environments.base import Failure, FailureKind, Task, Verdict
from tests.actors.algorithm_reference import NAMES, Sequence, objective, tensors, weights_of

# ------------------------------------------------------------------------------------------------------------- KL


def test_kl_estimators_at_a_factor_of_two():
    """Policy 2 × reference: d = ln 2, so k1 = ln 2, k2 = (ln 2)² / 2, k3 = 1/2 - 1 + ln 2."""
    import torch

    d = torch.tensor([math.log(2), 0.0], dtype=torch.float64)
    assert estimate(d, "k1").tolist() == pytest.approx([math.log(2), 0.0])
    assert estimate(d, "k2").tolist() == pytest.approx([math.log(2) ** 2 / 2, 0.0])
    assert estimate(d, "k3").tolist() == pytest.approx([math.log(2) - 0.5, 0.0])


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2, max_size=5))
def test_kl_estimators_and_their_gradients_have_the_means_that_are_claimed(logits):
    """Every token of a small vocabulary, weighted by the policy's own probability (held constant).

    k1 and k3 average to the KL. As loss terms, k1's gradient averages to 0, k2's to that of KL(policy ‖ reference) and
    k3's to that of KL(reference ‖ policy).
    """
    import torch

    mine, other = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in zip(*logits, strict=True))
    policy, reference = mine.log_softmax(-1), other.log_softmax(-1).detach()
    chances = policy.exp().detach()
    forward = (policy.exp() * (policy - reference)).sum()
    backward = (reference.exp() * (reference - policy)).sum()
    means = {name: (chances * estimate(policy - reference, name)).sum() for name in ("k1", "k2", "k3")}
    assert means["k1"].item() == pytest.approx(forward.item(), abs=1e-9)
    assert means["k3"].item() == pytest.approx(forward.item(), abs=1e-9)

    def gradient(value):
        return torch.autograd.grad(value, mine, retain_graph=True)[0].tolist()

    assert gradient(means["k1"]) == pytest.approx([0.0] * len(logits), abs=1e-9)
    assert gradient(means["k2"]) == pytest.approx(gradient(forward), abs=1e-9)
    assert gradient(means["k3"]) == pytest.approx(gradient(backward), abs=1e-9)


def test_kl_in_the_loss_is_added_to_it():
    """One completion of two tokens, A = 0, now twice and half the reference, coefficient 0.1, weights 1/2.

    k3: 0.1 (1/2 - 1 + ln 2 + 2 - 1 - ln 2) / 2 = 0.1 · 0.5 / 2 = 0.025; slopes 0.05 (1 - 1/2) and 0.05 (1 - 2).
    """
    now = [-1.0, -2.0]
    sequences = [Sequence(now, now, now, [-1.0 - math.log(2), -2.0 + math.log(2)], 0.0)]
    choices = objective(kl={"coefficient": 0.1})
    tokens = tensors(sequences, weights_of(sequences, choices))
    loss, statistics = policy_loss(tokens, choices)
    loss.backward()
    assert loss.item() == pytest.approx(0.025)
    assert tokens.logprobs.grad.tolist() == pytest.approx([0.025, -0.05])
    assert (statistics["kl_loss"].item(), statistics["kl_reference"].item()) == pytest.approx((0.025, 0.5))


def test_the_kl_of_a_completion_is_the_sum_over_its_tokens():
    """Differences ln 2 and -ln 2: k1 0, k2 (ln 2)², k3 0.5. Then one token at -0.5 against -1: k1 0.5."""
    rows = [Row((1,), (2, 3), 0.0, (-1.0, -1.0)), Row((1,), (2,), 0.0, (-0.5,))]
    reference = [[-1.0 - math.log(2), -1.0 + math.log(2)], [-1.0]]
    assert sequence_kl(rows, reference, "k1") == pytest.approx([0.0, 0.5], abs=1e-12)
    assert sequence_kl(rows, reference, "k2") == pytest.approx([math.log(2) ** 2, 0.125])
    assert sequence_kl(rows, reference, "k3") == pytest.approx([0.5, math.exp(-0.5) - 0.5])
    with pytest.raises(ValueError, match="2 tokens has 1 reference"):
        sequence_kl(rows[:1], [[-1.0]], "k1")


# ------------------------------------------------------------------------------------------------ importance weights


def weights(level, mode, *sequences, **bounds):
    """Applied weights of sequences of ratios (proximal / behaviour)."""
    correction = objective(correction={"level": level, "mode": mode, **bounds}).correction
    flat = [Sequence([0.0] * len(r), [math.log(x) for x in r], [0.0] * len(r), [0.0] * len(r), 1.0) for r in sequences]
    return importance_weights(tensors(flat, [1.0] * len(flat)), correction).tolist()


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("token", "truncate", [2.0, 0.25, 1.0, 0.5]),  # at most 2
        ("token", "mask", [4.0, 0.0, 1.0, 0.5]),  # 0.5 to 5
        ("sequence", "truncate", [1.0, 1.0, 0.5, 0.5]),  # 4 · 1/4 = 1, 1 · 1/2
        ("sequence", "mask", [1.0, 1.0, 0.5, 0.5]),  # 0 to 2
        ("geometric", "truncate", [1.0, 1.0, math.sqrt(0.5), math.sqrt(0.5)]),
        ("geometric", "mask", [1.0, 1.0, 0.0, 0.0]),  # 0.99 to 1.01
    ],
)
def test_importance_weights_of_two_completions(level, mode, expected):
    """Ratios (4, 1/4) and (1, 1/2), the default bounds."""
    assert weights(level, mode, [4.0, 0.25], [1.0, 0.5]) == pytest.approx(expected)


def test_bounds_of_importance_weights_can_be_set():
    """Truncated to [0.6, 1.5], or set to 0 outside of it."""
    bounds = {"low": 0.6, "high": 1.5}
    assert weights("token", "truncate", [3.0, 1.2, 0.1], **bounds) == pytest.approx([1.5, 1.2, 0.6])
    assert weights("token", "mask", [3.0, 1.2, 0.1], **bounds) == pytest.approx([0.0, 1.2, 0.0])
    assert weights("sequence", "mask", [3.0, 1.2, 0.1], [1.1, 1.2], **bounds) == pytest.approx([0, 0, 0, 1.32, 1.32])


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_a_rollout_of_the_proximal_policy_needs_no_correction(level, mode):
    assert weights(level, mode, [1.0, 1.0, 1.0], [1.0]) == [1.0] * 4


def test_weights_make_old_samples_count_as_the_proximal_policys():
    """Two tokens, behaviour (3/4, 1/4), proximal (1/2, 1/2): weights 2/3 and 2.

    Mean over the behaviour of weight · f is that of f over the proximal: 3/4 · 2/3 = 1/4 · 2 = 1/2.
    """
    assert weights("token", "truncate", [0.5 / 0.75], [0.5 / 0.25]) == pytest.approx([2 / 3, 2.0])


def test_an_overflowing_ratio_is_bounded_or_masked():
    """A product of 400 ratios of e is beyond float64's reach; never an infinite or undefined weight."""
    long = [math.e] * 800
    assert set(weights("sequence", "truncate", long)) == {2.0}
    assert set(weights("sequence", "mask", long)) == {0.0}


def test_a_correction_scales_the_surrogate_and_its_gradient():
    """Proximal 4 × behaviour, now the proximal, A = 1: weight 2, loss -2, gradient -2; masked: all 0.

    Mismatch is |ln 4| between proximal and behaviour; the effective sample size counts the weight.
    """
    sequences = [Sequence([-1.0], [-1.0], [-1.0 - math.log(4)], [0.0], 1.0)]
    choices = objective(lag=1)
    tokens = tensors(sequences, [1.0])
    loss, statistics = policy_loss(tokens, choices)
    loss.backward()
    assert (loss.item(), tokens.logprobs.grad.item()) == pytest.approx((-2.0, -2.0))
    found = {name: value.item() for name, value in statistics.items()}
    assert found == pytest.approx(
        {"clipped": 0, "kl": 3 - math.log(4), "mismatch": math.log(4), "masked": 0, "weight": 2, "weight_squared": 4}
    )
    loss, statistics = policy_loss(tokens, objective(correction={"level": "token", "mode": "mask", "high": 3.0}))
    assert (loss.item(), statistics["masked"].item(), statistics["weight"].item()) == (0.0, 1.0, 0.0)


# ---------------------------------------------------------------------------------------------------------- filters


def test_groups_of_equal_rewards_are_dropped_or_kept():
    """Also those that differ by rounding only, or have one reward; none at all are never kept."""
    groups = [[1.0, 0.0], [0.5, 0.5], [0.1 + 0.2, 0.3], [1.0], [], [0.0, 0.5]]
    assert kept_indices(groups, zero_variance=True, snr=None) == [0, 5]
    assert kept_indices(groups, zero_variance=False, snr=None) == [0, 1, 2, 3, 5]


def test_snr_keeps_the_fewest_groups_that_hold_the_share_of_variance():
    """Variances of (1,0), (1,0,0,0), (0.5,0), (1,1): 1/4, 3/16, 1/16, 0; together 1/2.

    Half of it is the first alone; 0.6 (0.3) needs 1/4 + 3/16 = 0.4375, which is 87.5 %; 0.9 (0.45) needs all three.
    """
    groups = [[1.0, 1.0], [0.5, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0]]
    assert [variance(g) for g in groups] == pytest.approx([0.0, 1 / 16, 3 / 16, 1 / 4])
    for share, kept in ((0.5, [3]), (0.6, [2, 3]), (0.875, [2, 3]), (0.9, [1, 2, 3]), (1.0, [1, 2, 3])):
        assert kept_indices(groups, zero_variance=True, snr=share) == kept
        assert kept_indices(groups, zero_variance=False, snr=share) == kept


def test_of_equal_variances_the_earlier_group_is_kept():
    assert kept_indices([[1.0, 0.0]] * 4, zero_variance=True, snr=0.5) == [0, 1]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.3, 1.0]), max_size=5), max_size=8), st.floats(0.01, 1.0))
def test_snr_keeps_enough_and_no_group_too_many(groups, share):
    kept = kept_indices(groups, zero_variance=True, snr=share)
    variances = [variance(g) for g in groups]
    held = sum(variances[i] for i in kept)
    assert held >= share * sum(variances) * (1 - 1e-9)
    if kept:
        assert held - min(variances[i] for i in kept) < share * sum(variances)
        assert min(variances[i] for i in kept) >= max([variances[i] for i in range(len(groups)) if i not in kept] + [0])


# ---------------------------------------------------------------------------------------------------------- shaping


@pytest.mark.parametrize(("length", "expected"), [(1, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (99, -0.95), (100, -1)])
def test_overlong_completions_lose_reward_in_a_line(length, expected):
    """Limit 100, buffer 0.2: nothing up to 80 tokens, then 1/20 per token."""
    assert overlong_penalty(length, 100, 0.2, 1.0) == pytest.approx(expected)
    assert overlong_penalty(length, 100, 0.2, 0.5) == pytest.approx(expected / 2)
    assert overlong_penalty(length, 100, 0.0, 1.0) == 0.0


# ------------------------------------------------------------------------------------------------------ aggregation


def test_token_weights_of_completions_of_one_and_three_tokens():
    """Token 1/4; sequence 1/2 and 1/6; constant 1/(2 · 10), the limit being 10."""
    sequences = [Sequence([0.0] * n, [0.0] * n, [0.0] * n, [0.0] * n, 0.0) for n in (1, 3)]
    assert weights_of(sequences, objective(aggregation="token")) == [0.25, 0.25]
    assert weights_of(sequences, objective(aggregation="sequence")) == pytest.approx([1 / 2, 1 / 6])
    assert weights_of(sequences, objective(aggregation="constant")) == [0.05, 0.05]
    for aggregation in ("token", "sequence", "constant"):
        assert weights_of([], objective(aggregation=aggregation)) == []


# -------------------------------------------------------------------------------------------------- dynamic sampling


def group(stratum, *rewards):
    members = tuple(Scored(None, Verdict(reward, "any")) for reward in rewards)
    return Group(Task("toy", json.dumps({}), stratum, "train", 0), members)


def test_groups_with_a_signal_are_kept_in_order_up_to_what_is_wanted():
    a, b, c, flat = group("s", 1, 0), group("s", 0, 1), group("s", 1, 0, 0), group("s", 1, 1)
    decision = decide_sampling([flat, a, flat, b], 3)
    assert (decision.kept, decision.missing) == ((a, b), 1)
    decision = decide_sampling([flat, a, flat, b, c], 2)
    assert (decision.kept, decision.missing) == ((a, b), 0)
    assert decide_sampling([], 2).missing == 2


def test_a_shortage_names_what_is_too_easy_and_what_too_hard():
    lost = Scored(None, Failure(FailureKind.TIMEOUT, "late"))
    groups = [
        group("3x3", 1, 1), group("3x3", 1, 1), group("3x3", 1, 0), group("8x8", 0, 0), group("8x8", 0),
        group("5x5", 0.5, 0.5), Group(group("8x8").task, (lost, lost)),
    ]  # fmt: skip
    message = shortage_message(groups, 4, 3)
    assert "found 1 of 4 groups with a signal in 7 prompts (algorithm.dynamic_sampling.rounds = 3)" in message
    assert "too easy (all rewards the highest): 3x3 (2 of 3 groups)" in message
    assert "too hard (all rewards the lowest): 8x8 (1 of 3 groups)" in message
    assert "5x5" not in message and "or allow more rounds" in message


@pytest.mark.parametrize(("reward", "word", "other"), [(1.0, "too easy", "too hard"), (0.0, "too hard", "too easy")])
def test_where_all_rewards_are_one_number_a_positive_one_is_too_easy(reward, word, other):
    message = shortage_message([group("3x3", reward, reward)], 2, 1)
    assert word in message and other not in message


def test_a_shortage_without_any_verdict_says_how_many_are_missing():
    assert "found 0 of 2 groups with a signal in 0 prompts" in shortage_message([], 2, 1)


# ---------------------------------------------------------------------------------------------------------- settings


def test_a_correction_is_on_where_rollouts_may_lag():
    """``auto`` truncates token weights at 2 and takes the ratio to the learner; without lag, to the rollout."""
    lagging, current = objective(lag=1), objective(lag=0)
    assert (lagging.correction.level, lagging.correction.mode, lagging.correction.high) == ("token", "truncate", 2.0)
    assert (lagging.old_logprobs, current.correction.level, current.old_logprobs) == ("learner", "none", "rollout")
    assert objective(lag=1, correction={"level": "none"}).old_logprobs == "rollout"
    assert objective(lag=1, old_logprobs="rollout").correction.level == "none"
    assert objective(old_logprobs="learner").correction.level == "none"


def test_every_default_of_an_algorithm_can_be_overridden():
    choices = objective(
        "dapo",
        clip_low=0.1,
        clip_high=0.5,
        normalise_std=False,
        aggregation="sequence",
        filters={"zero_variance": False, "snr": 0.9},
        overlong={"buffer": 0.0},
        dynamic_sampling={"rounds": 0},
        kl={"coefficient": 0.1, "estimator": "k2", "place": "reward"},
    )
    assert (choices.clip_low, choices.clip_high, choices.normalise_std) == (0.1, 0.5, False)
    assert (choices.aggregation, choices.zero_variance, choices.snr) == ("sequence", False, 0.9)
    assert (choices.overlong_buffer, choices.sampling_rounds, choices.kl.estimator) == (0.0, 0, "k2")
    assert choices.kl.in_reward() and not choices.kl.in_loss()


@pytest.mark.parametrize(
    ("name", "clip_low", "clip_high", "normalise_std", "aggregation", "zero_variance", "buffer", "rounds"),
    [
        ("grpo", 0.2, 0.2, True, "sequence", True, 0.0, 0),
        ("dr_grpo", 0.2, 0.2, False, "constant", True, 0.0, 0),
        ("dapo", 0.2, 0.28, True, "token", True, 0.2, 3),
        ("gspo", 3e-4, 4e-4, True, "sequence", True, 0.0, 0),
        ("cispo", 1.0, 4.0, True, "token", True, 0.0, 0),
        ("rloo", 0.2, 0.2, False, "constant", True, 0.0, 0),
        ("reinforce_plus_plus", 0.2, 0.2, True, "token", False, 0.0, 0),
    ],
)
def test_what_a_setting_means_where_it_is_left_out(
    name, clip_low, clip_high, normalise_std, aggregation, zero_variance, buffer, rounds
):
    """And the clips' descriptions, from which the reference is made, say the same."""
    found = objective(name)
    assert (found.clip_low, found.clip_high, found.normalise_std) == (clip_low, clip_high, normalise_std)
    assert (found.aggregation, found.zero_variance, found.snr) == (aggregation, zero_variance, None)
    assert (found.overlong_buffer, found.sampling_rounds, found.updates_per_batch) == (buffer, rounds, 1)
    for field, value in (("clip_low", clip_low), ("clip_high", clip_high)):
        text = AlgorithmConfig.model_fields[field].description
        _, _, named = text.rstrip(")").partition("(null: ")
        own = dict(part.split(" ") for part in named.split("; ")[1:])
        assert float(own.get(name, named.split("; ")[0])) == value


@pytest.mark.parametrize("name", NAMES)
def test_a_kl_coefficient_of_zero_needs_no_reference(name):
    kl = objective(name).kl
    assert not kl.in_loss() and not kl.in_reward()
    assert (kl.estimator, kl.place) == (("k1", "reward") if name == "reinforce_plus_plus" else ("k3", "loss"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"correction": {"level": "token"}, "old_logprobs": "rollout"}, "needs algorithm.old_logprobs = learner"),
        ({"name": "dapo", "filters": {"zero_variance": False}}, "algorithm.dynamic_sampling.rounds = 0"),
        ({"outcome_weights": {"hole": -1.0}}, "algorithm.outcome_weights must be finite and at least 0"),
        ({"outcome_weights": {"hole": math.inf}}, "algorithm.outcome_weights must be finite"),
        ({"correction": {"high": 0.9}}, "greater than or equal to 1"),
        ({"correction": {"low": 1.1}}, "less than or equal to 1"),
        ({"filters": {"snr": 0.0}}, "greater than 0"),
        ({"name": "ppo"}, "'grpo', 'dr_grpo', 'dapo'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        AlgorithmConfig.model_validate(values)
