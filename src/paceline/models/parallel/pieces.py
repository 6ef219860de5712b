"""What of whole tensors lies on a rank: of each a box, with its place in the whole."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel

from paceline.models.parallel.ranks import Ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A box of a whole tensor."""

    tensor: Tensor
    """What lies in it: the memory itself, no copy."""
    offset: tuple[int, ...]
    """Index of its first element in the whole tensor."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""

    @property
    def is_whole(self) -> bool:
        """True if there is nothing else of the tensor."""
        return tuple(self.tensor.shape) == self.shape


def piece_of(tensor: Tensor) -> Piece:
    """The part of a tensor that is on this rank, which may have no elements; all of it, where ranks hold copies."""
    if not isinstance(tensor, DTensor):
        return Piece(tensor=tensor.detach(), offset=(0,) * tensor.ndim, shape=tuple(tensor.shape))
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(tensor=cast(DTensor, tensor.detach()).to_local(), offset=tuple(offset), shape=tuple(tensor.shape))


def like(local: Tensor, tensor: Tensor) -> Tensor:
    """A tensor whose part on this rank is `local`, and which lies on the ranks as `tensor` does."""
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def saved_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters, and the buffers that are saved, under their names in the whole model; what has two is there once."""
    # a rank that has the output embedding of a tied model and not the input's, which is the same, knows it by the
    # configuration: the first name of each such tensor, by its second one
    keys = type(model)._tied_weights_keys
    is_tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False) and isinstance(keys, dict)
    firsts = keys if is_tied else {}
    state = model.state_dict(keep_vars=True)
    seen, found = set[int](), dict[str, Tensor]()
    for name, tensor in state.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[firsts[name] if name in firsts and firsts[name] not in state else name] = tensor
    return found


def written_here(pieces: Mapping[str, Piece], ranks: Ranks) -> tuple[list[str], list[int]]:
    """Return the pieces that this rank writes, and the ranks that write any. All ranks make this call.

    Of those who hold the same piece the first one writes it; empty ones are not written.
    """
    own = {name: list(piece.offset) for name, piece in pieces.items() if piece.tensor.numel()}
    writers = dict[tuple[str, tuple[int, ...]], int]()
    for rank, text in enumerate(ranks.all_gather_text(json.dumps(own))):
        for name, offset in json.loads(text).items():
            writers.setdefault((name, tuple(offset)), rank)
    mine = [name for name, offset in own.items() if writers[name, tuple(offset)] == ranks.rank]
    return mine, sorted(set(writers.values()))
