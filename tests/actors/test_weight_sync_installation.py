"""How tensors get into a vLLM model without its own reload, and when not; how shards are gathered."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.config import AlgorithmConfig
from actors.weights.gathering import buckets
from actors.weights.installation import Installer, Target, find_installer, stacked
from actors.weights.receiver import Receiver, with_head


def numbers(*shape):
    import torch

    return torch.arange(float(torch.Size(shape).numel())).view(shape)


# ------------------------------------------------------------------------------------------------------------- stacking


@settings(deadline=None, derandomize=True, max_examples=50)
@given(rows=st.lists(st.integers(1, 4), min_size=1, max_size=4), apart=st.booleans(), width=st.integers(1, 3))
def test_parts_that_lie_below_each_other_are_stacked_without_a_copy(rows, apart, width):
    import torch

    whole = numbers(sum(rows), width)
    parts = list(whole.split(rows))
    if apart:
        parts = [part.clone() for part in parts]
    found = stacked(parts)
    assert torch.equal(found, whole)
    assert (found.data_ptr() == whole.data_ptr()) is (not apart)


def test_parts_in_another_order_or_of_another_layout_are_copied():
    import torch

    first, second = numbers(4, 3).split([2, 2])
    assert torch.equal(stacked([second, first]), torch.cat([second, first]))
    turned = numbers(3, 4).T
    assert torch.equal(stacked([turned[:2], turned[2:]]), turned)


# ----------------------------------------------------------------------------------------------------------- installer


class PlainMethod:
    """Packs by reference: what a kernel without a form of its own would do."""

    def process_weights_after_loading(self, layer):
        import torch

        weight = layer.weight.data
        layer.apply_packed = lambda x: x @ weight.T
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def apply(self, layer, x):
        return layer.apply_packed(x)


class CopyingMethod(PlainMethod):
    """Packs a copy, as oneDNN does."""

    def process_weights_after_loading(self, layer):
        layer.weight.data = layer.weight.data.clone()
        super().process_weights_after_loading(layer)


class KeepingMethod(PlainMethod):
    """Has no packed form: computes with the layer's weight."""

    def process_weights_after_loading(self, layer):
        layer.apply_packed = lambda x: x @ layer.weight.T


def qwen(method, **attributes):
    """A model of one stacked projection and a norm, by the names and attributes that vLLM's have."""
    import torch

    class UnquantizedLinearMethod(method):
        pass

    class RMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3), requires_grad=False)

    class QKVParallelLinear(torch.nn.Module):
        tp_size, output_size, input_size = 1, 4, 3

        def __init__(self):
            super().__init__()
            self.quant_method = UnquantizedLinearMethod()
            self.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            self.bias = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens, self.norm, self.qkv_proj = None, RMSNorm(), QKVParallelLinear()

    class Qwen3ForCausalLM(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.packed_modules_mapping = Inner(), {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    model = Qwen3ForCausalLM()
    for name, value in attributes.items():
        setattr(model.model.qkv_proj, name, value)
    return model


def checkpoint(scale=1.0):
    names = {"q_proj": 2, "k_proj": 1, "v_proj": 1}
    tensors = {f"model.{name}.weight": numbers(rows, 3) * scale for name, rows in names.items()}
    biases = {f"model.{name}.bias": numbers(rows) - scale for name, rows in names.items()}
    return tensors | biases | {"model.norm.weight": numbers(3) * scale}


@pytest.mark.parametrize("method", [CopyingMethod, KeepingMethod])
def test_weights_are_installed_again_and_again_and_need_not_outlive_it(method):
    """By hand: the packed weight is q, k and v below each other, whatever happens to the tensors afterwards."""
    import torch

    model = qwen(method)
    installer = find_installer(model, torch.float32)
    for scale in (1.0, 2.0, 3.0):
        tensors = checkpoint(scale)
        whole = torch.cat([tensors[f"model.{name}_proj.weight"] for name in "qkv"])
        bias = torch.cat([tensors[f"model.{name}_proj.bias"] for name in "qkv"])
        norm = tensors["model.norm.weight"].clone()
        assert installer.fits(tensors)
        installer.install(tensors)
        for tensor in tensors.values():
            tensor.zero_()
        layer = model.model.qkv_proj
        assert torch.equal(layer.quant_method.apply(layer, torch.eye(3)), whole.T)
        assert torch.equal(layer.bias, bias) and torch.equal(model.model.norm.weight, norm)


def test_a_kernel_that_would_go_on_reading_the_transports_memory_gets_no_installer():
    """Such weights would change under the engine with the next version but one."""
    import torch

    assert find_installer(qwen(PlainMethod), torch.float32) is None
    assert find_installer(qwen(CopyingMethod), torch.float32) is not None


@pytest.mark.parametrize(
    "unknown", [{"tp_size": 2}, {"quant_method": PlainMethod()}, {"weight": None}], ids=["sharded", "quantised", "none"]
)
def test_a_layout_that_is_not_known_gets_no_installer(unknown):
    import torch

    model = qwen(CopyingMethod, **unknown)
    found = find_installer(model, torch.float32)
    assert found is None or not found.fits(checkpoint())
    type(model).__name__ = "AnotherForCausalLM"
    assert find_installer(qwen(CopyingMethod), torch.float32) is not None
    assert find_installer(model, torch.float32) is None


@pytest.mark.parametrize("change", ["missing", "extra", "rows", "width", "flat"])
def test_only_the_models_own_tensors_fit(change):
    import torch

    tensors, name = checkpoint(), "model.q_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "extra":
        tensors["model.other.weight"] = numbers(2, 3)
    else:
        tensors[name] = {"rows": numbers(3, 3), "width": numbers(2, 4), "flat": numbers(6)}[change]
    assert not find_installer(qwen(CopyingMethod), torch.float32).fits(tensors)


def test_tensors_that_do_not_fit_are_reloaded_the_public_way():
    """With the head beside a tied embedding, which vLLM's reload would leave at its old packed weights."""
    calls = []
    config = SimpleNamespace(hf_config=SimpleNamespace(tie_word_embeddings=True))
    llm = SimpleNamespace(
        llm_engine=SimpleNamespace(model_config=config),
        collective_rpc=lambda name, kwargs: calls.append((name, [n for n, _ in kwargs["weights_iterator"]])),
    )
    receiver = Receiver(llm, dict, on_cpu=True)
    module = SimpleNamespace()
    receiver.installer = Installer([Target(module, "weight", ("other",), (2, 3))], None)
    receiver._install({"model.embed_tokens.weight": numbers(2, 3), "model.norm.weight": numbers(3)})
    assert calls == [("reload_weights", ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"])]


def test_an_untied_model_is_reloaded_as_it_is():
    pairs = [("model.embed_tokens.weight", 1), ("lm_head.weight", 2)]
    assert list(with_head(pairs, tied=False)) == pairs


# ------------------------------------------------------------------------------------------------------------ gathering


@settings(deadline=None, derandomize=True, max_examples=50)
@given(sizes=st.lists(st.integers(1, 50), max_size=12), limit=st.integers(1, 300))
def test_buckets_hold_all_parameters_in_order_up_to_the_limit(sizes, limit):
    named = [(f"p{i}", numbers(size)) for i, size in enumerate(sizes)]
    found = list(buckets(named, limit))
    assert [pair for bucket in found for pair in bucket] == named
    weights = [sum(4 * len(tensor) for _, tensor in bucket) for bucket in found]
    assert all(weight <= limit or len(bucket) == 1 for weight, bucket in zip(weights, found, strict=True))
    assert all(a + 4 * len(b[0][1]) > limit for a, b in zip(weights, found[1:], strict=False))


@pytest.mark.parametrize("bucket_bytes", [1, 20_000, 1 << 30])
def test_shards_of_two_ranks_are_gathered_whole_by_the_bucket(learner, model_directory, bucket_bytes):
    """Each rank sees the model's own weights for a moment, and has its shards again afterwards."""
    import ray
    import torch
    from transformers import AutoModelForCausalLM

    directory = model_directory(tied=True)
    group = learner(2)(directory, AlgorithmConfig(), zero_stage=3)

    def gather(rank):
        from actors.weights.gathering import gathered

        named = list(rank.model.named_parameters())
        pairs = gathered(named, sharded=True, bucket_bytes=bucket_bytes)
        found = {name: tensor.numpy().copy() for name, tensor in pairs}
        return found, sum(parameter.numel() for _, parameter in named)

    results = ray.get([rank.__ray_call__.remote(gather) for rank in group._ranks], timeout=120)
    model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
    for found, left in results:
        assert found.keys() == dict(model.named_parameters()).keys()
        assert all((found[name] == parameter.detach().numpy()).all() for name, parameter in model.named_parameters())
        assert left < sum(parameter.numel() for parameter in model.parameters())
