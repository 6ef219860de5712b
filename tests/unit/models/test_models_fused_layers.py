"""Layers with kernels have the hidden states and gradients of the family's own layers."""

from contextlib import nullcontext

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from paceline.config.sections import LoraConfig
from paceline.kernels.cpu.compiling import library
from paceline.models.activations import recompute
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.fused_layers import FusedLayer, fuse_layers, restore_layers
from paceline.models.loaded import Loaded
from paceline.models.lora import add_adapter, make_lora_config
from paceline.objective.micro_batches import MicroBatch, pack
from tests.support.episodes import sample as make_sample
from tests.support.tiny import tiny_model

needs_kernels = pytest.mark.skipif(library().functions is None, reason=library().reason)

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
PACKED = PolicyForward(kind="packed", reason="")


def wide_model(family: str = "qwen2") -> PreTrainedModel:
    """As `tests.support.tiny.tiny_model`, with heads of 16, which the kernels take."""
    config, model = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model(
            config(
                vocab_size=260,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=512,
                initializer_range=0.2,
                **({} if family == "qwen2" else {"head_dim": 16}),
                **({"sliding_window": None} if family == "mistral" else {}),
            )
        ).train()


def batch(dtype: torch.dtype = torch.float32) -> MicroBatch:
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(256, (length,), generator=generator).tolist())

    prompts = [ids(9), ids(40)]
    samples = [
        make_sample(group=group, prompt_ids=prompts[group], completion_ids=ids(n), advantage=1.0)
        for group, n in ((0, 5), (0, 1), (1, 30), (1, 12))
    ]
    return pack(samples, [1.0] * 4, range(4), dtype=dtype)


def hidden_and_gradient(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Hidden states, and the gradient of every trainable weight; `dtype` is the precision of the computation."""
    model.zero_grad()
    half = torch.autocast("cpu", dtype=dtype) if dtype == torch.bfloat16 else nullcontext()
    with half:
        hidden = PACKED(model, batch())
    outside = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden.float() * outside).sum().backward()
    grads = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return [hidden.detach().float(), torch.cat(grads)]


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_layers_have_the_same_hidden_states_and_gradients_with_kernels(family):
    model = wide_model(family)
    assert choose_forward(model) == PACKED
    assert all(isinstance(layer, FusedLayer) for layer in model.model.layers)
    fused, half = hidden_and_gradient(model), hidden_and_gradient(model, torch.bfloat16)
    restore_layers(model)
    exact, rounded = hidden_and_gradient(model), hidden_and_gradient(model, torch.bfloat16)
    for place in range(2):
        assert relative(fused[place], exact[place]) < 1e-5
        # rounding differs between the two, so both are held to float32's result
        assert relative(half[place], exact[place]) < 1.2 * relative(rounded[place], exact[place])


@needs_kernels
def test_recomputed_activations_give_the_same_gradient():
    model = wide_model()
    choose_forward(model)
    plain = hidden_and_gradient(model)[1]
    recompute(model, None)
    assert torch.equal(hidden_and_gradient(model)[1], plain)


@needs_kernels
def test_an_adapter_gets_its_gradient_and_the_frozen_weights_none():
    model = wide_model()
    loaded = Loaded(model=model, compute_dtype=torch.float32)
    add_adapter(loaded, make_lora_config(LoraConfig(lora_rank=2)))
    choose_forward(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.02)
    fused = hidden_and_gradient(model)
    assert all(("lora" in name) == (parameter.grad is not None) for name, parameter in model.named_parameters())
    restore_layers(model)
    for got, wanted in zip(fused, hidden_and_gradient(model), strict=True):
        assert relative(got, wanted) < 1e-5


def test_layers_keep_names_and_parameters_and_can_be_restored():
    model = wide_model()
    before = list(model.state_dict())
    assert fuse_layers(model)
    assert all(isinstance(layer, Qwen2DecoderLayer) for layer in model.model.layers)
    assert list(model.state_dict()) == before
    restore_layers(model)
    assert {type(layer) for layer in model.model.layers} == {Qwen2DecoderLayer}


def test_float64_and_odd_heads_take_the_layers_own_forward_pass():
    for model in (wide_model().double(), tiny_model("qwen2")):  # heads of 8 in the second
        assert choose_forward(model) == PACKED
        fused = PACKED(model, batch(model.dtype))
        restore_layers(model)
        assert torch.equal(fused, PACKED(model, batch(model.dtype)))


def test_a_layer_with_a_part_of_another_class_takes_its_own_forward_pass():
    class Halved(type(wide_model().model.norm)):
        def forward(self, hidden_states):
            return super().forward(hidden_states) / 2

    model = wide_model()
    for layer in model.model.layers:
        layer.input_layernorm.__class__ = Halved
    assert choose_forward(model) == PACKED
    fused = PACKED(model, batch())
    restore_layers(model)
    assert torch.equal(fused, PACKED(model, batch()))


def test_layers_of_a_users_own_class_are_left_alone():
    class Layer(Qwen2DecoderLayer):
        pass

    model = wide_model()
    for layer in model.model.layers:
        layer.__class__ = Layer
    assert not fuse_layers(model)
    assert {type(layer) for layer in model.model.layers} == {Layer}
