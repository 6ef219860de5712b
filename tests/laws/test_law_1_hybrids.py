"""Law 1 for models whose layers carry a state: one gradient, packed with forked states, cut at random, padded or alone.

In float64 throughout. Rounding may send a token to another expert, so float32 is left to the models' table.
"""

import functools
import random
import sys

import pytest
import torch

from paceline.models.forward import choose_forward
from paceline.models.states import Door
from paceline.objective.micro_batches import pack
from tests.laws.splitting import FORWARDS, random_cut, random_samples
from tests.support.exact import Float64Kept
from tests.support.families import family, make_model

HYBRIDS = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "lfm2",
    "lfm2_moe",
    "granitemoehybrid",
    "nemotron_h",
    "falcon_h1",
    "bamba",
    "zamba2",
    "kimi_linear",
)
EXACT = 1e-10
PACKED, PADDED = FORWARDS


@functools.cache
def model_of(name):
    model = make_model(family(name)).to(torch.float64).train()
    model.set_experts_implementation("eager")  # the grouped products refuse float64
    with Float64Kept():
        assert choose_forward(model) == PACKED
    return model


def samples_of():
    """Three groups whose longest rows are longer than the chunks of 8 tokens that Mamba-2 layers are made with."""
    return random_samples(2, groups=3)


def gradients(name, cuts, choose):
    """Of a weighted sum of logprobs, from micro-batches of `cuts`: one for every parameter that has any."""
    model, samples = model_of(name), samples_of()
    chance = random.Random(0)
    weights = [chance.gauss(0, 1) for _ in samples]
    model.zero_grad()
    for rows in cuts:
        batch = pack(samples, weights, rows, dtype=torch.float64)
        with Float64Kept():
            logprobs = model.get_output_embeddings()(choose()(model, batch)).log_softmax(-1)
        (logprobs.gather(1, batch.targets[:, None])[:, 0] * batch.weights).sum().backward()
    return {key: weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None}


def far_apart(got, wanted):
    """The largest distance of a parameter's gradients, over the length of the longest."""
    assert got.keys() == wanted.keys()
    length = max(float(gradient.norm()) for gradient in wanted.values())
    return max(float((got[key] - wanted[key]).norm()) for key in wanted) / length


@functools.cache
def whole(name):
    return gradients(name, [range(len(samples_of()))], lambda: PACKED)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrids_gradient_does_not_hang_on_cuts_or_layouts(name):
    rows, chance = range(len(samples_of())), random.Random(1)
    trained = {key for key, weight in model_of(name).named_parameters() if weight.requires_grad}
    assert len(whole(name)) >= len(trained) - 8  # an expert that no token is sent to has none
    assert far_apart(gradients(name, random_cut(chance, rows), lambda: PACKED), whole(name)) <= EXACT
    assert far_apart(gradients(name, [rows], lambda: PADDED), whole(name)) <= EXACT
    alone = gradients(name, [[row] for row in rows], lambda: chance.choice(FORWARDS))
    assert far_apart(alone, whole(name)) <= EXACT


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HYBRIDS)
def test_without_doors_states_leak_from_sequence_to_sequence(name, monkeypatch):
    wanted, rows = whole(name), range(len(samples_of()))
    for module in {sys.modules[type(part).__module__] for part in model_of(name).modules()}:
        for function, door in list(vars(module).items()):
            if isinstance(door, Door):
                monkeypatch.setattr(module, function, door.original)
    assert far_apart(gradients(name, [rows], lambda: PACKED), wanted) > 1e-2
