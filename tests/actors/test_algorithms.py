"""Every algorithm against a slow float64 reference, and what holds for all of them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.algorithms import policy_loss, training_metrics
from actors.algorithms.registry import ALGORITHMS
from actors.config import AlgorithmConfig
from tests.actors.algorithm_reference import NAMES, Sequence, objective, slow_loss, tensors, weights_of

LOG_PROB = st.floats(-4.0, 0.0)
TOKEN = st.tuples(LOG_PROB, LOG_PROB, LOG_PROB, LOG_PROB)
SEQUENCE = st.builds(
    lambda tokens, advantage: Sequence(*(list(x) for x in zip(*tokens, strict=True)), advantage=advantage),
    st.lists(TOKEN, min_size=1, max_size=5),
    st.floats(-3.0, 3.0),
)
SEQUENCES = st.lists(SEQUENCE, min_size=1, max_size=4)
CORRECTION = st.fixed_dictionaries(
    {
        "level": st.sampled_from(["auto", "none", "token", "sequence", "geometric"]),
        "mode": st.sampled_from(["truncate", "mask"]),
        "low": st.none() | st.floats(0.0, 0.9),
        "high": st.none() | st.floats(1.1, 9.0),
    }
)
KL = st.fixed_dictionaries(
    {
        "coefficient": st.sampled_from([0.0, 0.3]),
        "estimator": st.none() | st.sampled_from(["k1", "k2", "k3"]),
        "place": st.none() | st.sampled_from(["loss", "reward"]),
    }
)
OBJECTIVE = st.builds(
    objective,
    st.sampled_from(NAMES),
    lag=st.integers(0, 1),
    clip_low=st.none() | st.floats(0.01, 0.9),
    clip_high=st.none() | st.floats(0.01, 2.0),
    aggregation=st.none() | st.sampled_from(["token", "sequence", "constant"]),
    correction=CORRECTION,
    kl=KL,
)


def differentiated(tokens, choices):
    loss, statistics = policy_loss(tokens, choices)
    loss.backward()
    return loss.item(), tokens.logprobs.grad.tolist(), {name: value.item() for name, value in statistics.items()}


def test_the_configuration_and_the_tests_know_every_algorithm():
    assert set(AlgorithmConfig.model_fields["name"].annotation.__args__) == set(ALGORITHMS) == set(NAMES)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(SEQUENCES, OBJECTIVE)
def test_loss_gradient_and_statistics_follow_the_definitions(sequences, choices):
    weights = weights_of(sequences, choices)
    loss, gradient, sums = slow_loss(sequences, weights, choices)
    found, slopes, statistics = differentiated(tensors(sequences, weights), choices)
    assert found == pytest.approx(loss, rel=1e-9, abs=1e-9)
    assert slopes == pytest.approx(gradient, rel=1e-9, abs=1e-9)
    assert statistics == pytest.approx(sums, rel=1e-9, abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(SEQUENCES, OBJECTIVE, st.data())
def test_micro_batches_add_up_to_the_batch(sequences, choices, data):
    """In any order and any cut: loss, gradient and statistics."""
    order = data.draw(st.permutations(range(len(sequences))))
    cuts = data.draw(st.sets(st.integers(1, len(sequences))))
    weights = weights_of(sequences, choices)
    loss, gradient, sums = differentiated(tensors([sequences[i] for i in order], [weights[i] for i in order]), choices)
    parts, start = [], 0
    for end in sorted(cuts | {len(sequences)}):
        part = order[start:end]
        parts.append(differentiated(tensors([sequences[i] for i in part], [weights[i] for i in part]), choices))
        start = end
    assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-9, abs=1e-9)
    assert [x for part in parts for x in part[1]] == pytest.approx(gradient, rel=1e-9, abs=1e-9)
    for name, value in sums.items():
        assert sum(part[2][name] for part in parts) == pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cispo"])
def test_the_gradient_is_the_slope_of_the_loss(name):
    """Central differences in float64, away from kinks; CISPO's weight is a constant in its gradient but not its value.

    For GSPO this shows that the token form has the gradient of the sequence's ratio.
    """
    import torch

    choices = objective(name, clip_low=0.2, clip_high=0.28, kl={"coefficient": 0.1, "estimator": "k3", "place": "loss"})
    differences = ([0.1, 0.4, -0.1], [-0.5, 1.0], [0.05, -0.1, 0.02, 0.01], [-2.0])
    sequences = [
        Sequence([d - 1.5 for d in ds], [-1.5] * len(ds), [-1.5] * len(ds), [-1.3] * len(ds), advantage)
        for ds, advantage in zip(differences, (1.0, -2.0, 0.5, 2.0), strict=True)
    ]
    tokens = tensors(sequences, weights_of(sequences, choices))

    def loss(logprobs):
        return policy_loss(replace(tokens, logprobs=logprobs), choices)[0]

    assert torch.autograd.gradcheck(loss, (tokens.logprobs,))


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_prefers_the_rewarded_action(name):
    """A softmax over three actions, each sampled twice, the first rewarded: one step along the gradient raises it."""
    import torch

    choices = objective(name)
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    actions = [0, 1, 2, 0, 1, 2]
    rewards = [1.0 if action == 0 else 0.0 for action in actions]
    (advantages,) = ALGORITHMS[name].advantages([rewards], choices.normalise_std)
    then = [math.log(1 / 3)]
    sequences = [Sequence(then, then, then, then, advantage) for advantage in advantages]
    tokens = replace(tensors(sequences, weights_of(sequences, choices)), logprobs=logits.log_softmax(-1)[actions])
    policy_loss(tokens, choices)[0].backward()
    after = (logits - 0.1 * logits.grad).softmax(-1).tolist()
    assert after[0] > 1 / 3 + 1e-4 and after[1] == pytest.approx(after[2])


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_algorithm_takes_the_same_step(name):
    """At ratio 1 nothing is clipped, and d loss / d logprob = -weight · advantage whatever the surrogate."""
    choices = objective(name, aggregation="token")
    sequences = [Sequence(x, x, x, x, a) for x, a in (([-1.0, -2.0], 2.0), ([-0.5], -1.0))]
    _, gradient, statistics = differentiated(tensors(sequences, weights_of(sequences, choices)), choices)
    assert gradient == pytest.approx([-2 / 3, -2 / 3, 1 / 3])
    assert statistics == pytest.approx(
        {"clipped": 0, "kl": 0, "mismatch": 0, "masked": 0, "weight": 3, "weight_squared": 3}
    )


def test_weights_per_token_change_no_bit_of_a_token_mean():
    """The sum divided by the token count, written out, and the weighted sum: equal float32 gradients."""
    import torch

    generator = torch.Generator().manual_seed(0)
    behaviour = -2.0 * torch.rand(1000, generator=generator)
    start = behaviour + 0.3 * torch.randn(1000, generator=generator)
    advantages = torch.randn(1000, generator=generator)
    plain = start.clone().requires_grad_()
    ratio = (plain - behaviour).exp()
    loss = -(ratio * advantages).minimum(ratio.clamp(0.8, 1.28) * advantages).sum()
    (loss * (1.0 / 1000)).backward()

    choices = objective(clip_high=0.28, aggregation="token")
    sequences = [Sequence([0.0] * 10, [0.0] * 10, [0.0] * 10, [0.0] * 10, 0.0)] * 100
    tokens = tensors(sequences, weights_of(sequences, choices), torch.float32)
    weighted = start.clone().requires_grad_()
    tokens = replace(tokens, logprobs=weighted, old=behaviour, behaviour=behaviour, advantages=advantages)
    policy_loss(tokens, choices)[0].backward()
    assert torch.equal(weighted.grad, plain.grad)


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name):
    import torch

    choices = objective(name, lag=1, kl={"coefficient": 0.1, "place": "loss"})
    now = [-1.0, -0.2, -3.0, -0.7]
    sequences = [
        Sequence(now, [x - d for x in now], [x + d for x in now], [-1.0] * 4, a) for d, a in ((0.01, 1.0), (-0.2, -0.6))
    ]
    double, single = (
        differentiated(tensors(sequences, weights_of(sequences, choices), dtype), choices)
        for dtype in (torch.float64, torch.float32)
    )
    assert single[0] == pytest.approx(double[0], rel=1e-5)
    assert single[1] == pytest.approx(double[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_are_a_zero_loss_that_can_be_differentiated(name):
    """A rank without rows of its own still takes part in every backward pass, and reports the same statistics."""
    choices = objective(name, lag=1, kl={"coefficient": 0.1, "place": "loss"})
    some = [Sequence([-1.0], [-1.0], [-1.0], [-1.0], 1.0)]
    loss, _, statistics = differentiated(tensors([], []), choices)
    assert loss == 0.0 and set(statistics.values()) == {0.0}
    assert set(statistics) == set(differentiated(tensors(some, weights_of(some, choices)), choices)[2])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("difference", [-100.0, 100.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_policy_that_ran_away_gives_a_finite_gradient(name, difference, advantage):
    """e^89 is too much for float32, and its slope would be NaN even where the clip is flat."""
    import torch

    choices = objective(name, kl={"coefficient": 0.1, "estimator": "k3", "place": "loss"})
    other = [difference - 100.0] * 2
    sequences = [Sequence([-100.0] * 2, other, other, other, advantage)]
    _, gradient, statistics = differentiated(tensors(sequences, [0.5], torch.float32), choices)
    assert all(math.isfinite(value) for value in (*gradient, *statistics.values()))


def test_statistics_carry_no_gradient():
    choices = objective(lag=1, kl={"coefficient": 0.1})
    sequences = [Sequence([-1.0], [-1.1], [-1.2], [-1.3], 1.0)]
    _, statistics = policy_loss(tensors(sequences, [1.0]), choices)
    assert not [name for name, value in statistics.items() if value.requires_grad]


def test_a_kl_term_without_reference_log_probs_is_an_error():
    sequences = [Sequence([-1.0], [-1.0], [-1.0], [-1.0], 1.0)]
    tokens = replace(tensors(sequences, [1.0]), reference=None)
    with pytest.raises(ValueError, match=r"algorithm\.kl\.coefficient"):
        policy_loss(tokens, objective(kl={"coefficient": 0.1}))
    policy_loss(tokens, objective(kl={"coefficient": 0.1, "place": "reward"}))


def test_metrics_are_sums_over_the_tokens_of_the_batch():
    """Weights 1, 1, 2, 0 over four tokens: (Σ w)² / (n Σ w²) = 16 / (4 · 6) = 2/3."""
    sums = {
        "clipped": 1.0, "kl": 0.2, "mismatch": 0.4, "masked": 1.0, "weight": 4.0, "weight_squared": 6.0,
        "kl_loss": 0.03, "kl_reference": 2.0,
    }  # fmt: skip
    assert training_metrics(sums, 4) == pytest.approx(
        {
            "policy/clip_share": 0.25,
            "policy/kl_rollout": 0.05,
            "policy/mismatch": 0.1,
            "policy/masked_share": 0.25,
            "policy/kl_reference": 0.5,
            "policy/effective_sample_size": 2 / 3,
            "loss/kl": 0.03,
        }
    )
    empty = dict.fromkeys(("clipped", "kl", "mismatch", "masked", "weight", "weight_squared"), 0.0)
    assert training_metrics(empty | {"masked": 4.0}, 4)["policy/effective_sample_size"] == 0.0
