"""Recomputed or offloaded activations change no gradient, and their planned memory is what is measured."""

import gc
import weakref

import pytest
import torch

from paceline.config.building import build_config
from paceline.models.activation_checkpointing import Activations, choose_cut
from paceline.models.activations import in_main_memory, is_recomputing, recompute
from paceline.models.forward import PolicyForward, choose_forward, measure_activations
from paceline.objective.micro_batches import MicroBatch, pack
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import model_shape
from tests.support.episodes import sample as make_sample
from tests.support.tiny import VOCAB_SIZE, tiny_model

DTYPES = (torch.float32, torch.bfloat16)
FOUR = Activations(all_layers=400.0, layer_input=10, layers=4)


def batch() -> MicroBatch:
    """Three prompts of 12 tokens, two completions of 20 to 25 each."""
    draws = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (count,), generator=draws).tolist())

    samples = [
        make_sample(
            group=number // 2,
            prompt_ids=(number // 2,) * 12,
            completion_ids=tokens(20 + number),
            advantage=1.0,
        )
        for number in range(6)
    ]
    return pack(samples, [1.0] * 6, range(6), dtype=torch.float32)


def forward_of(model, dtype: torch.dtype):
    """The forward pass in this precision, as the learner runs it."""
    forward = choose_forward(model)

    def run():
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            return forward(model, batch())

    return run


def gradients(model, dtype: torch.dtype) -> list[torch.Tensor]:
    model.zero_grad()
    forward_of(model, dtype)().float().square().sum().backward()
    return [parameter.grad.clone() for parameter in model.model.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_computing_layers_again_changes_no_bit_of_the_gradient(kind, dtype):
    model = tiny_model(kind).train()
    plain = gradients(model, dtype)
    for count in (1, 2, None):
        recompute(model, count)
        assert is_recomputing(model)
        assert same(gradients(model, dtype), plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_that_wait_in_main_memory_give_the_same_gradient(dtype):
    model = tiny_model("qwen3").train()
    plain = gradients(model, dtype)
    model.zero_grad()
    run = forward_of(model, dtype)
    with in_main_memory(model):
        hidden = run()
    hidden.float().square().sum().backward()
    assert same([parameter.grad for parameter in model.model.parameters()], plain)


def kept_bytes(model, dtype: torch.dtype) -> int:
    """What autograd's hooks are given in the batch's forward pass; weights and their copies left out."""
    shapes = {parameter.shape for parameter in model.parameters()}
    shapes |= {parameter.shape[::-1] for parameter in model.parameters()}
    found: dict[int, int] = {}

    def look(tensor):
        if tensor.shape not in shapes:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    run = forward_of(model, dtype)
    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        _alive = run()
    return sum(found.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_what_two_short_passes_measure_is_what_a_longer_one_keeps(kind, dtype):
    model = tiny_model(kind).train()
    measured = measure_activations(model, choose_forward(model), dtype)
    assert (measured.layers, measured.layer_input) == (2, 32 * 4)
    tokens = len(batch().input_ids)
    assert kept_bytes(model, dtype) == pytest.approx(tokens * measured.all_layers, rel=0.15)
    recompute(model, 1)  # the hooks do not see its input; the last norm, in no layer, is a large part of two layers
    assert kept_bytes(model, dtype) == pytest.approx(tokens * (measured.kept(1) - measured.layer_input), rel=0.25)


def test_padded_rows_are_measured_by_their_places():
    # 8 tokens of a prompt and four completions of 8: 40 packed tokens, and 64 places that keep as much each
    model = tiny_model("llama").train()
    forwards = (choose_forward(model), PolicyForward(kind="padded", reason=""))
    packed, padded = (measure_activations(model, forward, torch.float32).all_layers for forward in forwards)
    assert forwards[0].kind == "packed"
    assert padded == pytest.approx(packed, rel=0.3)


def test_measuring_and_offloading_hold_on_to_nothing():
    model = tiny_model("qwen3").train()
    forward, seen = choose_forward(model), []
    model.model.layers[0].register_forward_hook(lambda module, given, output: seen.append(weakref.ref(output)))
    measure_activations(model, forward, torch.bfloat16)
    with in_main_memory(model):
        forward(model, batch())
    gc.collect()
    assert [one() for one in seen] == [None] * 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_what_a_plan_says_of_activations_is_of_the_measured_size(kind, dtype):
    model = tiny_model(kind).train()
    shape = model_shape(model.config.to_dict(), parameters=model.num_parameters())
    given = {"model": "m", "dataset": "d", "micro_batch_tokens": 100, "dtype": str(dtype).removeprefix("torch.")}
    given |= {"max_prompt_length": 50, "max_completion_length": 50}
    planned = memory_plan(build_config(given), shape).activations
    measured = 100 * measure_activations(model, choose_forward(model), dtype).all_layers
    assert 0.8 <= measured / planned <= 2.5


def test_the_first_layers_are_computed_again_and_no_more_than_needed():
    assert [FOUR.kept(count) for count in range(5)] == [400, 310, 220, 130, 40]
    assert FOUR.to_recompute(tokens=2, room=800) == 0
    assert FOUR.to_recompute(tokens=2, room=799) == 1
    assert FOUR.to_recompute(tokens=2, room=440) == 2
    # the last layer's activations are needed at once: computing them again would save nothing
    assert FOUR.to_recompute(tokens=2, room=0) == 3
    model = tiny_model("llama").train()
    recompute(model, 1)
    assert [layer.gradient_checkpointing for layer in model.model.layers] == [True, False]


@pytest.mark.parametrize(
    ("asked", "room", "tokens", "layers"),
    [
        ("auto", 3200, 8, 0),
        ("auto", 1600, 4, 0),  # half a micro-batch costs less than computing again
        ("auto", 880, 4, 2),
        ("true", 320, 8, 4),
        ("true", 319, 4, 4),  # what is computed again in any case has its size chosen too
        ("false", 1599, 4, 0),
    ],
)
def test_the_largest_micro_batch_that_fits_is_chosen_whatever_is_asked_of_layers(asked, room, tokens, layers):
    found = choose_cut(FOUR, {8: 8, 4: 4}, room, asked=asked)
    assert (found.micro_batch_tokens, found.tokens, found.layers) == (tokens, tokens, layers)


def test_a_model_without_layers_of_the_known_kind_is_left_as_it_is():
    assert Activations(all_layers=400.0, layer_input=10, layers=0).to_recompute(tokens=2, room=0) == 0
