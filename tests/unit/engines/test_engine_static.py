"""Recorded decoding steps give the logits of the unrecorded decoder, while rows come and go."""

import numpy as np
import pytest
import torch

from paceline.engines import Sampling
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.graphs import EAGER_CALLS, GraphedDecoder, GraphedStep
from paceline.engines.local.static import room_problem
from paceline.kernels.flash_attention import DenseKernel
from tests.support.recording import record_operations
from tests.support.tiny import tiny_model

RNG = np.random.default_rng(0)


def prompt(length):
    return RNG.integers(0, 256, length).tolist()


def tokens(count):
    return torch.from_numpy(RNG.integers(0, 256, count))


def static(model, record=record_operations, free=1 << 40):
    return GraphedDecoder(
        model,
        model.dtype,
        attention=DenseKernel(),
        record=record,
        free_bytes=lambda: free,
    )


class Both:
    """The fused and the static decoder, driven alike; logits of rows with a completion must be equal."""

    def __init__(self, model, tolerance, **options):
        self.decoders, self.tolerance = (FusedDecoder(model, model.dtype, None), static(model, **options)), tolerance

    def __getattr__(self, name):
        def call(*args):
            return [getattr(decoder, name)(*args) for decoder in self.decoders]

        return call

    def admits(self, prompts, rows):
        fused, ours = self.admit(prompts, rows)
        assert torch.allclose(fused, ours, atol=self.tolerance)

    def steps(self, count, rows, living):
        for _ in range(count):
            fused, ours = self.step(tokens(rows))
            assert torch.allclose(fused[living], ours[living], atol=self.tolerance)

    @property
    def recorded(self):
        return self.decoders[1].steps.recorded


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_recorded_steps_give_the_fused_decoders_logits_while_rows_end_enter_and_shrink(kind, dtype, tolerance):
    both = Both(tiny_model(kind, dtype=dtype), tolerance)
    both.begin(6, 120)
    both.admits([prompt(9), prompt(4)], [[0, 1, 2], [3, 4, 5]])
    both.steps(70, 6, list(range(6)))  # past the first columns of the fused decoder's cache
    assert both.recorded
    both.release([1, 3, 4, 5])
    both.steps(1, 6, [0, 2])
    both.admits([prompt(5)], [[1, 4]])  # takes over a slot and its place: nothing moves
    assert both.recorded
    both.steps(5, 6, [0, 1, 2, 4])
    both.admits([prompt(17)], [[3]])  # a longer prompt than ever before, and a third at once
    assert not both.recorded
    both.steps(5, 6, [0, 1, 2, 3, 4])
    assert both.recorded
    both.release([0, 2])
    both.compact(torch.tensor([4, 1, 3, 5]), 3)
    assert not both.recorded
    both.steps(8, 4, [0, 1, 2])
    assert both.recorded
    both.end()


def test_after_weights_were_read_anew_nothing_recorded_before_is_replayed():
    model = tiny_model("qwen3")
    both = Both(model, 1e-4)
    both.begin(3, 40)
    both.admits([prompt(5)], [[0, 1, 2]])
    both.steps(5, 3, [0, 1, 2])
    assert both.recorded
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    both.reread()
    assert not both.recorded
    both.steps(5, 3, [0, 1, 2])
    assert both.recorded


@pytest.mark.long
def test_a_row_without_a_completion_goes_on_past_its_last_column():
    both = Both(tiny_model("qwen3"), 1e-4)
    both.begin(2, 30)
    both.admits([prompt(3), prompt(20)], [[0], [1]])
    both.steps(9, 2, [0, 1])
    both.release([1])
    both.steps(18, 2, [0])
    both.admits([prompt(25)], [[1]])
    both.release([0])
    both.steps(4, 2, [1])
    decoder = both.decoders[1]
    for _ in range(40):
        assert decoder.step(tokens(2)).isfinite().all()


def test_without_room_for_the_longest_completions_the_cache_grows_and_nothing_is_recorded():
    both = Both(tiny_model("qwen3"), 1e-4, free=1 << 10)
    both.begin(3, 100)
    both.admits([prompt(4), prompt(7)], [[0, 1], [2]])
    both.steps(6, 3, [0, 1, 2])
    assert not both.recorded
    assert "GiB that are free" in both.decoders[1].room_problem
    both.end()


def test_a_prompt_alone_in_its_batch_may_have_one_token():
    both = Both(tiny_model("llama"), 1e-4)
    both.begin(3, 10)
    both.admits([prompt(1)], [[0, 1, 2]])
    both.steps(4, 3, [0, 1, 2])


def test_a_draw_is_recorded_with_its_step_and_anew_under_another_temperature():
    # in float64, which is drawn from by torch's operations: those are what a recorder sees
    both, uniform = Both(tiny_model("qwen3", dtype=torch.float64), 1e-9), torch.tensor([0.2, 0.9], dtype=torch.float64)
    both.begin(2, 40)
    both.admit([[1, 2, 3]], [[0, 1]])
    for temperature in (1.0, 0.5):
        sampling = Sampling(max_completion_length=9, temperature=temperature)
        for _ in range(EAGER_CALLS + 2):
            (wanted, of_wanted), (got, of_got) = both.draw_next(tokens(2), uniform, sampling)
            assert torch.equal(got, wanted)
            assert torch.allclose(of_got, of_wanted, atol=1e-4)
        assert both.decoders[1].draws.recorded


def test_results_outlive_the_next_replay():
    decoder = static(tiny_model("qwen3"))
    decoder.begin(2, 30)
    decoder.admit([[1, 2, 3]], [[0, 1]])
    kept = [decoder.step(tokens(2)) for _ in range(EAGER_CALLS + 2)]
    assert decoder.steps.recorded
    assert not torch.equal(kept[-1], kept[-2])


def refuses(call):
    raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def test_a_step_that_cannot_be_recorded_goes_on_without_and_says_why():
    calls = []
    step = GraphedStep(lambda x: (calls.append(1), (x + 1,))[1], refuses)
    got = [step(torch.tensor([number]))[0].item() for number in range(5)]
    assert got == [1, 2, 3, 4, 5]
    assert len(calls) == 5
    assert step.problem == "its step cannot be recorded: operation not permitted when stream is capturing"


def test_a_number_that_the_host_asks_for_cannot_be_recorded():
    step = GraphedStep(lambda x: (x + x.sum().item(),), record_operations)
    assert [step(torch.ones(1)).__getitem__(0).item() for _ in range(4)] == [2, 2, 2, 2]
    assert "_local_scalar_dense" in step.problem


def test_recording_itself_has_no_effect():
    count = torch.zeros(1)
    step = GraphedStep(lambda x: (count.add_(x).clone(),), record_operations)
    assert [step(torch.ones(1))[0].item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert step.recorded


def test_rows_are_laid_out_for_their_longest_completion_only_where_there_is_room():
    assert room_problem(10, 100, bytes_per_token=512, free=2 * 512_000) is None
    assert "its cache would take 3.0 of 4.0 GiB" in room_problem(3, 1 << 10, bytes_per_token=1 << 20, free=4 << 30)
