"""Requests that come up at any time, each drawn in its own way, get the tokens that they would get alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.engines import Request, RequestStream, Sampled, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine
from paceline.engines.sampling import draw, draw_each
from paceline.errors import DataError
from tests.support.tiny import local_engine, make_unfamiliar, tiny_model, tiny_tokenizer

END, LENGTH = 258, 64
WARM, COLD = Sampling(max_completion_length=LENGTH), Sampling(max_completion_length=LENGTH, temperature=0.0)
NARROW = Sampling(max_completion_length=LENGTH, temperature=0.7, top_k=5, top_p=0.9)


def request(number: int, *, samples: int = 1, limit: int = 12) -> Request:
    prompt = np.random.default_rng(number).integers(0, 256, 3 + 5 * number).tolist()
    keys = tuple(sample_key(3, "test", str(number), 0, sample) for sample in range(samples))
    return Request(prompt_ids=tuple(prompt), keys=keys, limits=(limit,) * samples)


def engine(*, plain: bool = False, slots: int = 64, ends: bool = True) -> LocalEngine:
    model = tiny_model("llama")
    model, path = (make_unfamiliar(model), "plain") if plain else (model, "fused")
    return local_engine(model, slots=slots, dtype=torch.float32, eos=(END,) if ends else (), path=path)


class Listener(RequestStream):
    """Gives a request every so many steps, and keeps what is told."""

    def __init__(self, *given: tuple[Request, Sampling], every: int = 3, unwanted: Callable = lambda one, count: False):
        self.given, self.every, self.unwanted = list(given), every, unwanted
        self.steps, self.next = 0, 0
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int], list[float]] = {}
        self.reasons: dict[tuple[int, int], str] = {}

    def take(self, *, wait: bool) -> Sequence[tuple[Request, Sampling]] | None:
        if self.next == len(self.given):
            return None
        self.steps += 1
        if not wait and self.steps % self.every:
            return []
        self.next += 1
        return self.given[self.next - 1 : self.next]

    def tell(self, sampled: Sequence[Sampled]) -> list[bool]:
        unwanted = []
        for one in sampled:
            place = one.request, one.sample
            assert place not in self.reasons
            self.tokens.setdefault(place, []).extend(one.token_ids)
            self.logprobs.setdefault(place, []).extend(one.logprobs)
            unwanted.append(self.unwanted(one, len(self.tokens[place])))
            if one.finish_reason is not None:
                self.reasons[place] = one.finish_reason
        return unwanted


@pytest.mark.sampled(2)
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("slots", [2, 64])
def test_each_gets_what_it_would_get_alone_whoever_else_is_sampled(plain, slots):
    given = [(request(n, samples=1 + n % 2), (WARM, COLD, NARROW)[n % 3]) for n in range(7)]
    local, listener = engine(plain=plain, slots=slots), Listener(*given)
    local.stream(listener, length=LENGTH)
    for number, (asked, sampling) in enumerate(given):
        alone = local.generate([asked], sampling)[0]
        for sample, completion in enumerate(alone):
            assert tuple(listener.tokens[number, sample]) == completion.token_ids
            assert listener.logprobs[number, sample] == pytest.approx(completion.logprobs, abs=1e-4)
            assert listener.reasons[number, sample] == completion.finish_reason


def test_a_completion_that_nobody_wants_ends_at_once_and_the_others_go_on():
    listener = Listener(
        (request(1, samples=2), WARM), every=1, unwanted=lambda one, count: one.sample == 0 and count == 3
    )
    local = engine(ends=False)
    local.stream(listener, length=LENGTH)
    assert {place: len(tokens) for place, tokens in listener.tokens.items()} == {(0, 0): 3, (0, 1): 12}
    assert listener.reasons == {(0, 1): "length"}
    # and the engine is as before
    assert len(local.generate([request(1)], WARM)[0][0].token_ids) == 12


def test_the_first_tokens_of_a_request_do_not_wait_for_others_to_end():
    """Seven rows are taken, and one of eight is less than the share that a call waits for."""
    listener = Listener((request(0, samples=7, limit=20), WARM), (request(1, limit=2), WARM), every=2)
    engine(ends=False, slots=8).stream(listener, length=LENGTH)
    order = list(listener.reasons)
    assert order[0] == (1, 0)


def test_requests_that_differ_by_their_limits_alone_are_drawn_together(monkeypatch):
    """Drawing apart takes as long for a row as for all of them."""
    kinds = list[int]()

    def counted(logits, uniform, samplings):
        kinds.append(len(set(samplings)))
        return draw_each(logits, uniform, samplings)

    monkeypatch.setattr("paceline.engines.local.scheduling.draw_each", counted)
    given = [(request(n, limit=4 + n), replace(WARM, max_completion_length=4 + n, stop=(str(n),))) for n in range(4)]
    engine(ends=False).stream(Listener(*given), length=LENGTH)
    assert kinds == [1] * 4, "the first tokens of each request, and no others"


def test_a_stream_that_ends_before_its_first_request_is_no_fault():
    listener = Listener()
    engine().stream(listener, length=LENGTH)
    assert listener.tokens == {}


def test_limits_beyond_the_room_are_refused():
    with pytest.raises(DataError, match=r"limits a completion to 65 tokens, a limit must lie in \[1, 64\]"):
        engine().stream(Listener((request(0, limit=65), WARM)), length=LENGTH)


def test_logits_that_are_no_numbers_are_told_as_they_are():
    model = tiny_model("llama")
    local = LocalEngine(
        model, tiny_tokenizer(), concurrent_sequences=4, compute_dtype=torch.float32, eos_token_ids=frozenset()
    )
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    listener = Listener((request(0), WARM))
    local.stream(listener, length=LENGTH)
    assert all(math.isnan(one) for one in listener.logprobs[0, 0])


def test_rows_drawn_each_in_its_own_way_are_those_drawn_apart():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator)
    uniform = torch.rand(6, generator=generator, dtype=torch.float64)
    kinds = [WARM, COLD, NARROW, WARM, replace(NARROW, top_p=0.5), COLD]
    tokens, logprobs = draw_each(logits, uniform, kinds)
    for row, sampling in enumerate(kinds):
        token, logprob = draw(logits[row : row + 1], uniform[row : row + 1], sampling)
        assert (tokens[row], logprobs[row]) == (token[0], logprob[0])
