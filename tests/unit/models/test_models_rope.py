"""Rotary frequencies that transformers takes by the length of what it is given: here they are the run's."""

import pytest
import torch
from transformers import PreTrainedModel

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.rope import fix_rope, rope_by_length
from paceline.objective.micro_batches import pack
from paceline.training.learner.forward_backward import WholeModel
from tests.support.episodes import sample as make_sample
from tests.support.families import family, make_model
from tests.support.tiny import tiny_tokenizer

SHORT, LONG = (7, 9), tuple(range(40, 60))
"""Prompts; the short factors hold up to 16 tokens."""
LONGROPE = ("llama, longrope", "phi3, longrope")


def model_of(name: str, longest: int) -> PreTrainedModel:
    model = make_model(family(name)).eval()
    fix_rope(model, longest)
    return model


def engine(model: PreTrainedModel) -> LocalEngine:
    return LocalEngine(
        model, tiny_tokenizer(), concurrent_sequences=8, compute_dtype=torch.float32, eos_token_ids=frozenset()
    )


def request(prompt: tuple[int, ...]) -> Request:
    return Request(prompt_ids=prompt, keys=tuple(sample_key(5, "test", str(prompt), 0, one) for one in range(2)))


@pytest.mark.parametrize("name", LONGROPE)
def test_what_is_sampled_does_not_depend_on_longer_neighbours(name):
    sampler, sampling = engine(model_of(name, 30)), Sampling(max_completion_length=10)
    alone = sampler.generate([request(SHORT)], sampling)[0]
    beside = sampler.generate([request(SHORT), request(LONG)], sampling)[0]
    assert [one.token_ids for one in alone] == [one.token_ids for one in beside]
    for left, right in zip(alone, beside, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)


@pytest.mark.parametrize("name", LONGROPE)
def test_logprobs_are_the_engines_however_a_step_is_cut(name):
    model = model_of(name, 30)
    sampler, sampling = engine(model), Sampling(max_completion_length=10)
    groups = sampler.generate([request(SHORT), request(LONG)], sampling)
    samples = [
        make_sample(
            group=index,
            prompt_ids=prompt,
            completion_ids=one.token_ids,
            logprobs=one.logprobs,
            advantage=0.0,
        )
        for index, (prompt, group) in enumerate(zip((SHORT, LONG), groups, strict=True))
        for one in group
    ]
    policy = Loaded(model=model, compute_dtype=torch.float32)
    passes, weights = WholeModel(forward=choose_forward(model), temperature=1.0), [0.25] * 4
    for cut in ([[0, 1, 2, 3]], [[0], [1], [2], [3]]):
        batches = [pack(samples, weights, rows, dtype=torch.float32) for rows in cut]
        for batch, (logprobs, _) in zip(batches, passes.values(policy, batches), strict=True):
            assert torch.allclose(logprobs, batch.rollout_logprobs, atol=1e-5)


@pytest.mark.parametrize(("longest", "which"), [(16, "short"), (17, "long")])
def test_the_factors_are_those_of_the_longest_sequence(longest, which):
    model = model_of("phi3, longrope", longest)
    states, positions = torch.zeros(1, 1, 8), torch.tensor([[3]])
    cosine, _ = model.model.rotary_emb(states, positions)
    factor = {"short": 1.0, "long": 3.0}[which]  # of the second of four frequencies: 10,000 to the power of -1/4
    scaling = model.model.rotary_emb.attention_scaling
    assert cosine.shape == (1, 1, 8)
    assert cosine[0, 0, 1].item() == pytest.approx(scaling * torch.tensor(3 / (10 * factor)).cos().item(), abs=1e-6)
    assert f"the {which} factors for every sequence" in rope_by_length(model)


def test_dynamic_frequencies_are_fixed_once_for_all_calls():
    model = model_of("llama, dynamic NTK", 2048)  # four times as many positions as the model has
    rotary, states = model.model.rotary_emb, torch.zeros(1, 1, 8)
    short, _ = rotary(states, torch.tensor([[3]]))
    rotary(states, torch.tensor([[2047]]))
    again, _ = rotary(states, torch.tensor([[3]]))
    assert torch.equal(short, again)
    base = 1e4 * (4.0 * 2048 / 512 - 3) ** (8 / 6)
    assert short[0, 0, 1].item() == pytest.approx(torch.tensor(3 / base**0.25).cos().item(), abs=1e-6)


def test_other_rotary_embeddings_are_left_alone():
    model = make_model(family("llama")).eval()
    fix_rope(model, 30)
    assert not model.model.rotary_emb._forward_hooks
    assert rope_by_length(model) is None
