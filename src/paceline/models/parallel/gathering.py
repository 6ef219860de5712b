"""Whole weights of a model that lies in parts on the ranks: one tensor at a time, never all of them in one place."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
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


def full_parameters(
    model: PreTrainedModel, ranks: Ranks, *, everywhere: bool = False, names: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and whole value of every trained parameter, in the order of the whole model; all ranks go through it.

    Each tensor is made when it is asked for, on the model's device, and is the caller's to keep or let go; one that a
    rank has whole is the parameter's own memory. One that serves in two places comes once. Without `everywhere` the
    first rank alone gets them, and the others' iterators are empty. `names`: which are wanted; None: all.
    """
    tensors = saved_tensors(model)
    trained = {
        name: one
        for name, one in tensors.items()
        if isinstance(one, nn.Parameter) and one.requires_grad and (names is None or name in names)
    }
    return _whole(trained, ranks, everywhere=everywhere)


def full_tensors(model: PreTrainedModel, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """Yield what `full_parameters` does on the first rank, and frozen weights and saved buffers too."""
    return _whole(saved_tensors(model), ranks, everywhere=False)


def _whole(tensors: Mapping[str, Tensor], ranks: Ranks, *, everywhere: bool) -> Iterator[tuple[str, Tensor]]:
    if not ranks.sizes.splits_the_model:
        if everywhere or ranks.rank == 0:
            yield from ((name, tensor.detach()) for name, tensor in tensors.items())
        return
    # what there is on any rank, with its place in the whole model: by layer, and within one as the ranks have it
    own, is_behind = dict[str, tuple[int, list[int], str]](), False
    for name, tensor in tensors.items():
        number = _NUMBER.search(name)
        is_behind = is_behind or number is not None
        place = int(number[1]) if number is not None else _BEHIND if is_behind else _BEFORE
        own[name] = place, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    said = [json.loads(text) for text in ranks.all_gather_text(json.dumps(own))]
    names = dict.fromkeys(chain(*said))
    holders = {name: [rank for rank, one in enumerate(said) if name in one] for name in names}
    for name, (holder, *others) in sorted(holders.items(), key=lambda one: said[one[1][0]][one[0]][0]):
        _, shape, dtype = said[holder][name]
        found = tensors[name].detach() if name in tensors else None
        if isinstance(found, DTensor):
            if found.device.type != found.device_mesh.device_type:  # slices that wait in main memory
                found = cast(DTensor, found.to(found.device_mesh.device_type))
            with lost(f"rank {ranks.rank} was gathering a weight"):
                found = found.full_tensor()
        if len(others) + 1 < len(said) and (everywhere or holder != 0):
            if found is None:
                device = next(iter(tensors.values())).device
                found = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            found = ranks.broadcast(found.contiguous(), source=holder)
        if everywhere or ranks.rank == 0:
            assert found is not None  # it was here, or has been handed on
            yield name, found
