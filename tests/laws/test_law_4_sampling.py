"""Law 4, the engine: a completion is fixed by weights, prompt and key, never by who is computed beside it."""

import numpy as np
import pytest
import torch

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine
from tests.support.tiny import tiny_model, tiny_tokenizer

SAMPLING = Sampling(max_completion_length=24, temperature=1.1)


def request(name: str, length: int, samples: int) -> Request:
    ids = np.random.default_rng(length).integers(0, 256, length)
    keys = tuple(sample_key(0, "train", name, 0, sample) for sample in range(samples))
    return Request(prompt_ids=tuple(ids.tolist()), keys=keys)


REQUESTS = [request("a", 5, 4), request("b", 19, 4), request("c", 12, 2), request("d", 33, 6), request("e", 8, 4)]


def token_ids(requests, slots: int = 64) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    engine = LocalEngine(
        tiny_model("qwen3", dtype=torch.float64),
        tiny_tokenizer(),
        concurrent_sequences=slots,
        compute_dtype=torch.float64,
        eos_token_ids=frozenset(range(200, 212)),
    )
    groups = engine.generate(requests, SAMPLING)
    return {asked.keys: [c.token_ids for c in group] for asked, group in zip(requests, groups, strict=True)}


@pytest.fixture(scope="module")
def reference():
    return token_ids(REQUESTS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slots", [1, 3, 7, 16])
def test_completions_do_not_depend_on_how_many_are_computed_at_once(reference, slots):
    assert token_ids(REQUESTS, slots) == reference


def test_completions_do_not_depend_on_the_order_of_requests(reference):
    assert token_ids(REQUESTS[::-1]) == reference


def test_completions_do_not_depend_on_the_requests_beside_them(reference):
    for asked in REQUESTS:
        assert token_ids([asked]) == {asked.keys: reference[asked.keys]}


def test_completions_do_not_depend_on_the_rest_of_their_group(reference):
    asked = REQUESTS[3]
    alone = Request(prompt_ids=asked.prompt_ids, keys=asked.keys[2:3])
    assert token_ids([alone])[alone.keys] == reference[asked.keys][2:3]


def test_the_same_call_gives_the_same_bytes_and_another_key_does_not(reference):
    assert token_ids(REQUESTS) == reference
    other = Request(prompt_ids=REQUESTS[0].prompt_ids, keys=(123,))
    assert token_ids([other])[other.keys][0] not in reference[REQUESTS[0].keys]
