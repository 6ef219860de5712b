"""Packed attention has the outputs and gradients of padded attention."""

import pytest
import torch

from paceline.kernels.flash_attention import DenseKernel
from paceline.models.attention import _padded, varlen_attention, varlen_layout
from paceline.objective.micro_batches import pack, padded_attention
from tests.support.episodes import sample as make_sample

CPU = torch.device("cpu")


def micro_batch(*samples):
    """`samples`: group, length of its prompt, length of the completion."""
    made = [
        make_sample(
            group=group,
            prompt_ids=(1,) * prompt,
            completion_ids=(2,) * completion,
            advantage=1.0,
        )
        for group, prompt, completion in samples
    ]
    return pack(made, [1.0] * len(made), range(len(made)), dtype=torch.float64)


SHARED = micro_batch((0, 3, 4), (0, 3, 2), (1, 5, 6), (1, 5, 9))
MIXED = micro_batch((0, 3, 4), (1, 5, 6), (0, 3, 2), (2, 1, 3))
SHORT = micro_batch((0, 3, 1), (1, 5, 6), (1, 5, 1), (2, 2, 1), (3, 2, 4))


def states(batch, query_heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(3)
    count = len(batch.input_ids)
    return [
        torch.randn(count, heads, 8, dtype=torch.float64, generator=generator).requires_grad_()
        for heads in (query_heads, kv_heads, kv_heads)
    ]


@pytest.mark.parametrize("batch", [SHARED, MIXED, SHORT], ids=["shared prompts", "mixed order", "single tokens"])
@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (3, 1)])
def test_output_and_gradients_are_those_of_padded_attention(batch, heads):
    ours, theirs = states(batch, *heads), states(batch, *heads)
    got = varlen_attention(*ours, varlen_layout(batch, CPU), 0.3, DenseKernel())
    wanted = _padded(*theirs, padded_attention(batch), 0.3)
    assert torch.allclose(got, wanted, atol=1e-12)
    grad = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for one, other in zip(torch.autograd.grad(got, ours, grad), torch.autograd.grad(wanted, theirs, grad), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_completions_of_one_token_have_no_inputs_and_need_no_prompt():
    batch = micro_batch((0, 3, 1), (1, 2, 1))
    layout = varlen_layout(batch, CPU)
    assert layout.prompts is None
    assert layout.sequences.queries.tolist() == [0, 3, 5]
    got = varlen_attention(*states(batch), layout, 0.3, DenseKernel())
    assert got.shape == (5, 4, 8)


def test_a_group_is_one_sequence_of_queries_over_its_prompt():
    layout = varlen_layout(SHARED, CPU)
    assert layout.sequences.queries.tolist() == [0, 3, 8, 11, 12, 17, 25]
    assert layout.prompts.queries.tolist() == [0, 4, 17]
    assert layout.prompts.keys.tolist() == [0, 3, 8]
    assert (layout.queries, layout.keys) == (slice(8, 25), slice(0, 8))


def test_no_sequence_is_empty_and_none_has_the_length_that_kernels_treat_apart():
    layout = varlen_layout(SHORT, CPU)
    for spans in (layout.sequences, layout.prompts):
        assert (spans.queries.diff() > 0).all()
        assert (spans.keys.diff() > 0).all()
    single = varlen_layout(micro_batch((0, 4, 2)), CPU)
    assert single.prompts.queries.tolist() == [0, 1]
    assert single.prompts.most_queries == 2


def test_queries_and_keys_take_the_precision_of_the_values():
    query, key, value = (state.detach() for state in states(SHARED))
    got = varlen_attention(query, key, value.bfloat16(), varlen_layout(SHARED, CPU), 0.3, DenseKernel())
    assert got.dtype == torch.bfloat16
    exact = varlen_attention(query, key, value, varlen_layout(SHARED, CPU), 0.3, DenseKernel())
    assert torch.allclose(got.double(), exact, atol=3e-2)
