"""Decoders of models with experts give the model's own logits, whatever the adapter, precision and number of rows."""

import pytest
import torch

from paceline.config.sections import LoraConfig
from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.experts import prepared_experts
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.operations import choose_kernels
from paceline.engines.local.weights import unsupported_reason
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.models.experts import experts_by, mixtures
from paceline.models.loaded import Loaded
from paceline.models.lora import add_adapter
from paceline.models.plain_forward import plain_logits
from tests.support.families import family, make_model
from tests.support.tiny import local_engine

HYBRIDS = ("qwen3_next", "qwen3_5_moe_text", "lfm2_moe")
"""Their states are float32 in every precision."""
FAMILIES = ("qwen3_moe", "gpt_oss", "qwen2_moe", "olmoe", "glm4_moe", "mixtral, router jitter", *HYBRIDS)
EXACT = {torch.float64: 1e-6, torch.float32: 1e-5}


def model_of(name, dtype):
    model = make_model(family(name)).to(dtype).eval()
    model.set_experts_implementation("eager")
    return model


def largest_difference(model, dtype, *, steps=24):
    """Of logits after two prompts and so many tokens, from those of the model's own pass over each row alone."""
    decoder = FusedDecoder(model, dtype, decoding_kernels() if dtype == torch.float32 else None)
    decoder.begin(3, 64)
    rows = [list(range(5)), list(range(5)), list(range(30, 41))]
    logits = decoder.admit([tuple(rows[0]), tuple(rows[2])], [[0, 1], [2]])[[0, 0, 1]]
    differences = []
    for step in range(steps):
        wanted = torch.stack([plain_logits(model, torch.tensor(row), model.dtype)[-1] for row in rows])
        differences.append(float((wanted - logits).abs().max() / wanted.abs().max()))
        tokens = torch.tensor([(7 * step + 3 * row) % 200 for row in range(3)])
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)
        logits = decoder.step(tokens)
    return max(differences)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_models_own(name, dtype):
    model = model_of(name, dtype)
    assert unsupported_reason(model) is None
    assert largest_difference(model, dtype) < EXACT[dtype] * (5 if name in HYBRIDS else 1)
    assert experts_by(model) == "eager"  # the model itself computes as before


def test_an_adapter_beside_experts_is_decoded_too():
    model = model_of("qwen3_moe", torch.float64)
    add_adapter(
        Loaded(model=model, compute_dtype=model.dtype), LoraConfig(lora_rank=2, lora_parameters=("all-experts",))
    )
    bare = plain_logits(model, torch.arange(9), model.dtype)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(0))
    assert (plain_logits(model, torch.arange(9), model.dtype) - bare).abs().max() > 1e-2
    assert unsupported_reason(model) is None
    assert largest_difference(model, torch.float64, steps=4) < EXACT[torch.float64]


def test_only_experts_and_shared_layers_are_copied_to_another_precision():
    block = model_of("qwen2_moe", torch.float32).model.layers[0].mlp
    prepared = prepared_experts(block, choose_kernels(torch.device("cpu"), torch.bfloat16))
    assert {parameter.dtype for parameter in block.parameters()} == {torch.float32}
    twin = prepared.block
    assert twin.gate is block.gate
    assert twin.experts.down_proj.dtype == twin.shared_expert.down_proj.weight.dtype == torch.bfloat16
    normed = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = block(normed[None])[0]
    assert torch.allclose(prepared(normed.bfloat16()).float(), wanted.float(), atol=2e-2 * float(wanted.abs().max()))
    same = prepared_experts(block, choose_kernels(torch.device("cpu"), torch.float32)).block
    assert mixtures(same)[0].down_proj.data_ptr() == block.experts.down_proj.data_ptr()


@pytest.mark.skipif(decoding_kernels() is None, reason="there are no compiled kernels")
def test_the_decoders_copy_of_experts_lies_by_input_and_the_models_own_as_before():
    block = model_of("qwen3_moe", torch.float32).model.layers[0].mlp
    kernels = choose_kernels(torch.device("cpu"), torch.float32, decoding_kernels())
    copied, own = mixtures(prepared_experts(block, kernels).block)[0], block.experts
    assert (own.is_transposed, copied.is_transposed) == (False, True)
    assert torch.equal(copied.gate_up_proj, own.gate_up_proj.mT)
    assert torch.equal(copied.down_proj, own.down_proj.mT)
    normed = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = block(normed[None])[0]
        assert torch.allclose(prepared_experts(block, kernels)(normed), wanted, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", FAMILIES[:2])
def test_completions_are_the_same_for_1_3_and_64_rows(name):
    model = model_of(name, torch.float32)
    keys = [sample_key(5, "test", "7", 0, sample) for sample in range(6)]
    requests = [Request(prompt_ids=tuple(range(length, 2 * length)), keys=tuple(keys)) for length in (3, 11)]
    drawn = []
    for slots in (1, 3, 64):
        engine = local_engine(model, slots=slots, dtype=None, eos=(258,), path="fused")
        groups = engine.generate(requests, Sampling(max_completion_length=12, temperature=1.0))
        drawn.append([completion.token_ids for group in groups for completion in group])
    assert drawn[0] == drawn[1] == drawn[2]
