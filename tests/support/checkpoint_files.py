"""Checkpoints in one call, and what is in their files, to be compared."""

import json
from pathlib import Path
from typing import Any

from paceline.checkpoints.finding import Checkpoint, TrainingState
from paceline.checkpoints.saving import take_checkpoint
from paceline.models.parallel.ranks import ONE_RANK, Ranks


def save_checkpoint(root: Path, state: TrainingState, *, ranks: Ranks = ONE_RANK, **given: Any) -> Checkpoint:
    """Take one and write it before this returns."""
    return take_checkpoint(root, state, ranks=ranks, **given).write(ranks)


def content(place: Path) -> dict[str, object]:
    """Every file but the manifest, by name; of tensors the header as an object, as its entries come in any order."""
    found: dict[str, object] = {}
    for path in place.rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            data, start = path.read_bytes(), 8 + int.from_bytes(path.read_bytes()[:8], "little")
            is_tensors = path.suffix == ".safetensors"
            found[str(path.relative_to(place))] = (json.loads(data[8:start]), data[start:]) if is_tensors else data
    return found
