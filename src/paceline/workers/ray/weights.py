"""Weight sync from trainers to samplers: a manifest, byte buckets, and a fingerprint verified on both ends.

Only trained parameters travel; of a model with an adapter, the adapter alone.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.errors import TrainingError
from paceline.models.fingerprints import bit_sums, folded
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.ranks import ONE_RANK, Ranks

BUCKET_BYTES = 1 << 28
"""Largest message, unless a single parameter is larger: small enough to spread over a cluster."""


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


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters with a gradient by name; a tied one appears once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


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
    """Manifest of the current weights. Where ranks hold parts, all of them call this and gather one parameter at a
    time."""
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
    return [_bytes(whole).cpu().numpy() for _, whole in full_parameters(model, ranks, names=names)]


@torch.no_grad()
def write_buckets(model: nn.Module, manifest: Manifest, buckets: Iterable[Sequence[np.ndarray]]) -> None:
    """Copy all buckets of a manifest into the model's parameters.

    Raises:
        TrainingError: what is in the parameters then is not what was sent.
    """
    parameters, sums = trained_parameters(model), list[Tensor]()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it written to
        for names, arrays in zip(manifest.buckets, buckets, strict=True):
            for name, array in zip(names, arrays, strict=True):
                parameter = parameters[name]
                sums.append(bit_sums(parameter, torch.from_numpy(array).view(parameter.dtype)))
    found = folded(sums)
    if found != manifest.fingerprint:
        raise TrainingError(
            f"weights of version {manifest.version} arrived as {found:016x}, they left as {manifest.fingerprint:016x}; "
            "look at the memory and the network of this machine, then resume"
        )


def _bytes(parameter: Tensor) -> Tensor:
    return parameter.detach().view(-1).view(torch.uint8)
