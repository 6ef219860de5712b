"""A decoder whose steps run ahead of what the host has read samples what one gives whose tokens are read at once."""

import pytest
import torch

from paceline.engines import Finished, Request, Sampling, sample_key
from paceline.engines.local.decoder import Decoder
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.graphs import LEAST_ROWS, GraphedDecoder
from paceline.engines.local.rows import Parked, SamplingJob
from paceline.engines.local.scheduling import Scheduler
from paceline.engines.requests import Stopping
from paceline.kernels.flash_attention import DenseKernel
from paceline.types import Completion
from tests.support.engine_conversations import made_up
from tests.support.recording import record_operations
from tests.support.tiny import local_engine, tiny_model, tiny_tokenizer
from tests.unit.engines.test_engine_streams import COLD, LENGTH, NARROW, WARM, Listener
from tests.unit.engines.test_engine_streams import request as streamed

END = 258


def engine(*, ahead: bool, slots: int = 64, free: int = 1 << 40, take_newer=None) -> LocalEngine:
    """In float64, so that no rounding chooses another token; `free` bytes of a device's memory."""
    model = tiny_model("qwen3", dtype=torch.float64)
    local = local_engine(model, slots=slots, eos=(END,), take_newer=take_newer)
    if ahead:
        local._decoder = GraphedDecoder(
            model,
            model.dtype,
            attention=DenseKernel(),
            record=record_operations,
            free_bytes=lambda: free,
        )
    assert local._decoder.runs_ahead == ahead
    return local


def request(length: int, samples: int, limits: tuple[int, ...] | None = None) -> Request:
    keys = tuple(sample_key(2, "test", str(length), 0, sample) for sample in range(samples))
    return Request(prompt_ids=made_up(length), keys=keys, limits=limits)


def assert_equal(got: list[tuple[Completion, ...]], wanted: list[tuple[Completion, ...]]) -> None:
    for one, other in zip(sum(got, ()), sum(wanted, ()), strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert one.weight_changes == other.weight_changes
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


@pytest.mark.parametrize(
    ("slots", "stop", "told", "free"),
    [
        pytest.param(64, (), False, 1 << 40, marks=pytest.mark.long),
        pytest.param(24, (), True, 1 << 40, marks=pytest.mark.long),
        pytest.param(3, ("e", "ab"), False, 1 << 40, marks=pytest.mark.long),
        (24, ("e", "ab"), True, 1 << 40),
        pytest.param(24, (), True, 1 << 10, marks=pytest.mark.long),  # no room to record
    ],
)
def test_completions_are_those_of_a_decoder_that_waits(slots, stop, told, free):
    requests = [request(5, 3), request(21, 2, (1, 40)), request(8, 30), request(9, 9, (3, 1, 2, 60, 5, 4, 9, 2, 1))]
    sampling = Sampling(max_completion_length=60, temperature=1.1, stop=stop)
    waiting, ahead = (engine(ahead=ahead, slots=slots, free=free) for ahead in (False, True))
    heard, ended = list[Finished](), list[Finished]()
    wanted = waiting.generate(requests, sampling, on_finished=(lambda one: bool(heard.append(one))) if told else None)
    got = ahead.generate(requests, sampling, on_finished=(lambda one: bool(ended.append(one))) if told else None)
    assert_equal(got, wanted)
    assert len(ended) == (44 if told else 0), "each completion is told of once"
    assert {(one.request, one.sample): one for one in ended} == {(one.request, one.sample): one for one in heard}


@pytest.mark.long
@pytest.mark.parametrize("slots", [2, 64])
def test_streamed_tokens_are_those_of_a_decoder_that_waits(slots):
    heard = []
    for ahead in (False, True):
        given = [(streamed(n, samples=1 + n % 2), (WARM, COLD, NARROW)[n % 3]) for n in range(7)]
        listener = Listener(*given, unwanted=lambda one, count: one.request == 3 and count == 4)
        engine(ahead=ahead, slots=slots).stream(listener, length=LENGTH)
        heard.append(listener)
    assert heard[1].tokens == heard[0].tokens
    assert heard[1].reasons == heard[0].reasons
    for place, logprobs in heard[0].logprobs.items():
        assert heard[1].logprobs[place] == pytest.approx(logprobs, abs=1e-9)


@pytest.mark.long
def test_a_token_is_of_the_weights_that_its_step_was_begun_with():
    both = []
    for ahead in (False, True):
        asked = iter(range(1000))
        local = engine(ahead=ahead, take_newer=lambda asked=asked: {6: 1, 9: 4}.get(next(asked)))
        both.append(local.generate([request(7, 3)], Sampling(max_completion_length=20)))
    assert_equal(both[1], both[0])
    assert any(completion.weight_changes for completion in both[1][0])


class Told(Decoder):
    """Draws token 1 for ever; notes its steps, and `stopping` notes when their tokens are read."""

    refills, least_rows = True, 1

    def __init__(self, *, runs_ahead: bool, notes: list[str]) -> None:
        self.runs_ahead, self.notes, self.rows = runs_ahead, notes, 0

    def begin(self, num_rows, max_length):
        self.rows = num_rows

    def admit(self, prompts, rows, media=()):
        return torch.eye(4)[[1] * len(prompts)] * 100

    def step(self, tokens):
        self.notes.append("step")
        return torch.eye(4)[[1] * self.rows] * 100

    def compact(self, keep, alive):
        self.notes.append(f"to {len(keep)}")
        self.rows = len(keep)

    def end(self):
        pass


class Reading(Stopping):
    def __init__(self, notes: list[str]) -> None:
        super().__init__(tiny_tokenizer(), frozenset(), (), 4)
        self.notes = notes

    def ended(self, tokens):
        self.notes.append("read")
        return super().ended(tokens)


def notes_of(limits: tuple[int, ...], *, runs_ahead: bool) -> list[str]:
    notes = list[str]()
    job = SamplingJob(
        prompt_ids=(2, 3),
        sequences=tuple(range(len(limits))),
        keys=tuple(range(len(limits))),
        limits=limits,
        sampling=Sampling(max_completion_length=9),
    )
    sampled = Scheduler(
        decoder=Told(runs_ahead=runs_ahead, notes=notes),
        sampling=job.sampling,
        stopping=Reading(notes),
        jobs=[job],
        policy_version=0,
        take_newer=None,
        concurrent_sequences=8,
        device=torch.device("cpu"),
        on_ended=None,
        take_jobs=None,
        parked=Parked(0),
    ).run()
    assert [tokens.tolist() for tokens, _, _ in sampled] == [[1] * limit for limit in limits]
    return notes


def test_a_step_begins_before_the_tokens_of_the_one_before_are_read():
    assert notes_of((4, 4), runs_ahead=False) == ["read", "step", "read", "step", "read", "step", "read"]
    assert notes_of((4, 4), runs_ahead=True) == ["read", "step", "step", "read", "step", "read", "step", "read"]


def test_all_tokens_are_read_before_rows_change_places():
    notes = notes_of((2, 2, 2, 2, 5), runs_ahead=True)
    assert notes == ["read", "step", "step", "read", "read", "to 1", "step", "step", "read", "step", "read"]


@pytest.mark.long
def test_a_batch_on_a_gpu_stays_at_a_size_below_which_it_would_be_no_faster():
    local, sizes = engine(ahead=True), list[int]()
    compact = local._decoder.compact
    local._decoder.compact = lambda keep, alive: (sizes.append(len(keep)), compact(keep, alive))[1]
    local.generate([request(5, 60, tuple(range(1, 61)))], Sampling(max_completion_length=60))
    assert sizes == [48, 32, 24, LEAST_ROWS]
