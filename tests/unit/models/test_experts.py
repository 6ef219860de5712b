"""Experts by grouped products equal transformers' own: outputs, gradients, adapters beside them, and autocast."""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode

from paceline.config.sections import LoraConfig
from paceline.errors import ModelError
from paceline.kernels.cpu.experts import SILU, Gate, weighted_experts
from paceline.kernels.grouped import grouped_product, groups_of
from paceline.models.attention import NAME
from paceline.models.experts import expert_parameters, experts_by, frozen_experts, mixtures, serve_experts
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.lora import add_adapter
from tests.support.exact import Float64Kept
from tests.support.families import family, make_model

FAMILIES = (
    *("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "gpt_oss", "glm4_moe", "glm4_moe_lite"),
    *("deepseek_v3", "lfm2_moe", "granitemoe", "granitemoehybrid", "nemotron_h", "olmoe", "mixtral, router jitter"),
    *("afmoe", "laguna", "cohere2_moe"),
)


def experts_of(name, dtype):
    """One module of experts with weights of this precision, and states and routes for it; expert 2 has no rows."""
    module = copy.deepcopy(mixtures(make_model(family(name)))[0]).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    inputs = module.down_proj.shape[2 if module.is_transposed else 1]
    x = torch.randn(11, inputs, generator=generator, dtype=dtype).requires_grad_()
    index = torch.stack([torch.randperm(3, generator=generator)[:2] for _ in x])
    index = torch.where(index == 2, 3, index)
    weights = torch.rand(11, 2, generator=generator, dtype=dtype).requires_grad_()
    return module, (x, index, weights)


def of(module, inputs, by):
    """Output and gradients of states, weights of routes and parameters."""
    module.config._experts_implementation = by
    out = module(*inputs)
    share = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    leaves = [inputs[0], inputs[2], *module.parameters()]
    return [out, *torch.autograd.grad((share * out).sum(), leaves, allow_unused=True)]


def far(got, wanted):
    return max(
        float((one - other).detach().abs().max() / other.detach().abs().max().clamp_min(1e-12))
        for one, other in zip(got, wanted, strict=True)
    )


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_gradients_are_those_of_transformers_own(name, dtype, limit):
    module, inputs = experts_of(name, dtype)
    wanted = of(module, inputs, "eager")
    got = of(module, inputs, NAME)
    assert far(got, wanted) < limit
    for gradient in got[3:]:
        assert torch.equal(gradient[2], torch.zeros_like(gradient[2]))  # not None: ranks and AdamW agree on it


def test_a_model_computes_by_these_experts_once_they_give_its_states():
    model = make_model(family("qwen3_moe")).to(torch.float64)
    model.set_experts_implementation("eager")
    with Float64Kept():
        forward = choose_forward(model)
    assert (forward.kind, forward.experts, experts_by(model)) == ("packed", "", NAME)


def test_experts_that_differ_are_left_to_transformers_and_named(monkeypatch):
    model = make_model(family("qwen3_moe")).to(torch.float64)
    model.set_experts_implementation("eager")

    def wrong(x, weight, groups):
        return x.new_ones(len(x), weight.shape[1])

    monkeypatch.setattr("paceline.models.experts.grouped_product", wrong)
    with Float64Kept():
        forward = choose_forward(model)
    assert forward.experts.startswith("hidden states differ by ")
    assert experts_by(model) == "eager"


@pytest.mark.parametrize(
    ("name", "gate"),
    [("qwen3_moe", SILU), ("gpt_oss", Gate(kind="clamped", alpha=1.702, limit=7.0)), ("nemotron_h", None)],
)
def test_a_kernel_computes_experts_whose_gate_it_knows(name, gate, monkeypatch):
    module, inputs = experts_of(name, torch.float32)
    calls = []

    def noted(x, choices, weights, experts):
        calls.append(experts.gate)
        return weighted_experts(x, choices, weights, experts)

    monkeypatch.setattr("paceline.models.experts.weighted_experts", noted)
    of(module, inputs, NAME)
    assert calls == ([] if gate is None else [gate])


def test_a_gate_that_the_kernel_does_not_know_is_the_modules_own():
    module, inputs = experts_of("qwen3_moe", torch.float32)
    module.act_fn = torch.nn.GELU()
    assert far(of(module, inputs, NAME), of(module, inputs, "eager")) < 1e-6
    assert module.known_gate is None


class Seen(TorchFunctionMode):
    """Notes the precision of grouped products."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch._grouped_mm:
            self.dtypes |= {args[0].dtype, args[1].dtype}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_under_autocast_products_are_in_bfloat16_and_gradients_in_float32(name):
    module, inputs = experts_of(name, torch.float32)
    wanted = of(module, inputs, "eager")
    with torch.autocast("cpu", torch.bfloat16), Seen() as seen:
        got = of(module, inputs, NAME)
    assert seen.dtypes == {torch.bfloat16}
    assert {gradient.dtype for gradient in got} == {torch.float32}
    assert 1e-4 < far(got, wanted) < 5e-2


def test_sides_that_torchs_grouped_product_refuses_are_products_of_each_group():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 7, generator=generator), torch.randn(3, 9, 7, generator=generator)
    group = torch.tensor([2, 0, 2, 2, 0])
    groups = groups_of(group, 3)
    assert groups.order.tolist() == [1, 4, 0, 2, 3]
    assert groups.borders == [0, 2, 2, 5]
    got = grouped_product(x[groups.order], weight, groups)
    wanted = torch.stack([x[row] @ weight[group[row]].T for row in groups.order])
    assert torch.allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_rows_at_all_give_gradients_of_zero(dtype):
    weight = torch.randn(3, 8, 4, dtype=dtype, requires_grad=True)
    out = grouped_product(torch.zeros(0, 4, dtype=dtype), weight, groups_of(torch.zeros(0, dtype=torch.int64), 3))
    out.sum().backward()
    assert out.shape == (0, 8)
    assert torch.equal(weight.grad, torch.zeros(3, 8, 4, dtype=dtype))


def adapted(name, dtype, by):
    """A model with peft's adapter beside queries and all experts, its second matrices not zero."""
    model = make_model(family(name)).to(dtype).train()
    model.set_experts_implementation("eager")
    loaded = Loaded(model=model, compute_dtype=dtype)
    loaded = add_adapter(loaded, LoraConfig(lora_rank=3, lora_targets=("q_proj",), lora_parameters=("all-experts",)))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    assert serve_experts(model, by) is None
    return loaded


def logits_and_gradients(model):
    tokens = torch.arange(24).view(2, 12) % 200
    logits = model(tokens, use_cache=False).logits
    share = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    gradients = torch.autograd.grad((share * logits).sum(), list(trained.values()))
    return {"logits": logits, **dict(zip(trained, gradients, strict=True))}


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "nemotron_h", "granitemoe"])
def test_an_adapter_beside_experts_gives_what_pefts_own_pass_gives(name):
    with Float64Kept():
        wanted = logits_and_gradients(adapted(name, torch.float64, "eager").model)
        loaded = adapted(name, torch.float64, NAME)
        got = logits_and_gradients(loaded.model)
        assert got.keys() == wanted.keys()
        assert sum("experts" in key for key in wanted) >= 4
        assert far(got.values(), wanted.values()) < 1e-6
        assert frozen_experts(loaded.model) == 0
        with torch.no_grad(), loaded.without_adapter():
            bare = loaded.model(torch.arange(12)[None]).logits
        with torch.no_grad():
            merged = copy.deepcopy(loaded.adapter).merge_and_unload()
            whole = merged(torch.arange(12)[None]).logits
            assert far([whole], [loaded.model(torch.arange(12)[None]).logits]) < 1e-10
            assert far([bare], [whole]) > 1e-3


def test_no_product_of_an_adapters_matrices_is_made_for_whole_experts(monkeypatch):
    model = adapted("qwen3_moe", torch.float32, NAME).model

    def refuse(*_, **__):
        raise AssertionError("the parameter itself was changed")

    monkeypatch.setattr(torch.nn.utils.parametrize, "register_parametrization", refuse)
    model(torch.arange(12)[None])


def test_all_linear_leaves_experts_frozen_and_names_are_checked():
    model = make_model(family("gpt_oss"))
    assert expert_parameters(model) == ["experts.gate_up_proj", "experts.down_proj"]
    loaded = add_adapter(Loaded(model=model, compute_dtype=torch.float32), LoraConfig(lora_rank=2))
    assert frozen_experts(loaded.model) == sum(
        weight.numel() for key, weight in loaded.model.named_parameters() if key.endswith(("up_proj", "down_proj"))
    )
    plain = Loaded(model=make_model(family("qwen3_moe")), compute_dtype=torch.float32)
    with pytest.raises(ModelError, match=r"--lora-parameters must name matrices of the model, got 'experts\.down'"):
        add_adapter(plain, LoraConfig(lora_rank=2, lora_parameters=("experts.down",)))
    dense = Loaded(model=make_model(family("qwen3")), compute_dtype=torch.float32)
    with pytest.raises(ModelError, match="--lora-parameters must be left out of a model without experts"):
        add_adapter(dense, LoraConfig(lora_rank=2, lora_parameters=("all-experts",)))
