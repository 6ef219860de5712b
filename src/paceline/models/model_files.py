"""A whole model's directory: as transformers loads it, or in the pieces that several ranks have of it."""

import copy
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel

from paceline.parallel import Part, Ranks, part_of, piece_of, saved_tensors

PIECES = "pieces"
"""What files of pieces are called: transformers must not take one of them for the whole."""


def model_writer(model: PreTrainedModel, ranks: Ranks) -> Callable[[Path], list[Path]]:
    """What writes this rank's part of a model, weights as they are, into a directory; it says which files.

    All ranks make this call. The first one alone writes where it has all of the model.

    Raises:
        RankLost: another rank is gone, or silent for too long.
    """
    tensors = saved_tensors(model)
    part = part_of(PIECES, tensors, ranks, {})
    is_whole = len(part.pieces) == len(tensors) and all(piece_of(one).is_whole for one in tensors.values())
    said = ranks.exchange("whole" if is_whole else part.name)
    if said[0] == "whole" and not any(said[1:]):
        return lambda directory: _save_whole(model, directory) if ranks.rank == 0 else []
    return lambda directory: _save_part(model, part, directory, leads=ranks.rank == 0)


def _save_whole(model: PreTrainedModel, directory: Path) -> list[Path]:
    model.save_pretrained(directory)
    return sorted(path for path in directory.iterdir() if path.is_file())


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
