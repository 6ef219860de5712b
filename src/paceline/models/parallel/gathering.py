"""Whole weights of a model that lies in parts on the ranks: one tensor at a time, never all of them in one place."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from paceline.models.parallel.pieces import saved_tensors
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.ranks import Ranks

_NUMBER = re.compile(r"\.(\d+)\.")
_BEFORE, _BEHIND = -1, 1 << 30
"""Places of what comes before all layers and after them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """A tensor as all ranks know it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    holder: int
    """The first rank that has it, or its part of it."""
    is_everywhere: bool
    """True if every rank has it, or its part of it."""


def full_parameters(
    model: PreTrainedModel, ranks: Ranks, *, everywhere: bool = False, names: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value of every trained parameter, in the order of the whole model. All ranks go through it.

    Each tensor is made when it is asked for, on the model's device, and is the caller's to keep or let go; one that a
    rank has whole is the parameter's own memory. One that serves in two places comes once.

    Args:
        model: this rank's part.
        ranks: those that the model lies on.
        everywhere: whether all ranks get them, or the first one alone; the others' iterators are then empty.
        names: of those that are wanted; None: all.
    """
    tensors = saved_tensors(model)
    trained = {
        name: one
        for name, one in tensors.items()
        if isinstance(one, nn.Parameter) and one.requires_grad and (names is None or name in names)
    }
    return _whole(trained, ranks, everywhere=everywhere)


def full_tensors(model: PreTrainedModel, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """As `full_parameters` for the first rank, with all that is saved of a model: frozen weights and buffers too."""
    return _whole(saved_tensors(model), ranks, everywhere=False)


def _whole(tensors: Mapping[str, Tensor], ranks: Ranks, *, everywhere: bool) -> Iterator[tuple[str, Tensor]]:
    if not ranks.sizes.splits_the_model:
        if everywhere or ranks.rank == 0:
            yield from ((name, tensor.detach()) for name, tensor in tensors.items())
        return
    for kept in _all_of(tensors, ranks):
        found = tensors[kept.name].detach() if kept.name in tensors else None
        if isinstance(found, DTensor):
            if found.device.type != found.device_mesh.device_type:  # slices that wait in main memory
                found = cast(DTensor, found.to(found.device_mesh.device_type))
            with lost(f"rank {ranks.rank} was gathering a weight"):
                found = found.full_tensor()
        if not kept.is_everywhere and (everywhere or kept.holder != 0):
            if found is None:
                device = next(iter(tensors.values())).device
                found = torch.empty(kept.shape, dtype=kept.dtype, device=device)
            found = ranks.broadcast(found.contiguous(), source=kept.holder)
        if everywhere or ranks.rank == 0:
            assert found is not None  # it was here, or has been handed on
            yield kept.name, found


def _all_of(tensors: Mapping[str, Tensor], ranks: Ranks) -> list[_Kept]:
    """What there is on any rank, in the order of the whole model: by layer, and within one as the ranks have it."""
    own = {
        name: (place, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for (name, tensor), place in zip(tensors.items(), _places(list(tensors)), strict=True)
    }
    said = [json.loads(text) for text in ranks.all_gather_text(json.dumps(own))]
    found = dict[str, tuple[int, _Kept]]()
    for rank, names in enumerate(said):
        for name, (place, shape, dtype) in names.items():
            if name not in found:
                found[name] = (
                    place,
                    _Kept(
                        name=name,
                        shape=tuple(shape),
                        dtype=getattr(torch, dtype),
                        holder=rank,
                        is_everywhere=all(name in others for others in said),
                    ),
                )
    return [kept for _, kept in sorted(found.values(), key=lambda one: one[0])]


def _places(names: list[str]) -> list[int]:
    """The layer that each belongs to, by the first number in its name; what has none comes before all or after."""
    layers = [None if (match := _NUMBER.search(name)) is None else int(match[1]) for name in names]
    places, is_behind = list[int](), False
    for layer in layers:
        is_behind = is_behind or layer is not None
        places.append(layer if layer is not None else _BEHIND if is_behind else _BEFORE)
    return places
