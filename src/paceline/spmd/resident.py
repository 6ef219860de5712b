"""What a rank samples from where training has the model in parts: a whole copy, renewed from the parts."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.models import Loaded
from paceline.parallel import Ranks
from paceline.train import Handover


def renew(resident: Loaded, policy: Loaded, ranks: Ranks) -> Handover:
    """Put the trained weights, one whole after the other, into the copy; all ranks make this call together."""
    started, nbytes = time.perf_counter(), 0
    with torch.no_grad():
        for name, whole in full_parameters(policy.model, ranks, everywhere=True):
            resident.model.get_parameter(name).copy_(whole)
            nbytes += whole.nbytes
    return Handover(seconds=time.perf_counter() - started, nbytes=nbytes)


def full_parameters(model: nn.Module, ranks: Ranks, *, everywhere: bool) -> Iterator[tuple[str, Tensor]]:
    """Name and whole of each trained parameter, one at a time; all ranks take them together."""
    assert everywhere
    assert ranks.sizes.pipeline == 1
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
