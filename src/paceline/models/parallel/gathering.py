"""Gather the whole weights of a model that is split over ranks: one tensor at a time, never all of them at once."""

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
"""Numbers that sort tensors outside the layers before or after all of them."""


def full_parameters(
    model: PreTrainedModel, ranks: Ranks, *, everywhere: bool = False, names: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and whole value of every trained parameter, in the model's order. All ranks must iterate to the end.

    Tensors are gathered lazily, on the model's device; one that a rank has whole is the parameter's own memory. A tied
    parameter comes once. Without `everywhere` only the first rank gets values, and the others' iterators are empty.
    `names` selects parameters; None: all.
    """
    tensors = saved_tensors(model)
    trained = {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad and (names is None or name in names)
    }
    return _whole(trained, ranks, everywhere=everywhere)


def full_tensors(model: PreTrainedModel, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """Yield, on the first rank, every parameter and saved buffer, frozen ones too; see `full_parameters`."""
    return _whole(saved_tensors(model), ranks, everywhere=False)


def _whole(tensors: Mapping[str, Tensor], ranks: Ranks, *, everywhere: bool) -> Iterator[tuple[str, Tensor]]:
    if not ranks.sizes.splits_the_model:
        if everywhere or ranks.rank == 0:
            yield from ((name, tensor.detach()) for name, tensor in tensors.items())
        return
    # the tensors of any rank in the order of the whole model: by layer, and within a layer in the order of its rank
    here, is_behind = dict[str, tuple[int, list[int], str]](), False
    for name, tensor in tensors.items():
        number = _NUMBER.search(name)
        is_behind = is_behind or number is not None
        layer = int(number[1]) if number is not None else _BEHIND if is_behind else _BEFORE
        here[name] = layer, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    listed = [json.loads(text) for text in ranks.all_gather_text(json.dumps(here))]
    names = dict.fromkeys(chain(*listed))
    holders = {name: [rank for rank, names_there in enumerate(listed) if name in names_there] for name in names}
    for name, (holder, *others) in sorted(holders.items(), key=lambda holding: listed[holding[1][0]][holding[0]][0]):
        _, shape, dtype = listed[holder][name]
        whole = tensors[name].detach() if name in tensors else None
        if isinstance(whole, DTensor):
            if whole.device.type != whole.device_mesh.device_type:  # slices that wait in main memory
                whole = cast(DTensor, whole.to(whole.device_mesh.device_type))
            with lost(f"rank {ranks.rank} was gathering a weight"):
                whole = whole.full_tensor()
        if len(others) + 1 < len(listed) and (everywhere or holder != 0):
            if whole is None:
                device = next(iter(tensors.values())).device
                whole = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            whole = ranks.broadcast(whole.contiguous(), source=holder)
        if everywhere or ranks.rank == 0:
            assert whole is not None  # it was here, or was received
            yield name, whole
