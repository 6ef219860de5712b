"""Atomic save and restore of everything that makes the next step. Safetensors and JSON only; no pickle.

    checkpoints/step-000100/
      model/                   a directory that `transformers` loads, weights in float32; of an adapter, peft's format
      optimizer.safetensors    the optimiser's tensors by parameter name, its numbers in the header
      reference.safetensors    the reference model, where it moves during the run
      progress.json            step, position in the data, policy version
      manifest.json            size and SHA-256 of every other file

Randomness needs no saving: order and samples are functions of the seed and of the position. A checkpoint is written
beside its place, synced and renamed, so it is complete or absent.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model as read_whole
from safetensors.torch import save_file
from safetensors.torch import save_model as write_whole
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import CheckpointError

_PLACE = re.compile(r"step-(\d{6,})")

Names = dict[int, str]
"""A model's parameter names by the parameters' identity."""


class Trained(Protocol):
    """A model that knows which of its weights training changes."""

    @property
    def model(self) -> PreTrainedModel:
        """The model whose parameters the optimiser has."""

    def save_weights(self, directory: Path) -> None:
        """Write the weights that training changes, exactly, into a directory."""


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
        """The directory that `transformers` loads, or `peft` where an adapter is trained."""
        return self.path / "model"


def save_checkpoint(  # noqa: PLR0913 - one call holds everything that makes the next step
    root: Path,
    progress: Progress,
    *,
    loaded: Trained,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    keep: int,
    reference: Trained | None = None,
    protected: Collection[Path] = (),
) -> Checkpoint:
    """Write `root/step-NNNNNN` and then remove all but the newest `keep`.

    Args:
        root: where the run's checkpoints lie.
        progress: where the run stands.
        loaded: the policy.
        tokenizer: written beside the weights.
        optimizer: torch's or any other that keeps tensors and numbers for each of the policy's parameters.
        keep: how many checkpoints stay.
        reference: given where it moves during the run and cannot be read from its own place.
        protected: checkpoints that stay besides the newest, for example the best.

    Raises:
        CheckpointError: the optimiser keeps something else; nothing is committed.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    place, draft = root / f"step-{progress.step:06d}", root / f"draft-{progress.step:06d}"
    loaded.save_weights(draft / "model")
    tokenizer.save_pretrained(draft / "model")
    _write_optimizer(draft / "optimizer.safetensors", optimizer, _names(loaded.model))
    if reference is not None:
        write_whole(reference.model, str(draft / "reference.safetensors"))
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
    for _, old in _numbered(root)[:-keep]:
        if old not in protected:
            _discard(old)
    return Checkpoint(path=place, progress=progress)


def newest_checkpoint(root: Path) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint whose files are all there and unchanged, and a sentence for each newer damaged one.

    Raises:
        CheckpointError: there are checkpoints and none is whole: going on would start anew and forget the run.
    """
    damaged: list[str] = []
    for _, place in reversed(_numbered(root)):
        try:
            return read_checkpoint(place), tuple(damaged)
        except CheckpointError as error:
            damaged.append(str(error))
    if damaged:
        raise CheckpointError(f"{root} holds no whole checkpoint; restore one or start a new run: {'; '.join(damaged)}")
    return None, ()


def load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, model: PreTrainedModel) -> None:
    """Put the saved state into `optimizer`, whose parameters are `model`'s; its rates stay as they are.

    Raises:
        CheckpointError: the file cannot be read, or belongs to another model or optimiser.
    """
    path = checkpoint.path / "optimizer.safetensors"
    tensors, kind, numbers, shapes = _read_optimizer(path)
    if kind != type(optimizer).__name__:
        raise CheckpointError(
            f"{path} holds the state of {kind}, the run has {type(optimizer).__name__}; "
            "give the --optimizer and --optimizer-offload that it was saved with"
        )
    names, parameters = _names(model), _parameters(optimizer)
    present = {_name(parameter, names): list(parameter.shape) for parameter in parameters}
    for name in [*present, *shapes]:
        if present.get(name) != shapes.get(name):
            raise CheckpointError(f"{path} holds no matching state for parameter {name}; it is another model's")
    states: dict[str, dict[str, Tensor | float]] = {}
    for label, value in [*tensors.items(), *numbers.items()]:
        key, _, name = label.partition(".")
        states.setdefault(name, {})[key] = value
    by_index = {index: states[name] for index, name in enumerate(present) if name in states}
    optimizer.load_state_dict({"state": by_index, "param_groups": optimizer.state_dict()["param_groups"]})
    _restore_precision(optimizer, {parameters[index]: state for index, state in by_index.items()})


def load_reference_weights(checkpoint: Checkpoint, reference: Trained) -> None:
    """Put the saved weights of a reference that moves into `reference`.

    Raises:
        CheckpointError: they are not there, cannot be read, or belong to another model.
    """
    path = checkpoint.path / "reference.safetensors"
    try:
        read_whole(reference.model, path)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[-1].strip()
        raise CheckpointError(f"{path} cannot be read into the reference model: {reason}") from error


def remove_later(root: Path, step: int) -> None:
    """Remove the checkpoints after `step`, which a run that goes on from there makes again."""
    for number, place in reversed(_numbered(root)):
        if number > step:
            _discard(place)


def remove_leftovers(root: Path) -> None:
    """Remove half-written and half-removed checkpoints of an attempt that was killed."""
    for leftover in [*root.glob("draft-*"), *root.glob("discarded-*")]:
        shutil.rmtree(leftover)


def _numbered(root: Path) -> list[tuple[int, Path]]:
    """Steps and their directories in order; a copy that somebody put beside them under another name is left alone."""
    named = ((_PLACE.fullmatch(path.name), path) for path in root.glob("step-*"))
    return sorted((int(match[1]), path) for match, path in named if match is not None)


def _names(model: PreTrainedModel) -> Names:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _name(parameter: object, names: Names) -> str:
    if id(parameter) not in names:
        raise CheckpointError("the optimiser keeps state that is not a parameter's of the model; it cannot be saved")
    return names[id(parameter)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _write_optimizer(path: Path, optimizer: torch.optim.Optimizer, names: Names) -> None:
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    seen: set[int] = set()
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            label = f"{key}.{_name(parameter, names)}"
            if isinstance(value, Tensor) and "." not in key:
                # a copy where the parameters share one, such as a table of quantised values: the format has none shared
                saved = value.detach().cpu().contiguous()
                tensors[label] = saved.clone() if saved.data_ptr() in seen else saved
                seen.add(saved.data_ptr())
            elif isinstance(value, int | float) and "." not in key:
                numbers[label] = value
            else:
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps {key!r} as a {type(value).__name__} for each parameter, a "
                    "checkpoint holds tensors and numbers only; use another optimiser, or --save-steps 0"
                )
    shapes = {_name(parameter, names): list(parameter.shape) for parameter in _parameters(optimizer)}
    header = {"kind": type(optimizer).__name__, "numbers": json.dumps(numbers), "shapes": json.dumps(shapes)}
    save_file(tensors, path, metadata=header)


def _read_optimizer(path: Path) -> tuple[dict[str, Tensor], str, dict[str, float], dict[str, list[int]]]:
    """Tensors, the optimiser's class, numbers, and the shapes of the parameters."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata()
            tensors = {label: file.get_tensor(label) for label in file.keys()}  # noqa: SIM118 - not a dict
        return tensors, header["kind"], json.loads(header["numbers"]), json.loads(header["shapes"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _restore_precision(optimizer: torch.optim.Optimizer, states: dict[Tensor, dict[str, Tensor | float]]) -> None:
    """torch turns what it loads into the parameter's precision, which is not always the state's own."""
    for parameter, saved in states.items():
        state = optimizer.state[parameter]
        for key, value in saved.items():
            if isinstance(value, Tensor) and state[key].dtype != value.dtype:
                state[key] = value.to(state[key].device)


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in the directory `place`.

    Raises:
        CheckpointError: a file is missing or is not as it was saved.
    """
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
