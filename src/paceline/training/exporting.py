"""What a run has saved, of however many ranks, to the directory of its end."""

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.models.exporting import export_model
from paceline.models.loading import load_model
from paceline.models.pretrained import load_tokenizer
from paceline.runtime.devices import choose_device, choose_dtype


def export_checkpoint(config: Config, checkpoint: Checkpoint, folder: Path) -> None:
    """Write what transformers or peft loads, as the end of the run would; the weights fit in main memory.

    Raises:
        ModelError: the weights cannot be read, or are an adapter that cannot be merged.
    """
    tokenizer = load_tokenizer(replace(config.model, model=str(checkpoint.model)))
    export_saved(config, checkpoint.model, tokenizer, folder)


def export_saved(config: Config, saved: Path, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The same of a directory with weights that training has changed: a model's, whole or in pieces, or an adapter's.

    Raises:
        ModelError: see `export_checkpoint`.
    """
    loaded = load_model(replace(config.model, device="cpu"), config.lora, checkpoint=saved, seed=config.loop.seed)
    device = choose_device(config.model)
    compute = choose_dtype(config.model, device, loaded.model.num_parameters())
    dtype = compute if device.type == "cuda" else loaded.model.dtype
    export_model(loaded, tokenizer, folder, merge=config.lora.merge_lora, dtype=dtype)
