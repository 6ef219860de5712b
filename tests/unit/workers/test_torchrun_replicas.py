"""Copies of the same weights are compared after every update, and the rank with others is named."""

import pytest

from paceline.errors import TrainingError
from paceline.workers.torchrun.replicas import WeightsChecksum, check_copies


def held(part: tuple[int, ...], fingerprint: int) -> WeightsChecksum:
    return WeightsChecksum(part=part, fingerprint=fingerprint)


def test_ranks_with_the_same_part_and_the_same_bits_go_on():
    check_copies([held((0,), 7), held((1,), 8), None, held((0,), 7), held((1,), 8)], policy_version=3)


def test_a_copy_with_other_bits_is_named_with_the_first_one_of_its_part():
    copies = [held((0,), 7), held((1,), 8), None, held((0,), 7), held((1,), 9)]
    with pytest.raises(TrainingError, match=r"rank 4 has weights 0{15}9 after update 3, rank 1 has 0{15}8; they must"):
        check_copies(copies, policy_version=3)
