"""Order of packed tokens along their sequences, and convolutions by it, against numbers by hand and torch's own."""

import pytest
import torch
from torch.nn.functional import conv1d

from paceline.kernels.states import causal_convolution, state_table


def test_a_completions_first_token_stands_behind_its_prompts_last():
    table = state_table([3, 2], [0, 0, 1], [2, 1, 1])
    assert table.previous.tolist() == [9, 0, 1, 9, 3, 2, 5, 2, 4, 9]
    assert table.prompts.tolist() == [[0, 1, 2], [9, 3, 4]]  # padded in front, with the row of zeros
    assert table.completions.tolist() == [[5, 6], [7, 9], [8, 9]]
    assert table.unpad.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 10]


def test_a_completion_without_inputs_has_no_token_before_it():
    table = state_table([1], [0, 0, 0], [0, 2, 0])
    assert table.previous.tolist() == [3, 0, 1, 3]
    assert table.completions.tolist() == [[3, 3], [1, 2], [3, 3]]
    assert state_table([2], [0], [0]).completions.shape == (1, 0)


def test_a_convolution_reads_the_prompts_last_rows_behind_the_completions_own():
    weight = torch.tensor([[1.0, 10.0, 100.0]])
    continued = causal_convolution(
        torch.tensor([[1.0], [2.0], [3.0]]), weight, None, state_table([2], [0], [1]).previous
    )
    assert continued[:, 0].tolist() == [100.0, 210.0, 321.0]
    alone = causal_convolution(torch.tensor([[3.0]]), weight, None, state_table([1], [0], [0]).previous)
    assert alone.item() == 300.0


@pytest.mark.parametrize("width", [1, 3, 4, 7])
def test_a_convolution_and_its_gradients_are_those_of_whole_rows(width):
    generator = torch.Generator().manual_seed(width)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    prompts, owners, inputs = [5, 1, 2], [0, 0, 1, 2, 2], [3, 1, 6, 0, 2]
    states, weight, bias = drawn(sum(prompts) + sum(inputs), 6), drawn(6, width), drawn(6)
    starts = [sum((prompts + inputs)[:number]) for number in range(len(prompts) + len(inputs))]
    packed = causal_convolution(states, weight, bias, state_table(prompts, owners, inputs).previous)

    whole = torch.zeros_like(packed)
    for number, owner in enumerate(owners):
        own = slice(starts[len(prompts) + number], starts[len(prompts) + number] + inputs[number])
        prompt = slice(starts[owner], starts[owner] + prompts[owner])
        row = torch.cat([states[prompt], states[own]]).T[None]
        out = conv1d(row, weight[:, None], bias, padding=width - 1, groups=6)[0, :, : row.shape[2]].T
        whole = whole.clone()
        whole[prompt], whole[own] = out[: prompts[owner]], out[prompts[owner] :]
    scale = drawn(*packed.shape).detach()
    got = [packed, *torch.autograd.grad((packed * scale).sum(), (states, weight, bias))]
    wanted = [whole, *torch.autograd.grad((whole * scale).sum(), (states, weight, bias))]
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours - theirs).abs().max() < 1e-12
