"""Mixers with states go on from where a prompt ends as the model's own layers do, and forks of a state stay apart."""

import copy
import functools

import pytest
import torch

from paceline.engines.local.operations import choose_kernels
from paceline.engines.local.states import StateLayer, state_problem
from paceline.engines.local.weights import planned_layers, state_mixer
from paceline.kernels.cpu.decoding import decoding_kernels
from tests.support.exact import Float64Kept
from tests.support.families import family, make_model

CPU = torch.device("cpu")
MIXED = ("qwen3_next", "qwen3_5_text", "lfm2", "granitemoehybrid", "olmo_hybrid", "bamba")
"""Families with each kind of mixer, and each order of its parts."""
LENGTHS = (70, 1, 2, 33)
"""Of prompts: one longer than a chunk, and shorter than a convolution."""
PRECISIONS = {torch.float64: 1e-10, torch.float32: 2e-5}


@functools.cache
def module_of(name, dtype):
    """The first mixer with a state of a small model, and the layer's plan."""
    layers = planned_layers(make_model(family(name)).to(dtype).eval())
    return next((layer, parts) for layer, parts in layers if not parts.attends)


def mixer_of(name, dtype) -> tuple[torch.nn.Module, StateLayer]:
    layer, parts = module_of(name, dtype)
    assert state_problem(parts.mixer_kind, layer.get_submodule(parts.mixer)) is None
    return layer.get_submodule(parts.mixer), state_mixer(layer, parts, choose_kernels(CPU, dtype, decoding_kernels()))


def width_of(module):
    """Width of the model."""
    return next(layer.in_features for layer in module.children() if isinstance(layer, torch.nn.Linear))


def drawn(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, expected):
    tolerance = PRECISIONS[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", MIXED)
@torch.no_grad()
def test_prompts_of_mixed_lengths_and_their_steps_are_the_layers_own(name, dtype):
    module, mixer = mixer_of(name, dtype)
    tokens = drawn(len(LENGTHS), max(LENGTHS) + 8, width_of(module), dtype=dtype)
    with Float64Kept():
        whole = [module(row[None, : length + 8])[0] for row, length in zip(tokens, LENGTHS, strict=True)]
        prompts = tokens[:, : max(LENGTHS)].clone()
        for row, length in enumerate(LENGTHS):
            prompts[row, length:] = 100.0  # of the padding nothing is seen
        mixed, states = mixer.of_prompts(prompts, torch.tensor(LENGTHS), mixer.new_states(len(LENGTHS)))
        for row, length in enumerate(LENGTHS):
            close(mixed[row, :length], whole[row][:length])
        for step in range(8):
            new = torch.stack([row[length + step] for row, length in zip(tokens, LENGTHS, strict=True)])
            out = mixer.of_step(new, states)
            close(out, torch.stack([row[length + step] for row, length in zip(whole, LENGTHS, strict=True)]))


@pytest.mark.parametrize("name", MIXED)
@torch.no_grad()
def test_a_state_forked_from_a_shared_beginning_is_that_of_whole_prompts(name):
    module, mixer = mixer_of(name, torch.float64)
    tokens = drawn(3, 20, width_of(module), dtype=torch.float64)
    tokens[:, :9] = tokens[:1, :9]  # such as a system message
    lengths = torch.tensor([11, 1, 2])
    with Float64Kept():
        whole, ends = mixer.of_prompts(tokens, 9 + lengths, mixer.new_states(3))
        _, shared = mixer.of_prompts(tokens[:1, :9], torch.tensor([9]), mixer.new_states(1))
        before = [state.clone() for state in shared]
        forked = tuple(state.expand(3, *state.shape[1:]) for state in shared)
        mixed, others = mixer.of_prompts(tokens[:, 9:], lengths, forked)
    assert all(torch.equal(state, kept) for state, kept in zip(shared, before, strict=True))
    for row, length in enumerate(lengths):
        close(mixed[row, :length], whole[row, 9 : 9 + length])
    for state, expected in zip(others, ends, strict=True):
        close(state, expected)


def test_a_mixer_that_cannot_be_read_is_described():
    layer, parts = module_of("qwen3_5_text", torch.float32)
    module = copy.copy(layer.get_submodule(parts.mixer))
    assert state_problem("rwkv", module) == "its mixer is of the kind rwkv, not one of gated_delta, mamba2, convolution"
    module.activation = "gelu"
    assert state_problem(parts.mixer_kind, module) == "the activation of its convolution is 'gelu', not 'silu'"
