"""The fused decoder gives the model's own logits for each family with a plan, past its windows, and whoever waits."""

from contextlib import nullcontext

import pytest
import torch

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.weights import unsupported_reason
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.models.head import measured_head
from paceline.models.plain_forward import evaluating, plain_logits
from tests.support.exact import Float64Kept
from tests.support.families import family, make_model
from tests.support.tiny import local_engine

NAMES = [
    "gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "mistral", "ministral", "ministral3", "qwen2, window",
    "smollm3", "granite, scaled logits", "phi3", "seed_oss", "cohere2",
    "granite_swa", "hyperclovax, scaled logits", "glm", "glm4", "ernie4_5", "helium",
    "qwen3_5_text", "lfm2", "olmo_hybrid", "bamba",
]  # fmt: skip
"""Windows of 8 where a family has them."""
STEPS, PARKED_AT = 24, 5


def difference(name: str, dtype: torch.dtype) -> float:
    """Largest difference of the decoder's logits from the model's own, after two prompts and each of `STEPS` tokens.

    Three rows; two of them are parked after `PARKED_AT` tokens, resume in each other's place, and go on.
    """
    model = make_model(family(name)).eval().to(dtype)
    assert unsupported_reason(model) is None
    ids = torch.randint(0, 250, (3, STEPS + 13), generator=torch.Generator().manual_seed(0))
    prompts, fed, rows = [ids[0, :13].tolist(), ids[2, :3].tolist()], ids[:, 13:], [0, 1, 2]
    with Float64Kept() if dtype == torch.float64 else nullcontext(), torch.inference_mode(), evaluating(model):
        native = None if dtype == torch.float64 else decoding_kernels()
        decoder = FusedDecoder(model, dtype, native, head=measured_head(model))
        decoder.begin(3, 13 + STEPS)
        after_prompts = decoder.admit(prompts, ((0, 1), (2,)))
        after = [after_prompts[torch.tensor([0, 0, 1])]]
        for step in range(STEPS):
            logits = decoder.step(fed[torch.tensor(rows), step])
            after.append(logits[torch.tensor([rows.index(row) for row in range(3)])])
            if step + 1 == PARKED_AT:
                contexts = decoder.park([1, 2])
                decoder.release([1, 2])
                decoder.resume(contexts, [2, 1])
                rows = [0, 2, 1]
        decoder.end()
        whole = [[*prompt, *fed[row].tolist()] for row, prompt in enumerate((prompts[0], prompts[0], prompts[1]))]
        wanted = [plain_logits(model, torch.tensor(tokens), dtype)[-STEPS - 1 :] for tokens in whole]
    return float((torch.stack(after, dim=1).double() - torch.stack(wanted).double()).abs().max())


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_logits_past_the_window_are_the_models_own_in_float64(name):
    assert difference(name, torch.float64) < 1e-12


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_logits_past_the_window_are_the_models_own_by_compiled_kernels(name):
    assert difference(name, torch.float32) < 1e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gemma3_text", "olmo3", "ministral3", "qwen3_5_text", "lfm2", "bamba"])
def test_completions_are_the_same_for_any_number_of_concurrent_rows(name):
    model = make_model(family(name)).eval()
    keys = [tuple(sample_key(5, "test", str(length), 0, sample) for sample in range(3)) for length in (4, 21, 9)]
    requests = [
        Request(prompt_ids=tuple(range(7, 7 + length)), keys=key) for length, key in zip((4, 21, 9), keys, strict=True)
    ]
    sampling = Sampling(max_completion_length=20, temperature=0.9)
    alone, few, many = (
        local_engine(model, slots=slots, path="fused").generate(requests, sampling) for slots in (1, 3, 64)
    )
    for groups in (few, many):
        for one, other in zip(alone, groups, strict=True):
            for left, right in zip(one, other, strict=True):
                assert left.token_ids == right.token_ids
                assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)
