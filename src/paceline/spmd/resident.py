"""What a rank samples from where training has the model in parts: a whole copy, renewed from the parts."""

import time

import torch

from paceline.models import Loaded
from paceline.parallel import Ranks, full_parameters
from paceline.train import Handover


def renew(resident: Loaded, policy: Loaded, ranks: Ranks) -> Handover:
    """Put the trained weights, one whole after the other, into the copy; all ranks make this call together."""
    started, nbytes = time.perf_counter(), 0
    with torch.no_grad():
        for name, whole in full_parameters(policy.model, ranks, everywhere=True):
            resident.model.get_parameter(name).copy_(whole)
            nbytes += whole.nbytes
    return Handover(seconds=time.perf_counter() - started, nbytes=nbytes)
