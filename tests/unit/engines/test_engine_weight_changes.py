"""Newer weights between two tokens: what was sampled stays, the rest is the newer weights' on the older ones' cache."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine
from paceline.types import Completion, WeightChange, completed
from tests.support.tiny import local_engine, make_unfamiliar, tiny_model

OLD, NEW = 4, 7
"""Versions."""
SAMPLING = Sampling(max_completion_length=12)


def request(length: int, samples: int = 1) -> Request:
    prompt = np.random.default_rng(length).integers(0, 256, length).tolist()
    return Request(
        prompt_ids=tuple(prompt), keys=tuple(sample_key(5, "test", str(length), 0, n) for n in range(samples))
    )


def newer(model):
    """Weights of an update later, a large one."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    return model


def arriving(model, weights, *, before: int) -> Callable[[], int | None]:
    """A `TakeNewer` by which these weights are there before token number `before`, counted from 0."""
    asked = iter(range(1000))

    def take() -> int | None:
        if next(asked) != before:
            return None
        model.load_state_dict(weights.state_dict())
        return NEW

    return take


def engine(model, *, dtype=torch.float32, slots=64, plain=False, take_newer=None) -> LocalEngine:
    model, path = (make_unfamiliar(model), "plain") if plain else (model, "fused")
    local = local_engine(model, slots=slots, dtype=dtype, path=path, take_newer=take_newer)
    local.take_weights(OLD)
    return local


@torch.no_grad()
def by_transformers(old, new, asked: Request, tokens: tuple[int, ...], *, before: int) -> list[float]:
    """Logprobs of these tokens, from `before` on by `new`, which finds the keys and values of `old`."""
    cache, logprobs = DynamicCache(config=old.config), []
    logits = old(torch.tensor([asked.prompt_ids]), past_key_values=cache).logits[0, -1]
    for number, token in enumerate(tokens, start=1):
        logprobs.append(float(logits.log_softmax(-1)[token]))
        model = old if number < before else new
        logits = model(torch.tensor([[token]]), past_key_values=cache).logits[0, -1]
    return logprobs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("before", [1, 5, 11])
def test_tokens_before_the_change_are_those_without_it_and_later_ones_are_drawn_from_the_newer_weights(
    kind, plain, before
):
    old, asked = tiny_model(kind), [request(5, 3), request(9, 2)]
    new, sampled = newer(old), copy.deepcopy(old)
    without = engine(copy.deepcopy(old), plain=plain).generate(asked, SAMPLING)
    local = engine(sampled, plain=plain, take_newer=arriving(sampled, new, before=before))
    groups = local.generate(asked, SAMPLING)
    for one, group, unchanged in zip(asked, groups, without, strict=True):
        for completion, same in zip(group, unchanged, strict=True):
            assert completion.token_ids[:before] == same.token_ids[:before]
            expected = by_transformers(old, new, one, completion.token_ids, before=before)
            assert completion.logprobs == pytest.approx(expected, abs=2e-5)
            assert completion.policy_version == OLD
            assert completion.weight_changes == (WeightChange(token=before, policy_version=NEW),)
    assert any(group[0].token_ids != same[0].token_ids for group, same in zip(groups, without, strict=True))
    assert local.policy_version == NEW


def test_copies_in_another_precision_are_made_anew():
    old, asked = tiny_model("qwen2"), request(9)
    new, sampled = newer(old), copy.deepcopy(old)
    local = engine(sampled, dtype=torch.bfloat16, take_newer=arriving(sampled, new, before=1))
    ((completion,),) = local.generate([asked], Sampling(max_completion_length=40))
    right, stale = (by_transformers(old, later, asked, completion.token_ids, before=1) for later in (new, old))
    assert np.abs(np.subtract(completion.logprobs, right)).mean() < 0.1
    assert np.abs(np.subtract(completion.logprobs, stale)).mean() > 0.2


def test_weights_that_wait_are_taken_before_the_first_token():
    old, asked = tiny_model("llama"), request(7)
    new, sampled = newer(old), copy.deepcopy(old)
    ((completion,),) = engine(sampled, take_newer=arriving(sampled, new, before=0)).generate([asked], SAMPLING)
    ((expected,),) = engine(new).generate([asked], SAMPLING)
    assert completion.token_ids == expected.token_ids
    assert (completion.policy_version, completion.weight_changes) == (NEW, ())


def test_completions_that_begin_after_the_change_are_of_the_newer_weights_alone():
    old, asked = tiny_model("qwen3"), [request(length) for length in (9, 8, 7, 6)]
    new, sampled = newer(old), copy.deepcopy(old)
    groups = engine(sampled, slots=2, take_newer=arriving(sampled, new, before=5)).generate(asked, SAMPLING)
    changed, fresh = groups[:2], groups[2:]
    assert all(one.weight_changes == (WeightChange(token=5, policy_version=NEW),) for (one,) in changed)
    assert all((one.policy_version, one.weight_changes) == (NEW, ()) for (one,) in fresh)
    for (one,), (expected,) in zip(fresh, engine(new).generate(asked[2:], SAMPLING), strict=True):
        assert one.token_ids == expected.token_ids


def test_every_token_has_the_version_of_the_last_change_before_it():
    changes = (WeightChange(token=2, policy_version=6), WeightChange(token=3, policy_version=9))
    completion = Completion(
        token_ids=(10, 11, 12, 13, 14),
        logprobs=(-1.0,) * 5,
        finish_reason="length",
        text="",
        policy_version=5,
        weight_changes=changes,
    )
    assert completed((), completion).tokens_by_version == ((5, 2), (6, 1), (9, 2))
