"""Low-rank adapters (Hu et al. 2021) through PEFT: inject, switch off, name for the engines, merge.

Only adapters travel to the engines and into checkpoints. Whoever holds the base weights adds them up with
``merge_adapters``; the scale is already in the ``lora_B`` that travels, so W' = W + B · A needs no setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.config import LoraConfig

if TYPE_CHECKING:
    import torch

ADAPTER = "default"
"""PEFT's name of the one adapter."""


def inject(model: Any, config: LoraConfig) -> None:
    """Put adapters beside the chosen linear layers, in place, and freeze everything else. B starts at zero.

    Raises :class:`ModuleNotFoundError` without PEFT, :class:`ValueError` if no layer has a chosen name.
    """
    try:
        import peft
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("learner.lora needs PEFT: pip install 'envwright[lora]'") from error
    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    model.requires_grad_(False)
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=targets), model
    )
    model.register_state_dict_post_hook(_keep_adapters)


def _keep_adapters(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
    """DeepSpeed leaves frozen weights out of checkpoints, but not a head that is tied to the embeddings."""
    for name in [name for name in state if name.startswith(prefix) and ".lora_" not in name]:
        del state[name]


@contextmanager
def switched_off(model: Any, policy: Any) -> Iterator[Any]:
    """Within, ``policy``, which runs ``model``, is that of the base model: the adapters' part is multiplied by zero."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.set_scale(ADAPTER, 0.0)
    try:
        yield policy
    finally:
        for layer in layers:
            layer.set_scale(ADAPTER, 1.0)


def adapters(pairs: Iterable[tuple[str, torch.Tensor]], config: LoraConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The adapters among a model's parameters as they travel: ``LAYER.lora_A.weight`` (rank, in) and
    ``LAYER.lora_B.weight`` (out, rank), the latter in float32 and times alpha / rank."""
    for name, tensor in pairs:
        plain = name.replace(f".{ADAPTER}.weight", ".weight")
        if plain.endswith(".lora_A.weight"):
            yield plain, tensor
        elif plain.endswith(".lora_B.weight"):
            yield plain, tensor.float() * (config.alpha / config.rank)


def merged(pairs: Sequence[tuple[str, torch.Tensor]], config: LoraConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters of a model with adapters → the (Hugging Face name, tensor) pairs of a plain model."""
    base = ((name.replace(".base_layer.", "."), tensor) for name, tensor in pairs if ".lora_" not in name)
    return merge_adapters(base, adapters(pairs, config))


def merge_adapters(
    pairs: Iterable[tuple[str, torch.Tensor]], adapters: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """All (Hugging Face name, tensor) ``pairs`` of the base model, with W + B · A where there is an adapter.

    The sum is made in float32 and has the base tensor's dtype. Raises :class:`ValueError` if an adapter has no base.
    """
    left = dict(adapters)
    for name, tensor in pairs:
        module = name.removesuffix(".weight")
        down, up = left.pop(f"{module}.lora_A.weight", None), left.pop(f"{module}.lora_B.weight", None)
        if down is None or up is None:
            yield name, tensor
        else:
            yield name, (tensor.float() + up.float() @ down.float()).to(tensor.dtype)
    if left:
        raise ValueError(f"adapters without a layer in the base model: {', '.join(sorted(left))}")


def base_weights(model: str) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, tensor) pairs of a model directory or hub name, one at a time, in their stored dtype."""
    from huggingface_hub import snapshot_download
    from safetensors import safe_open

    folder = Path(model) if Path(model).is_dir() else Path(snapshot_download(model, allow_patterns=["*.safetensors"]))
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                yield name, file.get_tensor(name)
