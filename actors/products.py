"""Matrix products of linear layers on CPUs by oneDNN, which PyTorch takes from MKL in float32.

On AMD EPYC and some hundred columns oneDNN is a tenth to a fifth faster, but makes code for every number of rows anew,
so packs are padded to a multiple of :data:`ROWS`. An operator of our own, since compiled graphs take PyTorch's for
constant weights only.
"""

from __future__ import annotations

from typing import Any

import torch

from actors.config import LearnerConfig

ROWS = 64

torch.library.define("envwright::linear", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


def usable(config: LearnerConfig) -> bool:
    """Whether the products of a learner that packs its rows are oneDNN's: compiled layers in float32 on a CPU."""
    return config.compile and not config.gpus and config.dtype == "float32" and torch.backends.mkldnn.is_available()


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias`` of x (..., in) and weight (out, in), float32."""
    out: torch.Tensor = torch.ops.envwright.linear(x, weight, bias)
    return out


@torch.library.impl("envwright::linear", "CPU")
def _on_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    if not x.numel():
        return torch.nn.functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@torch.library.register_fake("envwright::linear")
def _shape(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The weight's gradient sums over many rows for few columns, where MKL is the faster one."""
    x, weight = ctx.saved_tensors
    rows = grad.flatten(0, -2)
    return (
        linear(grad.contiguous(), weight.t(), None) if ctx.needs_input_grad[0] else None,
        rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None,
        rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None,
    )


torch.library.register_autograd("envwright::linear", _backward, setup_context=_keep)


class Linear(torch.nn.Linear):
    """A linear layer with these products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) → (..., out)."""
        return linear(x, self.weight, self.bias)


def use_onednn(model: torch.nn.Module) -> None:
    """Give all plain linear layers of a model these products."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Linear
