"""Numbers worked out by hand from the papers' formulas, one algorithm after the other."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.algorithms import policy_loss
from actors.algorithms.registry import ALGORITHMS
from tests.actors.algorithm_reference import NAMES, Sequence, objective, tensors, weights_of

ROOT3 = math.sqrt(3)
SHRUNK = 1 - 4e-6 / ROOT3
"""What the 1e-6 added to a deviation of √3 / 4 leaves of a quotient."""


def advantages(name, *groups, **settings):
    return ALGORITHMS[name].advantages(groups, objective(name, **settings).normalise_std)


def from_ratios(*completions):
    """(ratios now / then, advantage) → sequences on log-probs -1, -2, … of the proximal policy."""
    out = []
    for ratios, advantage in completions:
        then = [-1.0 - i for i in range(len(ratios))]
        now = [t + math.log(r) for t, r in zip(then, ratios, strict=True)]
        out.append(Sequence(now, then, then, then, advantage))
    return out


def result(choices, *completions):
    """Loss, gradient, clipped tokens."""
    sequences = from_ratios(*completions)
    tokens = tensors(sequences, weights_of(sequences, choices))
    loss, statistics = policy_loss(tokens, choices)
    loss.backward()
    return loss.item(), tokens.logprobs.grad.tolist(), statistics["clipped"].item()


# ----------------------------------------------------------------------------------------------------- all rules


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, derandomize=True, max_examples=50)
@given(groups=st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=8), min_size=1, max_size=4), std=st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(name, groups, std):
    """Over each group; over the batch for REINFORCE++, whose baseline is the batch's."""
    found = ALGORITHMS[name].advantages(groups, std)
    assert [len(values) for values in found] == [len(rewards) for rewards in groups]
    if name == "reinforce_plus_plus":
        groups, found = [[r for g in groups for r in g]], [[a for g in found for a in g]]
    for rewards, values in zip(groups, found, strict=True):
        assert sum(values) == pytest.approx(0.0, abs=1e-6)
        assert all(a <= b + 1e-12 for (_, a), (_, b) in itertools.pairwise(sorted(zip(rewards, values, strict=True))))


# ---------------------------------------------------------------------------------------------------------- GRPO


def test_grpo_one_success_in_four_is_worth_the_square_root_of_three():
    """Rewards 1, 0, 0, 0: mean 1/4, centred 3/4 and -1/4, variance (9 + 3) / 16 / 4 = 3/16, deviation √3 / 4.

    3/4 : √3/4 = √3 and -1/4 : √3/4 = -1/√3. The 1e-6 in the denominator takes 4e-6 / √3 = 2.31e-6 of that. The
    deviation is the population's: the sample's, √(1/4), would give 3/2.
    """
    expected = [ROOT3 * SHRUNK] + [-SHRUNK / ROOT3] * 3
    assert advantages("grpo", [1.0, 0.0, 0.0, 0.0]) == [pytest.approx(expected, rel=1e-9)]


def test_grpo_without_the_deviation_subtracts_the_mean():
    """Rewards 1, 0.5, 0, 0.5: mean 0.5. Exact, as all are binary fractions."""
    assert advantages("grpo", [1.0, 0.5, 0.0, 0.5], normalise_std=False) == [[0.5, 0.0, -0.5, 0.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.25, 2.0, -2.5, -2.5),  # inside (0.8, 1.28): -r A, slope -r A
        (1.25, -1.0, 1.25, 1.25),
        (1.5, 2.0, -2.56, 0.0),  # above, A > 0: min(3, 1.28 · 2) = 2.56, flat
        (1.5, -1.0, 1.5, 1.5),  # above, A < 0: min(-1.5, -1.28) = -1.5, still pushed down
        (0.5, 2.0, -1.0, -1.0),  # below, A > 0: min(1, 0.8 · 2) = 1, still pushed up
        (0.5, -1.0, 0.8, 0.0),  # below, A < 0: min(-0.5, -0.8) = -0.8, flat
    ],
)
def test_grpo_clips_only_what_already_moved_far_in_the_wanted_direction(ratio, advantage, loss, gradient):
    """Clip 0.2 below and 0.28 above; loss = -min(r A, clip(r) A), slope in logprob -r A, or 0 where clip(r) A wins."""
    found, slope, clipped = result(objective("grpo", clip_high=0.28), ([ratio], advantage))
    assert found == pytest.approx(loss)
    assert slope == pytest.approx([gradient], abs=1e-12)
    assert clipped == (gradient == 0.0)


def test_grpo_lets_every_completion_count_the_same():
    """Ratio 1, one token with A = 2 and three with A = -1.

    Sequence mean: (2 + (-1 - 1 - 1) / 3) / 2 = 1/2; a token weighs 1/2 in the first, 1/6 in the second. Token mean:
    (2 - 3) / 4 = -1/4, and each weighs 1/4.
    """
    completions = ([1.0], 2.0), ([1.0] * 3, -1.0)
    loss, gradient, _ = result(objective("grpo"), *completions)
    assert loss == pytest.approx(-0.5)
    assert gradient == pytest.approx([-1.0] + [1 / 6] * 3)
    loss, gradient, _ = result(objective("grpo", aggregation="token"), *completions)
    assert loss == pytest.approx(0.25)
    assert gradient == pytest.approx([-0.5] + [0.25] * 3)


# ------------------------------------------------------------------------------------------------------ Dr. GRPO


def test_dr_grpo_divides_by_neither_the_deviation_nor_the_length():
    """Rewards 1, 0, 0, 0 → 3/4, -1/4, -1/4, -1/4.

    Two completions of 1 and 3 tokens, A = 3/4 and -1/4, ratio 1, limit 10 tokens: every token weighs 1 / (2 · 10).
    Loss -(3/4 - 3/4) / 20 = 0, gradient -3/80 and +1/80.
    """
    assert advantages("dr_grpo", [1.0, 0.0, 0.0, 0.0]) == [[0.75, -0.25, -0.25, -0.25]]
    loss, gradient, _ = result(objective("dr_grpo"), ([1.0], 0.75), ([1.0] * 3, -0.25))
    assert loss == pytest.approx(0.0)
    assert gradient == pytest.approx([-3 / 80] + [1 / 80] * 3)


# ---------------------------------------------------------------------------------------------------------- DAPO


def test_dapo_clips_higher_and_means_over_tokens():
    """Ratios 1.25, 1.5, 0.5 and A = 1 in one completion, ratio 0.5 and A = -1 in another: four tokens, 1/4 each.

    Clip (0.8, 1.28): 1.25 inside, 1.5 → 1.28 flat, min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8, flat.
    Loss -(1.25 + 1.28 + 0.5 - 0.8) / 4 = -2.23 / 4. With GRPO's 0.2 the first token would be flat too.
    """
    completions = ([1.25, 1.5, 0.5], 1.0), ([0.5], -1.0)
    loss, gradient, clipped = result(objective("dapo"), *completions)
    assert loss == pytest.approx(-2.23 / 4)
    assert gradient == pytest.approx([-1.25 / 4, 0.0, -0.5 / 4, 0.0])
    assert clipped == 2
    assert result(objective("grpo"), *completions)[2] == 3


def test_dapo_brings_its_dynamic_sampling_and_overlong_shaping():
    choices = objective("dapo")
    assert (choices.sampling_rounds, choices.overlong_buffer, choices.zero_variance) == (3, 0.2, True)
    assert advantages("dapo", [1.0, 0.0]) == [pytest.approx([1.0, -1.0], rel=3e-6)]


# ---------------------------------------------------------------------------------------------------------- GSPO


def test_gspo_weighs_a_completion_by_the_geometric_mean_of_its_ratios():
    """Ratios 2 and 1/2: geometric mean 1, so nothing is clipped; A = 1, one completion, a token weighs 1/2.

    Loss -1, gradient -1/2 each. GRPO with the same clip: min(2, 1.28) = 1.28 flat, and 0.5: loss -(1.28 + 0.5) / 2.
    """
    settings = {"clip_low": 0.2, "clip_high": 0.28}
    loss, gradient, clipped = result(objective("gspo", **settings), ([2.0, 0.5], 1.0))
    assert (loss, clipped) == (pytest.approx(-1.0), 0)
    assert gradient == pytest.approx([-0.5, -0.5])
    assert result(objective("grpo", **settings), ([2.0, 0.5], 1.0))[0] == pytest.approx(-0.89)


def test_gspo_clips_whole_completions():
    """Ratios 4 and 1: s = 2. A = 1: flat at 1.28, both tokens clipped. A = -1: loss s = 2, gradient s / 2 per token.

    Two completions, so half of each: loss (-1.28 + 2) / 2 = 0.36.
    """
    choices = objective("gspo", clip_low=0.2, clip_high=0.28)
    loss, gradient, clipped = result(choices, ([4.0, 1.0], 1.0), ([4.0, 1.0], -1.0))
    assert (loss, clipped) == (pytest.approx(0.36), 2)
    assert gradient == pytest.approx([0.0, 0.0, 0.5, 0.5])


def test_gspo_has_the_narrow_clip_of_its_paper():
    """A mean ratio of 1.0005 is outside of (0.9997, 1.0004): loss -1.0004."""
    loss, gradient, _ = result(objective("gspo"), ([1.0005, 1.0005], 1.0))
    assert loss == pytest.approx(-1.0004, rel=1e-12)
    assert gradient == [0.0, 0.0]
    assert advantages("gspo", [1.0, 0.0]) == [pytest.approx([1.0, -1.0], rel=3e-6)]


# --------------------------------------------------------------------------------------------------------- CISPO


def test_cispo_bounds_the_weight_and_drops_no_token():
    """Ratios 2 and 1/2 on old log-probs -1 and -2, upper bound 1.28, A = 1, a token weighs 1/2.

    Loss -(1.28 (-1 + ln 2) + 0.5 (-2 - ln 2)) / 2; gradient -1.28 / 2 and -0.5 / 2: the bound limits a token's step,
    where the clipped surrogate would leave none.
    """
    loss, gradient, clipped = result(objective("cispo", clip_high=0.28), ([2.0, 0.5], 1.0))
    assert loss == pytest.approx(-(1.28 * (math.log(2) - 1) - 0.5 * (2 + math.log(2))) / 2)
    assert gradient == pytest.approx([-0.64, -0.25])
    assert clipped == 1


def test_cispo_by_default_has_an_upper_bound_only():
    """Ratios 8 and 1e-3: bounded to 5, left as it is. Negative advantages are bounded alike."""
    _, gradient, clipped = result(objective("cispo"), ([8.0, 1e-3], -1.0))
    assert gradient == pytest.approx([2.5, 5e-4])
    assert clipped == 1
    assert advantages("cispo", [1.0, 0.0]) == [pytest.approx([1.0, -1.0], rel=3e-6)]


# ---------------------------------------------------------------------------------------------------------- RLOO


def test_rloo_compares_with_the_others():
    """Rewards 1, 0.5, 0: the others' means are 1/4, 1/2, 3/4, so 3/4, 0, -3/4. Mean of all 1/2: 3/2 (r - 1/2)."""
    assert advantages("rloo", [1.0, 0.5, 0.0]) == [pytest.approx([0.75, 0.0, -0.75])]


def test_rloo_divides_by_the_deviation_of_its_differences_where_asked():
    """1, 0 → 1 and -1, whose deviation is 1. A lone sample has no others: 0."""
    found = advantages("rloo", [1.0, 0.0], [0.7], normalise_std=True)
    assert found == [pytest.approx([1.0, -1.0], rel=3e-6), [0.0]]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_rloo_is_dr_grpo_times_n_over_n_minus_one(rewards):
    """r - (S - r) / (n - 1) = (n r - S) / (n - 1) = n / (n - 1) · (r - S / n)."""
    factor = len(rewards) / (len(rewards) - 1)
    (plain,) = advantages("dr_grpo", rewards)
    assert advantages("rloo", rewards) == [pytest.approx([factor * a for a in plain], abs=1e-12)]


def test_rloo_sums_over_the_completion():
    """On policy, A = 1 over two tokens, one completion, limit 10: gradient -1/10 per token, whatever the length."""
    assert result(objective("rloo"), ([1.0, 1.0], 1.0))[1] == pytest.approx([-0.1, -0.1])
    assert result(objective("rloo"), ([1.0], 1.0))[1] == pytest.approx([-0.1])


# ---------------------------------------------------------------------------------------------------- REINFORCE++


def test_reinforce_plus_plus_normalises_over_the_batch():
    """Groups (1, 1) and (0, 0): mean 1/2, deviation 1/2, so ±1, where a group baseline would leave nothing.

    The 1e-6 takes 2e-6 of that. Without the deviation ±1/2.
    """
    shrunk = 0.5 / (0.5 + 1e-6)
    assert advantages("reinforce_plus_plus", [1.0, 1.0], [0.0, 0.0]) == [
        pytest.approx([shrunk, shrunk], rel=1e-12),
        pytest.approx([-shrunk, -shrunk], rel=1e-12),
    ]
    plain = advantages("reinforce_plus_plus", [1.0, 1.0], [0.0], normalise_std=False)
    assert [x for group in plain for x in group] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert advantages("reinforce_plus_plus") == []


def test_reinforce_plus_plus_clips_as_ppo_and_means_over_tokens():
    """Ratio 1.5 with A = 1 is flat at 1.2, ratio 1 with A = -1 is not: loss (-1.2 + 1 + 1) / 3."""
    loss, gradient, clipped = result(objective("reinforce_plus_plus"), ([1.5], 1.0), ([1.0, 1.0], -1.0))
    assert loss == pytest.approx(0.8 / 3)
    assert gradient == pytest.approx([0.0, 1 / 3, 1 / 3])
    assert clipped == 1
