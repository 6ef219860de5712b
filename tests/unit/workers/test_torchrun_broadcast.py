"""Weights on their way to a rank that only samples: each behind its name, into the parameter of that name."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.models.fingerprints import fingerprint
from paceline.models.parallel.ranks import RankLost
from paceline.workers.torchrun.broadcast import NAME_BYTES, WeightsGroup, give_weights, take_weights

CPU = torch.device("cpu")


class Gives:
    """The first rank's end of a way within this process."""

    def __init__(self) -> None:
        self.sent = deque[Tensor]()

    def broadcast(self, tensor: Tensor) -> None:
        self.sent.append(tensor.clone())


class Takes:
    """The other end."""

    def __init__(self, sent: deque[Tensor]) -> None:
        self.sent = sent

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self.sent.popleft())


def layers(*values: float) -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(2, 1, bias=False) for _ in values))
    for layer, value in zip(model, values, strict=True):
        nn.init.constant_(layer.weight, value)
    return model


def test_weights_come_into_the_parameters_of_their_names_and_the_others_stay():
    there, gives = layers(1.0, 2.0, 3.0), Gives()
    for parameter in there.parameters():
        parameter.requires_grad_(False)
    third, first = torch.full((2, 1), 8.0).T, torch.full((1, 2), 7.0)
    sent = give_weights(gives, [("2.weight", third), ("0.weight", first)], CPU)
    assert take_weights(Takes(gives.sent), there, CPU) == sent == (fingerprint([third.contiguous(), first]), 16)
    assert [parameter.tolist() for parameter in there.parameters()] == [[[7.0, 7.0]], [[2.0, 2.0]], [[8.0, 8.0]]]
    assert not gives.sent


def test_a_name_that_is_longer_than_its_message_is_refused_and_not_cut():
    with pytest.raises(ValueError, match=f"a parameter's name may take {NAME_BYTES} bytes, .* takes {NAME_BYTES + 1}"):
        give_weights(Gives(), [("x" * (NAME_BYTES + 1), torch.zeros(1))], CPU)


def test_who_waits_for_weights_that_do_not_come_knows_in_the_end():
    store = dist.HashStore()

    def join(number: int) -> WeightsGroup:
        return WeightsGroup(store, rank=number, size=2, device=CPU, timeout=0.5)

    with ThreadPoolExecutor(2) as threads:
        first, last = threads.map(join, range(2))
    with pytest.raises(RankLost, match="weights were handed on to the ranks that sample when another rank went away"):
        last.broadcast(torch.zeros(3))
    del first
