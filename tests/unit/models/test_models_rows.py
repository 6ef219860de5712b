"""Rows by their numbers: the gradient of a row that was taken often is the same again."""

import pytest
import torch

from paceline.models.rows import take_rows


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_rows_lie_as_their_numbers_do():
    states = torch.arange(12.0).view(4, 3)
    assert take_rows(states, torch.tensor([2, 0])).tolist() == [[6, 7, 8], [0, 1, 2]]
    assert torch.equal(take_rows(states, torch.tensor([[3, 3], [1, 0]])), states[torch.tensor([[3, 3], [1, 0]])])


def test_what_comes_back_is_added_up_in_the_order_in_which_a_row_was_taken():
    states = torch.zeros(2, 1, requires_grad=True)
    taken = take_rows(states, torch.tensor([1, 1, 1, 0]))
    taken.backward(torch.tensor([[1e8], [1.0], [-1e8], [5.0]]))
    assert states.grad.tolist() == [[5.0], [0.0]]  # 1e8 + 1 is 1e8 in float32; another order gives 1


def test_threads_give_the_same_bits_again(two_threads):
    # eight completions of one prompt, whose last token each of them is taken from first
    rows = torch.cat([torch.cat([torch.tensor([99]), torch.arange(127) + 100 + 127 * one]) for one in range(8)])
    states, back = torch.randn(1200, 512), torch.randn(len(rows), 512)
    gradients = []
    for _ in range(40):
        leaf = states.clone().requires_grad_()
        take_rows(leaf, rows).backward(back)
        gradients.append(leaf.grad)
    assert all(torch.equal(one, gradients[0]) for one in gradients)
