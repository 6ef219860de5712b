"""What a rank samples from where training has the model in parts: a whole copy, renewed from the parts."""

import torch
from torch import Tensor

from paceline.models.fingerprints import bit_sums, folded
from paceline.models.loaded import Loaded
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.ranks import Ranks


@torch.no_grad()
def renew(resident: Loaded, policy: Loaded, ranks: Ranks) -> tuple[int, int]:
    """Put the trained weights, one whole after the other, into the copy; all ranks make this call together.

    Returns:
        The fingerprint of what is in the copy then, and how many bytes came.
    """
    sums, nbytes = list[Tensor](), 0
    for name, whole in full_parameters(policy.model, ranks, everywhere=True):
        sums.append(bit_sums(resident.model.get_parameter(name), whole.contiguous()))
        nbytes += whole.nbytes
    return folded(sums), nbytes
