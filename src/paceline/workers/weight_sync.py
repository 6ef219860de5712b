"""Weight sync from trainers to samplers. Only trained parameters travel; of a model with an adapter, the adapter alone.

A manifest says what travels, in which buckets, and the fingerprint of all of it. Each sampler writes what arrives into
its own parameters, and computes their fingerprint in the same pass over memory. Buckets travel through Ray's object
store, or as one broadcast after the other from the first rank. Ranks that train parts copy the whole on their device.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.errors import TrainingError
from paceline.kernels.checksums import bit_sums, folded
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.training.rollouts.rounds import WeightTransfer

BUCKET_BYTES = 1 << 28
"""Largest message of the store, unless a single parameter is larger: small enough to spread over a cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsChecksum:
    """Fingerprint of the weights on a rank."""

    part: tuple[int, ...]
    """Part of the model on this rank; ranks with the same part hold copies. Empty for the whole model."""
    fingerprint: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """A rank's report on the copy that it samples from."""

    transfer: WeightTransfer
    held: WeightsChecksum | None
    """Weights that it has now; None if it samples from those that it trains, or has them already."""


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> tuple[int, int]:
    """Copy weights into a model's parameters of the same names; returns their fingerprint there and their bytes."""
    sums, nbytes = list[Tensor](), 0
    for name, weight in weights:
        parameter = model.get_parameter(name)
        is_there = weight.data_ptr() == parameter.data_ptr()
        sums.append(bit_sums(parameter, None if is_there else weight.contiguous()))
        nbytes += weight.nbytes
    return folded(sums), nbytes


def check_copies(held: Sequence[WeightsChecksum | None], *, policy_version: int, who: str) -> None:
    """Compare the fingerprints of trainers or ranks after an update; None is skipped. `who` is the word for one.

    Raises:
        TrainingError: two hold different copies of one part; the sentence names both.
    """
    first = dict[tuple[int, ...], tuple[int, int]]()
    for rank, checksum in enumerate(held):
        if checksum is None:
            continue
        other, wanted = first.setdefault(checksum.part, (rank, checksum.fingerprint))
        if checksum.fingerprint != wanted:
            raise TrainingError(
                f"{who} {rank} has weights {checksum.fingerprint:016x} after update {policy_version}, {who} {other} "
                f"has {wanted:016x}; they must be the same, so look at the machines, then resume"
            )


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
    def names(self) -> Iterator[str]:
        """Names of all parameters, in order."""
        return (name for names in self.buckets for name in names)


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
def manifest_of(
    model: PreTrainedModel,
    *,
    version: int,
    policy_version: int,
    ranks: Ranks = ONE_RANK,
    keep: Callable[[str, Tensor], None] | None = None,
) -> Manifest | None:
    """Manifest of the current weights, on the first rank; those that hold parts gather one at a time with it.

    `keep` is given each whole weight in its turn.
    """
    sizes, sums = dict[str, int](), list[Tensor]()
    for name, whole in full_parameters(model, ranks):
        sizes[name] = whole.nbytes
        sums.append(bit_sums(whole.contiguous()))
        if keep is not None:
            keep(name, whole)
    if ranks.rank:
        return None
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
    return [bytes_of(whole) for _, whole in full_parameters(model, ranks, names=names)]


def write_weights(model: nn.Module, manifest: Manifest, arrived: Iterable[tuple[str, Tensor]]) -> None:
    """Copy all weights of a manifest, which come in its order, into the model's parameters.

    Raises:
        TrainingError: what is in the parameters then is not what was sent.
    """
    checksum, _ = copy_weights(model, arrived)
    if checksum != manifest.fingerprint:
        raise TrainingError(
            f"weights of version {manifest.version} arrived as {checksum:016x}, they left as "
            f"{manifest.fingerprint:016x}; look at the memory and the network of this machine, then resume"
        )


def bytes_of(weight: Tensor) -> np.ndarray:
    """Bytes of a weight on the CPU, without a copy where it lies there."""
    return weight.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()


def weights_in(
    model: nn.Module, manifest: Manifest, buckets: Iterable[Sequence[np.ndarray]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of all buckets, in the precision that the model's parameters have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it written to
        for names, arrays in zip(manifest.buckets, buckets, strict=True):
            for name, array in zip(names, arrays, strict=True):
                yield name, torch.from_numpy(array).view(model.get_parameter(name).dtype)


# --- by broadcast


class WeightsGroup:
    """The first rank and the ranks that only sample, over gloo on CPUs and NCCL on GPUs; all make the same calls.

    It is beside torch's default group, that of the trainers.
    """

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

    def broadcast(self, tensor: Tensor) -> None:
        """Copy the first rank's tensor to the others; it is contiguous, with one size and dtype everywhere.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """
        with lost("weights were sent to the ranks that sample"):
            self._group.broadcast(tensor, 0).wait()


@torch.no_grad()
def give_weights(group: WeightsGroup, manifest: Manifest, weights: Mapping[str, Tensor], device: torch.device) -> None:
    """Send all weights of a manifest to those that only sample, one after the other in its order."""
    for name in manifest.names:
        group.broadcast(weights[name].to(device).contiguous())


@torch.no_grad()
def taken(group: WeightsGroup, model: nn.Module, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
    """Receive each weight that `give_weights` sends into the parameter of its name."""
    for name in manifest.names:
        parameter = model.get_parameter(name).detach()
        group.broadcast(parameter)
        yield name, parameter
