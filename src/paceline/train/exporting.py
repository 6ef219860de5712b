"""A checkpoint, of however many ranks, to the directory that a finished run would have."""

from dataclasses import replace
from pathlib import Path

from paceline.checkpoint import Checkpoint
from paceline.config import Config
from paceline.models import choose_device, choose_dtype, export_model, load_model, load_tokenizer


def export_checkpoint(config: Config, checkpoint: Checkpoint, folder: Path) -> None:
    """Write what transformers or peft loads, in the precision of the run's device; the weights fit in main memory.

    Raises:
        ModelError: the weights cannot be read, or are an adapter that cannot be merged.
    """
    in_main_memory = replace(config.model, device="cpu")
    tokenizer = load_tokenizer(replace(in_main_memory, model=str(checkpoint.model)))
    loaded = load_model(in_main_memory, config.lora, checkpoint=checkpoint.model, seed=config.loop.seed)
    device = choose_device(config.model)
    compute = choose_dtype(config.model, device, loaded.model.num_parameters())
    dtype = compute if device.type == "cuda" else loaded.model.dtype
    export_model(loaded, tokenizer, folder, merge=config.lora.merge_lora, dtype=dtype)
