"""Broadcast of the trained weights from the first rank to the ranks that only sample, tensor by tensor.

torch has one default process group, that of the training ranks; this group exists in addition.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from paceline.models.fingerprints import bit_sums, folded
from paceline.models.parallel.process_group import lost

NAME_BYTES = 512
"""Size of the field for a parameter's name."""


class BroadcastGroup(Protocol):
    """The first rank and the ranks that only sample; all of them make the same calls."""

    def broadcast(self, tensor: Tensor) -> None:
        """Copy the first rank's tensor to the others; it is contiguous, with one size and dtype everywhere.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class WeightsGroup(BroadcastGroup):
    """A `BroadcastGroup` over gloo on CPUs and NCCL on GPUs."""

    def __init__(self, store: dist.Store, *, rank: int, size: int, device: torch.device, timeout: float) -> None:
        """Join as number `rank` of `size`; number 0 sends. `timeout`: seconds that a call may wait.

        Raises:
            RankLost: not all of them came.
        """
        longest = timedelta(seconds=timeout)
        with lost("the first rank and those that sample were meeting"):
            if device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = longest
                self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
            else:
                self._group = dist.ProcessGroupGloo(store, rank, size, longest)

    @override
    def broadcast(self, tensor: Tensor) -> None:
        with lost("weights were handed on to the ranks that sample"):
            self._group.broadcast(tensor, 0).wait()


@torch.no_grad()
def give_weights(
    broadcast_group: BroadcastGroup, weights: Iterable[tuple[str, Tensor]], device: torch.device
) -> tuple[int, int]:
    """Broadcast all weights, each after its name, then an empty name; returns their fingerprint and bytes."""
    sums, nbytes = list[Tensor](), 0
    for name, weight in weights:
        broadcast_group.broadcast(_as_bytes(name, device))
        whole = weight.contiguous()
        broadcast_group.broadcast(whole)
        sums.append(bit_sums(whole))
        nbytes += whole.nbytes
    broadcast_group.broadcast(_as_bytes("", device))
    return folded(sums), nbytes


@torch.no_grad()
def take_weights(broadcast_group: BroadcastGroup, model: nn.Module, device: torch.device) -> tuple[int, int]:
    """Receive what `give_weights` sends into the model's parameters; returns their fingerprint and bytes."""
    sums, nbytes = list[Tensor](), 0
    for name in _names(broadcast_group, device):
        parameter = model.get_parameter(name).detach()
        broadcast_group.broadcast(parameter)
        sums.append(bit_sums(parameter))
        nbytes += parameter.nbytes
    return folded(sums), nbytes


def _names(broadcast_group: BroadcastGroup, device: torch.device) -> Iterator[str]:
    while True:
        said = torch.empty(NAME_BYTES, dtype=torch.uint8, device=device)
        broadcast_group.broadcast(said)
        name = bytes(said.tolist()).rstrip(b"\0").decode()
        if not name:
            return
        yield name


def _as_bytes(name: str, device: torch.device) -> Tensor:
    said = name.encode()
    if len(said) > NAME_BYTES:
        raise ValueError(f"a parameter's name may take {NAME_BYTES} bytes, {name!r} takes {len(said)}")
    return torch.tensor([*said.ljust(NAME_BYTES, b"\0")], dtype=torch.uint8, device=device)
