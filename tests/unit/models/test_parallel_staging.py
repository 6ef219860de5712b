"""Copies of tensors in memory that is kept for the next ones."""

import torch

from paceline.models.parallel.staging import StagingBuffers, copies

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8)


def tensors(number: int) -> dict[str, torch.Tensor]:
    """One of each type, of odd sizes; a number, an empty one, a transposed one, one under two names."""
    one = {str(dtype): torch.arange(7 + number).to(dtype).repeat(3) for dtype in DTYPES}
    shared = torch.full((5,), float(number))
    odd = {"number": torch.tensor(0.5 + number), "empty": torch.empty(0, 3), "turned": torch.rand(3, 4).T}
    return one | odd | {"tied": shared, "tied too": shared}


def addresses(found: dict[str, torch.Tensor]) -> list[int]:
    return [one.data_ptr() for one in found.values()]


def test_copies_hold_their_moment_and_each_has_a_storage_of_its_own():
    staging, originals = StagingBuffers(lambda: None), tensors(1)
    wanted = {name: one.clone() for name, one in originals.items()}
    found = copies(originals, staging)
    for one in originals.values():
        one.zero_()
    for name, one in found.items():
        assert one.dtype == wanted[name].dtype
        assert torch.equal(one, wanted[name]), name
        assert one.is_contiguous()
        assert not one.numel() or one.untyped_storage().data_ptr() == one.data_ptr()
    assert found["tied"] is found["tied too"]


def test_the_next_copies_lie_where_the_last_ones_lay():
    staging = StagingBuffers(lambda: None)
    first = addresses(copies(tensors(1), staging))
    taken = staging.nbytes
    beside = addresses(copies(tensors(1), staging))
    staging.clear()
    assert addresses(copies(tensors(1), staging)) == first
    assert not set(first) & set(beside) - {0}
    assert staging.nbytes == taken


def test_a_tensor_larger_than_a_board_has_one_of_its_own():
    staging, large = StagingBuffers(lambda: None), torch.ones((64 << 20) + 1, dtype=torch.uint8)
    found = copies({"small": torch.zeros(3), "large": large, "behind": torch.ones(2)}, staging)
    assert torch.equal(found["large"], large)
    assert 0 < found["behind"].data_ptr() - found["small"].data_ptr() < 64 << 20  # the first buffer was not left
    assert staging.nbytes == (64 << 20) + (128 << 20)


def test_what_is_given_back_is_taken_anew():
    staging = StagingBuffers(lambda: None)
    copies(tensors(1), staging)
    staging.give_back()
    assert staging.nbytes == 0
    (one,) = copies({"one": torch.ones(3)}, staging).values()
    assert torch.equal(one, torch.ones(3))
