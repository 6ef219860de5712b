"""A model that is ready to train, and its directories: a whole model as transformers loads it, pieces of several ranks,
or an adapter as peft loads it.

peft is imported only where an adapter is used: it is optional, and takes seconds.
"""

import contextlib
import copy
import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from paceline.config.packages import install_command
from paceline.errors import ModelError
from paceline.models.parallel.gathering import full_parameters, full_tensors
from paceline.models.parallel.pieces import NOTHING, Part, Writer, part_of, piece_of, saved_tensors
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.parallel.staging import StagingBuffers, copies
from paceline.models.places import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

    from paceline.models.vision.tower import Vision

PIECES = "pieces"
"""Stem of files of pieces, which transformers must not take for a whole model."""
ADAPTER_NAME = "default"
"""Name of a model's only adapter in peft, and in its tensors' names."""
NEEDS_PEFT = f"an adapter needs the library peft; `{install_command('peft')}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles(Writer):
    """Files that a rank writes: a whole model, a part of it or an adapter, with its configuration."""

    model: PreTrainedModel
    state: Mapping[str, Tensor]
    """Tensors of the whole model; empty if there is a part."""
    part: Part = NOTHING
    adapter: "PeftModel | None" = None
    """Set if `part` is the whole adapter and nothing else."""
    leads: bool = True
    """True for the rank that writes the configuration."""

    @property
    @override
    def nbytes(self) -> int:
        # a tensor with two names counts once
        return self.part.nbytes + sum({tensor.data_ptr(): tensor.nbytes for tensor in self.state.values()}.values())

    @override
    def copied(self, staging: StagingBuffers) -> "ModelFiles":
        return replace(self, state=copies(self.state, staging), part=self.part.copied(staging))

    @override
    def write(self, folder: Path) -> list[Path]:
        if self.state:
            self.model.save_pretrained(folder, state_dict=dict(self.state))
            return sorted(path for path in folder.iterdir() if path.is_file())
        folder.mkdir(parents=True, exist_ok=True)
        written = self.part.write(folder)
        if not self.leads:
            return written
        if self.adapter is not None:
            described: Any = copy.deepcopy(self.adapter.peft_config[ADAPTER_NAME])
            described.inference_mode = True
            if isinstance(described.target_modules, set):  # whose order changes between processes
                described.target_modules = sorted(described.target_modules)
            described.save_pretrained(str(folder))
            return [*written, folder / ADAPTER_CONFIG]
        config = copy.deepcopy(self.model.config)
        config.architectures = [type(self.model).__name__.removeprefix("FSDP")]  # as fully_shard calls its class
        config.dtype = self.model.dtype
        config.save_pretrained(folder)
        if self.model.generation_config is not None:
            self.model.generation_config.save_pretrained(folder)
        return [*written, *sorted(folder.glob("*.json"))]


def import_peft() -> ModuleType:
    """Return the library peft; ModelError if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise ModelError(NEEDS_PEFT) from error
    return peft


def read_adapter_config(directory: Path) -> "PeftConfig":
    """Read the configuration of an adapter to continue training; ModelError if it is unreadable."""
    peft = import_peft()
    try:
        config: PeftConfig = peft.PeftConfig.from_pretrained(str(directory))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{directory / ADAPTER_CONFIG} is no configuration that peft can read: {error}") from error
    config.inference_mode = False
    return config


def fill_adapter(adapter: "PeftModel", directory: Path) -> None:
    """Load weights into an adapter of the same shape; ModelError if they are unreadable, or another adapter's."""
    if not (directory / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{directory} has no {ADAPTER_WEIGHTS}; an adapter's weights are read from safetensors only")
    try:
        result = adapter.load_adapter(str(directory), ADAPTER_NAME, torch_device="cpu", is_trainable=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[-1].strip()
        raise ModelError(f"{directory / ADAPTER_WEIGHTS} cannot be loaded into its base model: {reason}") from error
    odd = [*result.missing_keys, *result.unexpected_keys]
    if odd:
        raise ModelError(f"{directory / ADAPTER_WEIGHTS} belongs to another adapter or base model; see tensor {odd[0]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model on its device with float32 weights, and the precision to compute in."""

    model: PreTrainedModel
    """The transformers model itself; under an adapter its layers hold the adapter's matrices."""
    compute_dtype: torch.dtype
    adapter: "PeftModel | None" = None
    """peft's view of the same layers: then the adapter is trained and all other weights are frozen."""
    stored_dtype: torch.dtype | None = None
    """Precision of the files or the object that the model was made of; None: not known."""
    vision: "Vision | None" = None
    """The part of the model that reads images; None: prompts are text."""

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Disable the adapter, if there is one, within the context."""
        if self.adapter is None:
            yield
            return
        # peft's own context manager also looks through the whole model for its state, which takes most of its time
        layers: Any = self.adapter.base_model
        changes_features = self.vision is not None and self.vision.is_trained
        layers.disable_adapter_layers()
        if self.vision is not None and changes_features:
            self.vision.forget()
        try:
            yield
        finally:
            layers.enable_adapter_layers()
            if self.vision is not None and changes_features:
                self.vision.forget()

    def forget_features(self) -> None:
        """Drop features of images that older weights have computed, where the encoder is trained."""
        if self.vision is not None and self.vision.is_trained:
            self.vision.forget()

    def weights_writer(self, ranks: Ranks = ONE_RANK) -> Writer:
        """Agree with all ranks on who writes which of the trained weights, in their own precision.

        The first rank writes an adapter in peft's format, or the whole model as transformers loads it if it has all of
        it; else each rank writes a file of pieces, and the first one the configuration.
        """
        if self.adapter is not None:
            whole = None
            if ranks.size > 1:  # peft's names begin with the place of the model in its own
                full = full_parameters(self.model, ranks)
                whole = {f"base_model.model.{name}": tensor.cpu() for name, tensor in full}
            if ranks.rank:
                return NOTHING
            # peft would else ask the Hub whether the base model's vocabulary has grown
            tensors = import_peft().get_peft_model_state_dict(
                self.adapter, state_dict=whole, save_embedding_layers=False
            )
            pieces = {name: piece_of(tensor) for name, tensor in tensors.items()}
            part = Part(name=ADAPTER_WEIGHTS, pieces=pieces, header={"format": "pt"})
            return ModelFiles(model=self.model, state={}, part=part, adapter=self.adapter)
        saved = saved_tensors(self.model)
        part = part_of(PIECES, saved, ranks, {})
        is_whole = len(part.pieces) == len(saved) and all(piece_of(tensor).is_whole for tensor in saved.values())
        names = ranks.all_gather_text("whole" if is_whole else part.name)
        if names[0] != "whole" or any(names[1:]):
            return ModelFiles(model=self.model, state={}, part=part, leads=ranks.rank == 0)
        if ranks.rank:
            return NOTHING
        # under all of their names, a tensor with two names as one object
        state = self.model.state_dict(keep_vars=True)
        here = {id(tensor): piece_of(tensor).tensor for tensor in state.values()}
        return ModelFiles(model=self.model, state={name: here[id(tensor)] for name, tensor in state.items()})


def export_model(
    loaded: Loaded,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    merge: bool,
    ranks: Ranks = ONE_RANK,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the model with its tokenizer: whole, or the adapter alone in float32; the umask decides who may read it.

    All `ranks` make this call; the first writes, and holds the whole model in main memory meanwhile. `merge`: on one
    rank, write the whole model with the adapter added, which takes the memory of a second model. `dtype`: precision of
    a whole model; None: that of its original files.
    ModelError: the adapter cannot be merged.
    """
    dtype = dtype or loaded.stored_dtype or loaded.model.dtype
    if loaded.adapter is None:
        is_split = ranks.size > 1
        state = (
            {name: tensor.to("cpu", dtype) for name, tensor in full_tensors(loaded.model, ranks)} if is_split else None
        )
    elif merge:
        if getattr(loaded.model, "is_quantized", False):
            raise ModelError(
                "an adapter cannot be merged into quantised weights, which would round it; write it without merging"
            )
        twin = copy.deepcopy(loaded.adapter)  # merging in place and back again would leave rounding behind
        try:
            merged: PreTrainedModel = twin.merge_and_unload()
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            kind = cast(Enum, twin.peft_config[twin.active_adapter].peft_type).value
            raise ModelError(
                f"an adapter of the kind {kind} cannot be merged ({error}); write it without merging"
            ) from error
        loaded, state = replace(loaded, model=merged, adapter=None), None
    else:
        writer = loaded.weights_writer(ranks)
        if ranks.rank == 0:
            writer.write(path)
            tokenizer.save_pretrained(path)
            _open_as(path, ADAPTER_CONFIG)
        return
    if ranks.rank == 0:
        save_model(loaded.model, tokenizer, path, dtype, state)
        if loaded.vision is not None:
            loaded.vision.write_settings(path)
        _open_as(path, "config.json")


def _open_as(folder: Path, described: str) -> None:
    """Give weight files the mode of the configuration file, as safetensors makes files readable by the owner only."""
    for file in folder.glob("*.safetensors"):
        file.chmod(stat.S_IMODE((folder / described).stat().st_mode))


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    dtype: torch.dtype,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a directory that `transformers` loads, weights in `dtype`, which config.json names too.

    `state`: the whole model's tensors, if `model` is only a part of it.
    """
    state = state or model.state_dict(keep_vars=True)
    # by identity: a tied matrix, one tensor under two names, stays one and is written once
    converted = {id(tensor): tensor.detach().to(dtype) for tensor in state.values()}
    model.save_pretrained(path, state_dict={name: converted[id(tensor)] for name, tensor in state.items()})
    config = json.loads((path / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(path)
