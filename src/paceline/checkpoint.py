"""Atomic save and restore of everything that makes the next step. Safetensors and JSON only; no pickle.

    checkpoints/step-000100/
      model/                   a directory that `transformers` loads, weights in float32
      optimizer.safetensors    AdamW's moments and counts by parameter name
      progress.json            step, position in the data, policy version
      manifest.json            size and SHA-256 of every other file

Randomness needs no saving: order and samples are functions of the seed and of the position. A checkpoint is written
beside its place, synced and renamed, so it is complete or absent.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What torch's AdamW keeps for each parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands."""

    step: int
    """Steps done."""
    position: int
    """Tasks taken from the data order, over all epochs."""
    policy_version: int
    """Optimiser updates done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    progress: Progress

    @property
    def model(self) -> Path:
        """The directory that `transformers` loads."""
        return self.path / "model"


def save_checkpoint(
    root: Path,
    progress: Progress,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    keep: int,
) -> Checkpoint:
    """Write `root/step-NNNNNN` and then remove all but the newest `keep`."""
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    place, draft = root / f"step-{progress.step:06d}", root / f"draft-{progress.step:06d}"
    model.save_pretrained(draft / "model")
    tokenizer.save_pretrained(draft / "model")
    save_file(_optimizer_tensors(optimizer, model), draft / "optimizer.safetensors")
    (draft / "progress.json").write_text(json.dumps(asdict(progress)) + "\n")
    manifest = {name: _fingerprint(draft / name) for name in _files(draft)}
    (draft / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for name in _files(draft):
        _sync(draft / name)
    for folder in (draft / "model", draft):
        _sync(folder)
    if place.exists():
        _discard(place)
    draft.rename(place)
    _sync(root)
    for old in sorted(root.glob("step-*"))[:-keep]:
        _discard(old)
    return Checkpoint(path=place, progress=progress)


def newest_checkpoint(root: Path) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint whose files are all there and unchanged, and a sentence for each newer damaged one."""
    damaged: list[str] = []
    for place in sorted(root.glob("step-*"), reverse=True):
        try:
            return _verified(place), tuple(damaged)
        except CheckpointError as error:
            damaged.append(str(error))
    return None, tuple(damaged)


def load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, model: PreTrainedModel) -> None:
    """Put the saved moments into `optimizer`, whose parameters are `model`'s.

    Raises:
        CheckpointError: the file cannot be read, or belongs to another model.
    """
    path = checkpoint.path / "optimizer.safetensors"
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        name = names[id(parameter)]
        state = {moment: saved[f"{moment}.{name}"] for moment in MOMENTS if f"{moment}.{name}" in saved}
        if state and (len(state) < len(MOMENTS) or state["exp_avg"].shape != parameter.shape):
            raise CheckpointError(f"{path} holds no matching moments for parameter {name}; it is another model's")
        if state:
            on_device = {moment: tensor.to(parameter.device) for moment, tensor in state.items() if moment != "step"}
            optimizer.state[parameter] = {"step": state["step"], **on_device}


def remove_leftovers(root: Path) -> None:
    """Remove half-written and half-removed checkpoints of an attempt that was killed."""
    for leftover in [*root.glob("draft-*"), *root.glob("discarded-*")]:
        shutil.rmtree(leftover)


def _optimizer_tensors(optimizer: torch.optim.Optimizer, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{moment}.{names[id(parameter)]}": state[moment].detach().cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for moment in MOMENTS
    }


def _verified(place: Path) -> Checkpoint:
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        for name, expected in manifest.items():
            if _fingerprint(place / name) != expected:
                raise CheckpointError(f"{place / name} is not the file that was saved; the checkpoint is skipped")
        progress = Progress(**json.loads((place / "progress.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{place} is not a whole checkpoint and is skipped: {error}") from error
    return Checkpoint(path=place, progress=progress)


def _files(folder: Path) -> Iterator[str]:
    return iter(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))


def _fingerprint(path: Path) -> dict[str, str | int]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(place: Path) -> None:
    """Rename first: a checkpoint that is half removed must not look whole."""
    doomed = place.with_name(f"discarded-{place.name}")
    place.rename(doomed)
    shutil.rmtree(doomed)
