"""An adapter's directory in peft's format, and the import of peft, which is installed only where adapters are used."""

import copy
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from paceline.errors import ModelError
from paceline.models.parallel.gathering import full_parameters
from paceline.models.parallel.piece_files import NOTHING, Part
from paceline.models.parallel.ranks import ONE_RANK, Ranks
from paceline.models.parallel.staging import StagingBuffers, copies
from paceline.models.places import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

ADAPTER_NAME = "default"
"""What peft calls a model's only adapter; its tensors carry the name."""
NEEDS_PEFT = "an adapter needs the library peft; pip install 'paceline[peft]'"


def import_peft() -> ModuleType:
    """The library peft.

    Raises:
        ModelError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise ModelError(NEEDS_PEFT) from error
    return peft


def check_peft() -> None:
    """Return whether peft is installed, without the seconds that loading it takes.

    Raises:
        ModelError: it is not.
    """
    if importlib.util.find_spec("peft") is None:
        raise ModelError(NEEDS_PEFT)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFiles:
    """An adapter, to be written as peft loads it."""

    adapter: "PeftModel"
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def copied(self, staging: StagingBuffers) -> "AdapterFiles":
        """Copy the tensors into staging buffers, so that they can be written while training continues."""
        return replace(self, tensors=copies(self.tensors, staging))

    def write(self, directory: Path) -> list[Path]:
        """Write the adapter's two files."""
        return _write_adapter(self.adapter, self.tensors, directory)


def adapter_writer(adapter: "PeftModel", model: PreTrainedModel, ranks: Ranks = ONE_RANK) -> AdapterFiles | Part:
    """The adapter of `model` alone, weights as they are, to be written into a directory that peft loads.

    All ranks make this call; the first one writes, the others have nothing to write.

    Raises:
        RankLost: another rank is gone, or silent for too long.
    """
    peft = import_peft()
    whole = None
    if ranks.size > 1:  # peft's names begin with the place of the model in its own
        whole = {f"base_model.model.{name}": tensor.cpu() for name, tensor in full_parameters(model, ranks)}
    if ranks.rank:
        return NOTHING
    # peft would else ask the Hub whether the base model's vocabulary has grown
    tensors = peft.get_peft_model_state_dict(adapter, state_dict=whole, save_embedding_layers=False)
    return AdapterFiles(adapter=adapter, tensors=tensors)


def _write_adapter(adapter: "PeftModel", tensors: Mapping[str, Tensor], directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    # copies, so that two names of one tensor are two tensors, as the format wants
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    save_file(copies, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    described: Any = copy.deepcopy(adapter.peft_config[ADAPTER_NAME])
    described.inference_mode = True
    if isinstance(described.target_modules, set):
        described.target_modules = sorted(described.target_modules)  # the order of a set changes between processes
    described.save_pretrained(str(directory))
    return [directory / ADAPTER_WEIGHTS, directory / ADAPTER_CONFIG]


def read_adapter_config(directory: Path) -> "PeftConfig":
    """The configuration of the adapter in `directory`, ready to go on training.

    Raises:
        ModelError: it cannot be read.
    """
    peft = import_peft()
    try:
        config: PeftConfig = peft.PeftConfig.from_pretrained(str(directory))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{directory / ADAPTER_CONFIG} is no configuration that peft can read: {error}") from error
    config.inference_mode = False
    return config


def fill_adapter(adapter: "PeftModel", directory: Path) -> None:
    """Put the weights in `directory` into an adapter of the same shape.

    Raises:
        ModelError: they cannot be read, or belong to another adapter or base model.
    """
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
