"""oneDNN's matrix products are PyTorch's, and so are their gradients."""

import pytest
import torch

from actors.config import LearnerConfig
from actors.products import Linear, linear, usable, use_onednn


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64, 24), (2, 7, 24), (1, 24), (0, 24)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_linear_layer_gives_the_values_and_gradients_of_torch(bias, shape, compiled):
    torch.manual_seed(0)
    plain = torch.nn.Linear(24, 40, bias=bias)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=bias))
    model[0].load_state_dict(plain.state_dict())
    use_onednn(model)
    assert type(model[0]) is Linear
    if compiled:
        model.compile(dynamic=True)
    x = torch.randn(shape, requires_grad=True)
    twin = x.detach().clone().requires_grad_(True)
    found, expected = model(x), plain(twin)
    # A gradient whose memory lies the other way round.
    weights = torch.randn(tuple(reversed(expected.shape))).permute(*reversed(range(expected.dim())))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(x.grad, twin.grad)
    for have, want in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(have.grad, want.grad)


def test_the_operator_keeps_the_rules_of_torch():
    """Shapes without data, gradients and compilation, as PyTorch's own check tests them."""
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.envwright.linear.default, (x, weight, None))
    assert linear(x, weight, None).shape == (3, 4)


def test_what_is_frozen_costs_no_gradient():
    layer = Linear(4, 3).requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None
    assert layer.bias.grad is None


@pytest.mark.parametrize("change", [{"compile": False}, {"dtype": "bfloat16"}, {"gpus": 1.0}])
def test_only_compiled_float32_layers_on_cpus_use_it(change):
    on = {"compile": True, "dtype": "float32", "gpus": 0.0}
    assert usable(LearnerConfig(**on))
    assert not usable(LearnerConfig(**(on | change)))


def test_layers_of_another_kind_stay_as_they_are():
    class Odd(torch.nn.Linear):
        """A subclass may do more than a product."""

    model = torch.nn.Sequential(Odd(4, 4))
    use_onednn(model)
    assert type(model[0]) is Odd
