"""Hybrids decode fused with a state for each row: forked from a shared beginning, parked while others have the row."""

import contextlib
import copy
import dataclasses
import functools

import pytest
import torch

from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.weights import unsupported_reason
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.models.head import measured_head
from paceline.models.plain_forward import plain_logits
from tests.support.exact import Float64Kept
from tests.support.families import family, make_model

HYBRIDS = {"qwen3_5_text": {}, "lfm2": {}, "granitemoehybrid": {"num_local_experts": 0, "num_experts_per_tok": 0}}
"""Families with each kind of mixer that keeps a state."""
by_family = pytest.mark.parametrize("name", HYBRIDS)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-5}


@functools.cache
def hybrid(name, dtype=torch.float32):
    plan = family(name)
    model = make_model(dataclasses.replace(plan, settings={**plan.settings, **HYBRIDS[name]}))
    return model.to(dtype).eval()


def tokens(count, seed=0):
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def decoder_of(name, rows, dtype=torch.float32):
    model = hybrid(name, dtype)
    assert unsupported_reason(model) is None
    decoder = FusedDecoder(model, dtype, decoding_kernels(), head=measured_head(model))
    decoder.begin(rows, 128)
    return decoder


def close(got, expected, dtype):
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@by_family
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_fused_logits_are_the_models_own_for_24_steps(name, dtype):
    prompts, rows = [tokens(11), tokens(1, seed=1), tokens(2, seed=2)], [[0, 3], [1], [2]]
    contexts = [list(prompts[owner]) for owner in (0, 1, 2, 0)]
    with Float64Kept() if dtype == torch.float64 else contextlib.nullcontext(), torch.inference_mode():
        decoder = decoder_of(name, 4, dtype)
        logits = decoder.admit(prompts, rows)
        for owner, prompt in enumerate(prompts):
            close(logits[owner], plain_logits(hybrid(name, dtype), torch.tensor(prompt), dtype)[-1], dtype)
        stepped = []
        for step in range(24):
            new = tokens(4, seed=10 + step)
            stepped.append(decoder.step(torch.tensor(new)))
            for context, token in zip(contexts, new, strict=True):
                context.append(token)
        for row, context in enumerate(contexts):
            expected = plain_logits(hybrid(name, dtype), torch.tensor(context), dtype)[-24:]
            close(torch.stack([logits[row] for logits in stepped]), expected, dtype)


@by_family
def test_prompts_that_begin_alike_fork_one_state(name):
    system = tokens(40)
    prompts = [[*system, *tokens(count, seed=count)] for count in (1, 7, 3)]
    decoder = decoder_of(name, 3)
    model = hybrid(name)
    for together in (prompts[:2], prompts[2:]):  # the later one knows what the earlier ones began with
        logits = decoder.admit(together, [[number] for number in range(len(together))])
        for got, prompt in zip(logits, together, strict=True):
            close(got, plain_logits(model, torch.tensor(prompt), torch.float32)[-1], torch.float32)
        after = decoder.step(torch.tensor([5, 6, 7]))
        for row, prompt in enumerate(together):
            close(after[row], plain_logits(model, torch.tensor([*prompt, 5 + row]), torch.float32)[-1], torch.float32)


@by_family
@torch.inference_mode()
def test_a_parked_row_goes_on_as_if_nothing_had_been(name):
    prompts, others = [tokens(9), tokens(20, seed=1)], [tokens(30, seed=2), tokens(3, seed=3)]

    def steps(decoder, row, seeds):
        return [decoder.step(torch.tensor(tokens(2, seed=seed)))[row] for seed in seeds]

    alone = decoder_of(name, 2)
    alone.admit(prompts, [[0], [1]])
    expected = steps(alone, 1, range(5)) + steps(alone, 1, range(20, 26))
    decoder = decoder_of(name, 2)
    decoder.admit(prompts, [[0], [1]])
    got = steps(decoder, 1, range(5))
    (context,) = decoder.park([1])
    assert context.length == 25
    decoder.release([0, 1])
    decoder.admit(others, [[0], [1]])
    steps(decoder, 0, range(10, 14))
    decoder.release([1])
    decoder.resume([context], [1])
    got += steps(decoder, 1, range(20, 26))
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=1e-5, atol=1e-5)


@by_family
@torch.no_grad()
def test_adapters_of_a_mixers_linear_layers_are_read(name):
    peft = pytest.importorskip("peft")
    model = copy.deepcopy(hybrid(name))
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        peft.inject_adapter_in_model(config, model)
    assert unsupported_reason(model) is None
    decoder = FusedDecoder(model, torch.float32, decoding_kernels(), head=measured_head(model))
    decoder.begin(1, 128)
    prompt = tokens(11)
    for after, got in ((prompt, decoder.admit([prompt], [[0]])), ([*prompt, 7], decoder.step(torch.tensor([7])))):
        close(got[0], plain_logits(model, torch.tensor(after), torch.float32)[-1], torch.float32)
        assert not torch.allclose(got[0], plain_logits(hybrid(name), torch.tensor(after), torch.float32)[-1], atol=1e-2)
