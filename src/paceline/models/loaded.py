"""A model that is ready to train, with its adapter where it has one."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from paceline.models.model_files import adapter_writer, model_writer
from paceline.models.parallel.pieces import Writer
from paceline.models.parallel.ranks import ONE_RANK, Ranks

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model on its device with float32 weights, and the precision to compute in."""

    model: PreTrainedModel
    """The transformers model itself; under an adapter its layers hold the adapter's matrices."""
    compute_dtype: torch.dtype
    adapter: "PeftModel | None" = None
    """peft's view of the same layers: then the adapter is trained and all other weights are frozen."""

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, the model computes as if it had no adapter; nothing happens where it has none."""
        if self.adapter is None:
            yield
            return
        # peft's own context manager also looks through the whole model for its state, which takes most of its time
        layers: Any = self.adapter.base_model
        layers.disable_adapter_layers()
        try:
            yield
        finally:
            layers.enable_adapter_layers()

    def weights_writer(self, ranks: Ranks = ONE_RANK) -> Writer:
        """Agree with all ranks on who writes what of the weights that training changes, exactly as they are.

        The first rank writes an adapter in peft's format, or the whole model as transformers loads it, where it has all
        of it; else each rank writes a file of pieces, and the first one what describes the model.
        """
        if self.adapter is not None:
            return adapter_writer(self.adapter, self.model, ranks)
        return model_writer(self.model, ranks)
