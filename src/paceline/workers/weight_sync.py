"""Weight sync from trainers to samplers. Only trained parameters travel; of a model with an adapter, the adapter alone.

There are three ways, by where the samplers are:

    store      a manifest and byte buckets that each sampler fetches (a cluster)
    broadcast  tensor by tensor from the first rank to the ranks that only sample
    copy       into the whole copy of a rank that trains a part and samples

Each ends in the sampler's own parameters, and computes their fingerprint in the same pass over memory.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.errors import TrainingError
from paceline.kernels.checksums import bit_sums, folded
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.training.rollout_journal import WeightTransfer

BUCKET_BYTES = 1 << 28
"""Largest message of the store, unless a single parameter is larger: small enough to spread over a cluster."""
NAME_BYTES = 512
"""Size of a broadcast's field for a parameter's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsChecksum:
    """Fingerprint of the weights on a rank."""

    part: tuple[int, ...]
    """Part of the model on this rank; ranks with the same part hold copies. Empty for the whole model."""
    fingerprint: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """A rank's report of a weight sync."""

    transfer: WeightTransfer
    held: WeightsChecksum | None
    """Weights that it sent or has now; None if it took no part."""


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> tuple[int, int]:
    """Copy weights into a model's parameters of the same names; returns their fingerprint there and their bytes."""
    sums, nbytes = list[Tensor](), 0
    for name, weight in weights:
        sums.append(bit_sums(model.get_parameter(name), weight.contiguous()))
        nbytes += weight.nbytes
    return folded(sums), nbytes


def check_copies(held: Sequence[WeightsChecksum | None], *, policy_version: int, who: str) -> None:
    """Compare the fingerprints of trainers or ranks after an update; None is skipped. `who` is the word for one.

    Raises:
        TrainingError: two hold different copies of one part; the sentence names both.
    """
    first = dict[tuple[int, ...], tuple[int, int]]()
    for rank, one in enumerate(held):
        if one is None:
            continue
        other, wanted = first.setdefault(one.part, (rank, one.fingerprint))
        if one.fingerprint != wanted:
            raise TrainingError(
                f"{who} {rank} has weights {one.fingerprint:016x} after update {policy_version}, {who} {other} has "
                f"{wanted:016x}; they must be the same, so look at the machines, then resume"
            )


# --- by store


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Contents and fingerprint of a version of the weights."""

    version: int
    """Steps that these weights have seen."""
    policy_version: int
    """Optimiser updates that they have seen."""
    buckets: tuple[tuple[str, ...], ...]
    """Names of the parameters, in the order in which each bucket holds them."""
    nbytes: int
    """Bytes of all parameters."""
    fingerprint: int

    @property
    def checksum(self) -> WeightsChecksum:
        """Fingerprint for a comparison with other trainers."""
        return WeightsChecksum(part=(), fingerprint=self.fingerprint)


def buckets_of(sizes: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Names of parameters, grouped in order so that a group has at most `BUCKET_BYTES`."""
    buckets, size = list[list[str]](), BUCKET_BYTES
    for name, nbytes in sizes.items():
        if size + nbytes > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += nbytes
    return tuple(tuple(names) for names in buckets)


@torch.no_grad()
def manifest_of(model: PreTrainedModel, *, version: int, policy_version: int, ranks: Ranks = ONE_RANK) -> Manifest:
    """Manifest of the current weights; ranks that hold parts all call this and gather one parameter at a time."""
    sizes, sums = dict[str, int](), list[Tensor]()
    for name, whole in full_parameters(model, ranks, everywhere=True):
        sizes[name] = whole.nbytes
        sums.append(bit_sums(whole))
    return Manifest(
        version=version,
        policy_version=policy_version,
        buckets=buckets_of(sizes),
        nbytes=sum(sizes.values()),
        fingerprint=folded(sums),
    )


@torch.no_grad()
def read_bucket(model: PreTrainedModel, names: Sequence[str], ranks: Ranks = ONE_RANK) -> list[np.ndarray]:
    """Bytes of these parameters on the CPU, without a copy where they are whole there; send them before an update. The
    first rank returns them; where ranks hold parts, the others call this too and get nothing."""
    found = full_parameters(model, ranks, names=names)
    return [whole.detach().view(-1).view(torch.uint8).cpu().numpy() for _, whole in found]


def write_buckets(model: nn.Module, manifest: Manifest, buckets: Iterable[Sequence[np.ndarray]]) -> None:
    """Copy all buckets of a manifest into the model's parameters.

    Raises:
        TrainingError: what is in the parameters then is not what was sent.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it written to
        arrived = (
            (name, torch.from_numpy(array).view(model.get_parameter(name).dtype))
            for names, arrays in zip(manifest.buckets, buckets, strict=True)
            for name, array in zip(names, arrays, strict=True)
        )
        found, _ = copy_weights(model, arrived)
    if found != manifest.fingerprint:
        raise TrainingError(
            f"weights of version {manifest.version} arrived as {found:016x}, they left as {manifest.fingerprint:016x}; "
            "look at the memory and the network of this machine, then resume"
        )


# --- by broadcast


class BroadcastGroup(Protocol):
    """The first rank and the ranks that only sample; all of them make the same calls."""

    def broadcast(self, tensor: Tensor) -> None:
        """Copy the first rank's tensor to the others; it is contiguous, with one size and dtype everywhere.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class WeightsGroup(BroadcastGroup):
    """A `BroadcastGroup` over gloo on CPUs and NCCL on GPUs, beside torch's default group, that of the trainers."""

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
def give_weights(group: BroadcastGroup, weights: Iterable[tuple[str, Tensor]], device: torch.device) -> tuple[int, int]:
    """Broadcast all weights, each after its name, then an empty name; returns their fingerprint and bytes."""
    sums, nbytes = list[Tensor](), 0
    for name, weight in weights:
        group.broadcast(_as_bytes(name, device))
        whole = weight.contiguous()
        group.broadcast(whole)
        sums.append(bit_sums(whole))
        nbytes += whole.nbytes
    group.broadcast(_as_bytes("", device))
    return folded(sums), nbytes


@torch.no_grad()
def take_weights(group: BroadcastGroup, model: nn.Module, device: torch.device) -> tuple[int, int]:
    """Receive what `give_weights` sends into the model's parameters; returns their fingerprint and bytes."""
    sums, nbytes = list[Tensor](), 0
    while True:
        said = torch.empty(NAME_BYTES, dtype=torch.uint8, device=device)
        group.broadcast(said)
        name = bytes(said.tolist()).rstrip(b"\0").decode()
        if not name:
            return folded(sums), nbytes
        parameter = model.get_parameter(name).detach()
        group.broadcast(parameter)
        sums.append(bit_sums(parameter))
        nbytes += parameter.nbytes


def _as_bytes(name: str, device: torch.device) -> Tensor:
    said = name.encode()
    if len(said) > NAME_BYTES:
        raise ValueError(f"a parameter's name may take {NAME_BYTES} bytes, {name!r} takes {len(said)}")
    return torch.tensor([*said.ljust(NAME_BYTES, b"\0")], dtype=torch.uint8, device=device)
