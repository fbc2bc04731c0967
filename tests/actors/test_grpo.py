import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.grpo import group_advantages, policy_loss

CLIP_LOW, CLIP_HIGH = 0.2, 0.28


def reference(logprobs, behaviour, advantages, clip_low, clip_high):
    """Loss and d loss / d logprobs in plain Python, from the definition: -min(r A, clip(r) A), r = exp(now - then)."""
    loss, gradient = 0.0, []
    for now, then, advantage in zip(logprobs, behaviour, advantages, strict=True):
        ratio = math.exp(now - then)
        bounded = min(max(ratio, 1 - clip_low), 1 + clip_high)
        loss -= min(ratio * advantage, bounded * advantage)
        gradient.append(0.0 if bounded * advantage < ratio * advantage else -ratio * advantage)
    return loss, gradient


def loss_of(ratios, advantages, dtype=None):
    import torch

    dtype = dtype or torch.float64
    behaviour = torch.linspace(-3.0, -0.5, len(ratios), dtype=dtype)
    logprobs = (behaviour + torch.tensor(ratios, dtype=dtype).log()).requires_grad_()
    loss, statistics = policy_loss(
        logprobs, behaviour, torch.tensor(advantages, dtype=dtype), clip_low=CLIP_LOW, clip_high=CLIP_HIGH
    )
    loss.backward()
    return loss.item(), logprobs.grad.tolist(), {name: value.item() for name, value in statistics.items()}


def test_one_success_in_four_is_worth_the_square_root_of_three():
    """Rewards 1, 0, 0, 0: mean 1/4, centred 3/4 and -1/4, variance (9 + 3) / 16 / 4 = 3/16, deviation √3 / 4.

    3/4 : √3/4 = √3 and -1/4 : √3/4 = -1/√3. The 1e-6 in the denominator takes 4e-6 / √3 = 2.31e-6 of that.
    """
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0], normalise_std=True)
    shrunk = 1 - 4e-6 / math.sqrt(3)
    assert advantages == pytest.approx([math.sqrt(3) * shrunk] + [-shrunk / math.sqrt(3)] * 3, rel=1e-9)


def test_without_the_deviation_advantages_are_rewards_minus_their_mean():
    """Rewards 1, 0.5, 0, 0.5: mean 0.5."""
    assert group_advantages([1.0, 0.5, 0.0, 0.5], normalise_std=False) == [0.5, 0.0, -0.5, 0.0]


def test_the_deviation_is_the_one_of_the_population():
    """Rewards 1 and 0: centred ±1/2, population deviation 1/2, so ±1; the sample deviation 1/√2 would give ±0.71."""
    assert group_advantages([1.0, 0.0], normalise_std=True) == pytest.approx([1.0, -1.0], rel=3e-6)


@pytest.mark.parametrize("normalise_std", [True, False])
def test_equal_rewards_teach_nothing(normalise_std):
    assert group_advantages([0.7, 0.7, 0.7], normalise_std=normalise_std) == pytest.approx([0.0] * 3, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16), st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards, normalise_std):
    advantages = group_advantages(rewards, normalise_std=normalise_std)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-6)
    pairs = sorted(zip(rewards, advantages, strict=True))
    assert all(a <= b + 1e-12 for (_, a), (_, b) in itertools.pairwise(pairs))


def test_on_policy_the_loss_is_minus_the_advantages_and_nothing_is_clipped():
    """At ratio 1 a token contributes -A to the loss and, as d ratio / d logprob = ratio = 1, -A to the gradient."""
    loss, gradient, statistics = loss_of([1.0, 1.0, 1.0], [2.0, -1.0, 0.5])
    assert loss == pytest.approx(-1.5)
    assert gradient == pytest.approx([-2.0, 1.0, -0.5])
    assert statistics == pytest.approx({"clipped": 0.0, "kl": 0.0, "mismatch": 0.0}, abs=1e-12)


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
def test_one_token_is_clipped_only_where_it_already_moved_far_in_the_wanted_direction(ratio, advantage, loss, gradient):
    """Clip 0.2 below and 0.28 above; loss = -min(r A, clip(r) A), slope in logprob -r A, or 0 where clip(r) A wins."""
    found, slope, statistics = loss_of([ratio], [advantage])
    assert found == pytest.approx(loss)
    assert slope == pytest.approx([gradient], abs=1e-12)
    assert statistics["clipped"] == (1.0 if gradient == 0.0 else 0.0)


def test_tokens_add_up_and_so_do_their_statistics():
    """Ratios 1, 3/2, 1/2 for A = 2 and again for A = -1.

    Surrogate 2 + 2.56 + 1 - 1 - 1.5 - 0.8 = 2.26. Clipped: the second and the last. k3 = r - 1 - ln r:
    0.5 - ln 1.5 and -0.5 + ln 2, twice each: 2 (ln 2 - ln 1.5) = 2 ln (4/3). Mismatch: 2 (ln 1.5 + ln 2) = 2 ln 3.
    """
    loss, _, statistics = loss_of([1.0, 1.5, 0.5] * 2, [2.0] * 3 + [-1.0] * 3)
    assert loss == pytest.approx(-2.26)
    assert statistics == pytest.approx({"clipped": 2.0, "kl": 2 * math.log(4 / 3), "mismatch": 2 * math.log(3)})


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(-6, 0), st.floats(-6, 0), st.floats(-3, 3)), min_size=1, max_size=20),
    st.floats(0.01, 0.9),
    st.floats(0.01, 2.0),
)
def test_loss_and_gradient_follow_the_definition(tokens, clip_low, clip_high):
    import torch

    now, then, advantages = (list(column) for column in zip(*tokens, strict=True))
    loss, gradient = reference(now, then, advantages, clip_low, clip_high)
    logprobs = torch.tensor(now, dtype=torch.float64, requires_grad=True)
    behaviour, weights = (torch.tensor(x, dtype=torch.float64) for x in (then, advantages))
    found, _ = policy_loss(logprobs, behaviour, weights, clip_low=clip_low, clip_high=clip_high)
    found.backward()
    assert logprobs.grad is not None
    assert found.item() == pytest.approx(loss, rel=1e-9, abs=1e-9)
    assert logprobs.grad.tolist() == pytest.approx(gradient, rel=1e-9, abs=1e-9)


def test_the_gradient_is_the_slope_of_the_loss():
    """Finite differences in float64, away from the two kinks (ratios 0.8 and 1.28)."""
    import torch

    difference = torch.tensor([0.0, 0.1, 0.4, -0.1, -0.5, 1.0, -2.0], dtype=torch.float64)
    behaviour = torch.full_like(difference, -1.5)
    advantages = torch.tensor([1.0, -2.0, 0.5, -0.5, 1.5, -1.0, 2.0], dtype=torch.float64)

    def loss(logprobs):
        return policy_loss(logprobs, behaviour, advantages, clip_low=CLIP_LOW, clip_high=CLIP_HIGH)[0]

    assert torch.autograd.gradcheck(loss, (behaviour + difference).requires_grad_())


def test_float32_agrees_with_float64():
    import torch

    ratios, advantages = [0.9, 1.0, 1.1, 1.27, 1.5, 0.3], [1.0, -1.0, 0.3, 2.0, -0.7, 1.2]
    double, single = loss_of(ratios, advantages), loss_of(ratios, advantages, torch.float32)
    assert single[0] == pytest.approx(double[0], rel=1e-5)
    assert single[1] == pytest.approx(double[1], rel=1e-5, abs=1e-6)


def test_statistics_carry_no_gradient():
    import torch

    logprobs = torch.zeros(3, requires_grad=True)
    _, statistics = policy_loss(logprobs, torch.zeros(3), torch.ones(3), clip_low=0.2, clip_high=0.2)
    assert not [name for name, value in statistics.items() if value.requires_grad]


def test_no_tokens_are_a_zero_loss_that_can_be_differentiated():
    """A rank without rows of its own still takes part in every backward pass."""
    import torch

    logprobs = torch.zeros(0, requires_grad=True)
    loss, statistics = policy_loss(logprobs, torch.zeros(0), torch.zeros(0), clip_low=0.2, clip_high=0.2)
    loss.backward()
    assert loss.item() == 0.0
    assert all(value.item() == 0.0 for value in statistics.values())
