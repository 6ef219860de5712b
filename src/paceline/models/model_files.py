"""A whole model's directory: as transformers loads it, or in the pieces that several ranks have of it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from paceline.models.parallel.piece_files import NOTHING, Part, part_of
from paceline.models.parallel.pieces import piece_of, saved_tensors
from paceline.models.parallel.ranks import Ranks
from paceline.models.parallel.staging import StagingBuffers, copies

PIECES = "pieces"
"""What files of pieces are called: transformers must not take one of them for the whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles:
    """What a rank writes of a model: the whole as transformers loads it, or a part, described where it leads."""

    model: PreTrainedModel
    state: Mapping[str, Tensor]
    """The whole model's; empty where there is a part."""
    part: Part = NOTHING
    leads: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors; a tensor with two names counts once."""
        return self.part.nbytes + sum({tensor.data_ptr(): tensor.nbytes for tensor in self.state.values()}.values())

    def copied(self, staging: StagingBuffers) -> "ModelFiles":
        """Copy the tensors into staging buffers, so that they can be written while training continues."""
        return replace(self, state=copies(self.state, staging), part=self.part.copied(staging))

    def write(self, directory: Path) -> list[Path]:
        """Write this rank's files into a directory that is there, and say which."""
        if not self.state:
            return _save_part(self.model, self.part, directory, leads=self.leads)
        self.model.save_pretrained(directory, state_dict=dict(self.state))
        return sorted(path for path in directory.iterdir() if path.is_file())


def model_writer(model: PreTrainedModel, ranks: Ranks) -> ModelFiles | Part:
    """This rank's part of a model, weights as they are, to be written into a directory.

    All ranks make this call. The first one alone writes where it has all of the model.

    Raises:
        RankLost: another rank is gone, or silent for too long.
    """
    tensors = saved_tensors(model)
    part = part_of(PIECES, tensors, ranks, {})
    is_whole = len(part.pieces) == len(tensors) and all(piece_of(one).is_whole for one in tensors.values())
    said = ranks.all_gather_text("whole" if is_whole else part.name)
    if said[0] == "whole" and not any(said[1:]):
        return ModelFiles(model=model, state=_whole_state(model)) if ranks.rank == 0 else NOTHING
    return ModelFiles(model=model, state={}, part=part, leads=ranks.rank == 0)


def _whole_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """All of a model's tensors under all of their names, a tensor with two names as one object."""
    state = model.state_dict(keep_vars=True)
    own = {id(tensor): piece_of(tensor).tensor for tensor in state.values()}
    return {name: own[id(tensor)] for name, tensor in state.items()}


def _save_part(model: PreTrainedModel, part: Part, directory: Path, *, leads: bool) -> list[Path]:
    written = part.write(directory)
    if not leads:
        return written
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]  # as fully_shard calls its class
    config.dtype = model.dtype
    config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    return [*written, *(path for path in sorted(directory.glob("*.json")))]
