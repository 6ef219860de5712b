"""Conversations in one call: the tokens of each turn are those of a call of its own with the whole prompt."""

import functools
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from paceline.engines import Finished, Request, Sampling
from paceline.engines.local.decoder import PlainDecoder, RecomputingDecoder
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.graphs import GraphedDecoder
from paceline.engines.local.rows import READ_COST
from paceline.errors import DataError
from paceline.kernels.cpu.decoding import decoding_kernels
from paceline.kernels.flash_attention import DenseKernel
from tests.support.engine_conversations import (
    SAMPLING,
    TURNS,
    Others,
    Place,
    all_at_once,
    all_of,
    apart,
    first_requests,
    key,
    last_first,
    played,
    request_alone,
    two_in_five_steps,
)
from tests.support.recording import record_operations
from tests.support.tiny import local_engine, make_unfamiliar, tiny_model

END = 258


class Counting(FusedDecoder):
    """Remembers the lengths of the contexts that it parked and resumed, and of the prompts that it computed."""

    def __init__(self, *given, **more) -> None:
        super().__init__(*given, **more)
        self.parked, self.resumed, self.computed = [], [], []
        self.most_rows = 0

    def begin(self, num_rows, max_length):
        self.most_rows = max(self.most_rows, num_rows)
        super().begin(num_rows, max_length)

    def compact(self, keep, alive):
        self.most_rows = max(self.most_rows, len(keep))
        super().compact(keep, alive)

    def admit(self, prompts, rows, media=()):
        self.computed += [len(prompt) for prompt in prompts]
        return super().admit(prompts, rows, media)

    def park(self, rows):
        contexts = super().park(rows)
        self.parked += [context.length for context in contexts]
        return contexts

    def resume(self, contexts, rows):
        self.resumed += [context.length for context in contexts]
        super().resume(contexts, rows)


def tables(model):
    return Counting(model, model.dtype, decoding_kernels())


def grid(model):
    return Counting(model, model.dtype, None)


def static(model):
    # what draws from float32 is compiled, and no recorder sees it
    model.double()
    return GraphedDecoder(
        model,
        model.dtype,
        attention=DenseKernel(),
        record=record_operations,
        free_bytes=lambda: 1 << 40,
    )


def plain(model):
    return PlainDecoder(model, model.dtype)


def recomputing(model):
    return RecomputingDecoder(model, model.dtype)


DECODERS = (tables, grid, static, plain, recomputing)


def engine(model, make=tables, *, slots=64, eos=(END,), **options) -> LocalEngine:
    model, path = (make_unfamiliar(model), "plain") if make in (plain, recomputing) else (model, "fused")
    decoder, local = make(model), local_engine(model, slots=slots, eos=eos, path=path, **options)
    local._decoder = decoder
    return local


def assert_as_apart(make, conversations, others, *, kind="qwen3") -> None:
    alone = apart(engine(tiny_model(kind), make), others)
    places = [(index, sample) for index, request in enumerate(others.requests) for sample in range(len(request.keys))]
    by_place = dict(zip(places, alone, strict=True))
    for conversation, turns in conversations.items():
        assert len(turns) == others.turns
        for place, turn in zip(others.places[conversation], turns, strict=True):
            assert turn.token_ids == by_place[place].token_ids
            assert turn.finish_reason == by_place[place].finish_reason
            assert turn.text == by_place[place].text
            assert turn.logprobs == pytest.approx(by_place[place].logprobs, abs=2e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", DECODERS)
def test_turns_are_those_of_calls_with_the_whole_prompt(make):
    others = Others(first_requests((17, 30, 9, 41), samples=2))
    assert_as_apart(make, played(engine(tiny_model("qwen3"), make), others), others)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("make", [tables, grid])
def test_turns_of_other_architectures_are_those_of_calls_apart(kind, make):
    others = Others(first_requests((25, 12, 33)), turns=5)
    local = engine(tiny_model(kind), make)
    assert_as_apart(make, played(local, others), others, kind=kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("slots", "order"),
    [(1, last_first), (4, all_at_once), (4, two_in_five_steps()), (64, last_first)],
    ids=["one row, reversed", "lock-step", "late", "reversed"],
)
@pytest.mark.parametrize("make", DECODERS)
def test_tokens_do_not_depend_on_when_answers_come(make, slots, order):
    requests = first_requests((31, 14, 22, 9, 40))
    late = played(engine(tiny_model("qwen3"), make, slots=slots), Others(requests, order=order))
    assert all_of(late) == answered_at_once(make)


@functools.cache
def answered_at_once(make):
    return all_of(played(engine(tiny_model("qwen3"), make), Others(first_requests((31, 14, 22, 9, 40)))))


def test_contexts_are_parked_without_the_last_token_and_read_on():
    local, (request,) = engine(tiny_model("qwen3"), eos=()), first_requests((40,))
    others = Others([request])
    turns = played(local, others)[0, 0]
    first = 40 + len(turns[0].token_ids)
    second = first + 2 + len(turns[1].token_ids)
    decoder = local._decoder
    assert decoder.parked == decoder.resumed == [first - 1, second - 1]
    assert decoder.computed == [40]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", DECODERS)
def test_requests_of_one_prompt_are_sampled_as_alone(make):
    (first, other), local = first_requests((40, 40), samples=2), engine(tiny_model("qwen3"), make, eos=())
    one, two = (replace(first, keys=(key,), limits=(9,)) for key in first.keys)
    requests = [one, other, two]
    together = local.generate(requests, SAMPLING)
    assert [[one.token_ids for one in group] for group in together] == [
        [one.token_ids for one in local.generate([request], SAMPLING)[0]] for request in requests
    ]


def test_the_prompt_of_several_requests_is_computed_once():
    (request,), local = first_requests((40,), samples=4), engine(tiny_model("qwen3"), eos=())
    local.generate([replace(request, keys=(one,), limits=(9,)) for one in request.keys], SAMPLING)
    assert local._decoder.computed == [40]


def test_a_long_answer_is_computed_with_the_whole_prompt():
    observed = {1: 5, 2: 100}
    others = Others(first_requests((60,)), observed=lambda _, turn: observed[turn])
    local = engine(tiny_model("qwen3"), eos=())
    assert_as_apart(tables, played(local, others), others)
    assert len(local._decoder.parked) == 2
    assert len(local._decoder.resumed) == 1
    assert local._decoder.computed == [60, len(others.requests[2].prompt_ids)]


@pytest.mark.long
@pytest.mark.parametrize("make", [tables, grid, static])
def test_an_answer_of_no_tokens_continues_with_the_last_one(make):
    others = Others(first_requests((20, 25)), observed=lambda conversation, turn: 0)
    assert_as_apart(make, played(engine(tiny_model("qwen3"), make, eos=()), others), others)


@pytest.mark.long
@pytest.mark.parametrize("make", [tables, grid])
def test_forgotten_contexts_are_computed_anew(make):
    requests = first_requests((24, 25, 26, 27))
    none, some = (engine(tiny_model("qwen3"), make, parked_bytes=size) for size in (0, 20_000))
    for local in (none, some):
        others = Others(requests, order=all_at_once)
        assert_as_apart(make, played(local, others), others)
    assert none._decoder.resumed == []
    assert len(none._decoder.computed) == 12
    # 2 layers, keys and values, 2 heads of 8, 4 bytes: 256 for each token of 24 to 50
    assert 0 < len(some._decoder.resumed) < 8
    assert len(some._decoder.resumed) + len(some._decoder.computed) == 12


@pytest.mark.long
def test_rows_are_given_back_and_made_again():
    local = engine(tiny_model("qwen3"), eos=())
    others = Others(first_requests([30] * 12), order=all_at_once, observed=lambda conversation, turn: turn)
    sizes, step = [], local._decoder.step
    local._decoder.step = lambda tokens: (sizes.append(len(tokens)), step(tokens))[1]
    assert_as_apart(tables, played(local, others), others)
    assert min(sizes) == 1
    assert sizes.count(12) > TURNS
    assert local._decoder.most_rows == 12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [tables, grid, static, plain])
def test_a_prompt_longer_than_there_is_room_for_waits_until_rows_are_laid_out_anew(make):
    others = Others(first_requests((10, 12)), observed=lambda conversation, turn: 150 if conversation == (1, 0) else 2)
    assert_as_apart(make, played(engine(tiny_model("qwen3"), make), others), others)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", DECODERS)
def test_a_call_may_begin_without_requests(make):
    requests, groups = first_requests((12, 30)), []

    class Late:
        def __init__(self) -> None:
            self.waiting = [requests[:1], [], requests[1:]]

        def take(self, *, wait):
            return self.waiting.pop(0) if self.waiting else None

    local = engine(tiny_model("qwen3"), make)
    groups = local.generate([], SAMPLING, further=Late())
    assert [[one.token_ids for one in group] for group in groups] == [
        [one.token_ids for one in local.generate([request], SAMPLING)[0]] for request in requests
    ]


class Nobody:
    def take(self, *, wait):
        return None


@pytest.mark.parametrize("make", DECODERS)
def test_nothing_asked_of_a_call_that_waits_gives_nothing(make):
    assert engine(tiny_model("qwen3"), make).generate([], SAMPLING, further=Nobody()) == []


def test_without_further_requests_nothing_is_parked_and_completions_are_the_same():
    requests, local = first_requests((12, 30), samples=3), engine(tiny_model("qwen3"))
    alone = local.generate(requests, SAMPLING)
    assert local.generate(requests, SAMPLING, on_finished=lambda one: True, further=Nobody()) == alone
    assert local.generate(requests, SAMPLING, on_finished=lambda one: True) == alone
    assert local._decoder.parked == []


class Threads:
    """Answers of sleepers come from another thread, once all the others have ended their conversations."""

    def __init__(self, requests: Sequence[Request], sleepers: int) -> None:
        self.others, self.sleepers = Others(requests, turns=2), sleepers
        self.observations = queue.Queue[list[tuple[Place, Request]] | None]()
        self.quick, self.are_through = len(requests) - sleepers, threading.Event()
        self.asleep: list[tuple[Place, Request]] = []
        threading.Thread(target=self.wake, daemon=True).start()

    def wake(self) -> None:
        assert self.are_through.wait(60)
        self.observations.put(self.asleep)

    def finished(self, one: Finished) -> bool:
        conversation = self.others.conversation_of[one.request, one.sample]
        continues = self.others.finished(one)
        if continues:
            observation = self.others.ready.pop()
            if conversation[0] < self.sleepers:
                self.asleep.append(observation)
            else:
                self.observations.put([observation])
        elif conversation[0] >= self.sleepers:
            self.quick -= 1
            if not self.quick:
                assert len(self.asleep) == self.sleepers
                self.are_through.set()
        return continues

    def take(self, *, wait):
        if not self.others.open:
            return None
        try:
            self.others.ready = self.observations.get(block=wait, timeout=60)
        except queue.Empty:
            assert not wait
            return []
        return self.others.take(wait=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", DECODERS)
def test_conversations_that_wait_hold_no_row(make):
    # six of eight conversations sleep in two rows' places until the other two, which come last, have ended
    requests = first_requests((30, 29, 28, 27, 26, 25, 12, 11))
    threads, local = Threads(requests, sleepers=6), engine(tiny_model("qwen3"), make, slots=2)
    groups = local.generate(requests, SAMPLING, on_finished=threads.finished, further=threads)
    assert_as_apart(make, threads.others.turns_of(groups), threads.others)


OLD, NEW = 4, 7
"""Versions."""


@torch.no_grad()
def by_transformers(models, fed: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[float]:
    """Logprobs of `tokens` by the last model, after what each of the models was fed on one cache."""
    cache, logprobs = DynamicCache(config=models[0].config), []
    for model, part in zip(models, fed, strict=True):
        logits = model(torch.tensor([list(part)]), past_key_values=cache).logits[0, -1]
    for token in tokens:
        logprobs.append(float(logits.log_softmax(-1)[token]))
        logits = models[-1](torch.tensor([[token]]), past_key_values=cache).logits[0, -1]
    return logprobs


@pytest.mark.parametrize("make", [tables, grid, static])
def test_weights_between_turns_are_recorded_and_go_on_with_the_cache_that_is_kept(make):
    old, new, sampled = tiny_model("qwen3"), tiny_model("qwen3", seed=1), tiny_model("qwen3")
    others, arrived = Others(first_requests((40,)), turns=2, order=all_at_once), []

    def take_newer() -> int | None:
        if arrived or (not others.ready and len(others.requests) == 1):
            return None
        arrived.append(NEW)
        sampled.load_state_dict(new.state_dict())
        return NEW

    local = engine(sampled, make, eos=(), take_newer=take_newer)
    local.take_weights(OLD)
    one, two = played(local, others)[0, 0]
    assert (one.policy_version, one.weight_changes) == (OLD, ())
    assert (two.policy_version, two.weight_changes) == (NEW, ())
    first, second = others.requests
    kept = len(first.prompt_ids) + len(one.token_ids) - 1
    fed = second.prompt_ids[:kept], second.prompt_ids[kept:]
    assert two.logprobs == pytest.approx(by_transformers((old, new), fed, two.token_ids), abs=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"continues": (0, 1)}, r"prompt 2 of the batch continues \(0, 1\), which names no ended completion"),
        ({"continues": (1, 0)}, r"prompt 2 of the batch continues \(1, 0\), which names no ended completion"),
        ({"keys": (1, 2), "limits": None}, "prompt 2 of the batch continues a completion with 2 keys"),
        ({"prompt_ids": (1,) * 50}, "prompt 2 of the batch does not begin with the 12 tokens"),
    ],
)
def test_a_request_that_does_not_continue_what_it_says_is_refused(change, message):
    class Wrong(Others):
        def finished(self, one):
            if one.request == 1:
                return False
            super().finished(one)
            (place, request) = self.ready.pop()
            given = {"prompt_ids": request.prompt_ids, "keys": request.keys, "continues": request.continues, **change}
            self.ready.append((place, Request(**given)))
            return True

    others = Wrong(first_requests((10, 6)))
    with pytest.raises(DataError, match=message):
        played(engine(tiny_model("qwen3"), eos=()), others)


def test_a_completion_that_is_continued_twice_is_computed_anew_for_the_second():
    class Twice(Others):
        def take(self, *, wait):
            taken = super().take(wait=wait)
            if not taken:
                return taken
            again = Request(
                prompt_ids=taken[0].prompt_ids,
                keys=(key((9, 9), 1),),
                limits=taken[0].limits,
                continues=taken[0].continues,
            )
            place = (len(self.requests), 0)
            self.requests.append(again)
            self.conversation_of[place], self.places[9, 9] = (9, 9), [(0, 0), place]
            self.open += 1
            return [*taken, again]

    others, local = Twice(first_requests((30,)), turns=2), engine(tiny_model("qwen3"), eos=())
    assert_as_apart(tables, played(local, others), others)
    assert (len(local._decoder.resumed), len(local._decoder.computed)) == (1, 2)


def test_a_turn_draws_by_its_own_key_from_position_zero():
    # the same context and key in a call apart gives the same tokens; another key gives others
    others = Others(first_requests((30,)), turns=2)
    turns = played(engine(tiny_model("qwen3"), eos=()), others)[0, 0]
    again, request = engine(tiny_model("qwen3"), eos=()), others.requests[1]
    same = again.generate([request_alone(request)], SAMPLING)[0][0]
    other = Request(prompt_ids=request.prompt_ids, keys=(key((0, 0), 0),), limits=request.limits)
    assert turns[1].token_ids == same.token_ids != again.generate([other], SAMPLING)[0][0].token_ids


def test_stop_strings_end_turns_too():
    sampling = Sampling(max_completion_length=80, stop=("e", "a"))
    requests = [Request(prompt_ids=one.prompt_ids, keys=one.keys) for one in first_requests((30, 20))]
    others = Others(requests)
    for turn in (turn for turns in played(engine(tiny_model("llama")), others, sampling).values() for turn in turns):
        assert not any(letter in turn.text[:-1] for letter in "ea")


def test_a_completion_is_continued_where_it_was_read_within_the_cost_of_reading():
    # 2 tokens sampled and 9 observed: 10 of the prompt's are to be read
    for length, resumed in ((10 * READ_COST - 11, 1), (10 * READ_COST - 12, 0)):
        others = Others(first_requests((length,)), turns=2, observed=lambda conversation, turn: 9)
        local = engine(tiny_model("qwen3"), eos=())
        played(local, others)
        assert len(local._decoder.resumed) == resumed
