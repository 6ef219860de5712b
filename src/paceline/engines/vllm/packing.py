"""New weights into the layouts of vLLM's kernels on a CPU, with one pass over the memory of most of them.

There a linear layer of vLLM has its weight only as its kernel has packed it. vLLM's own reload lays every weight out
anew before it is packed, and packs embeddings that nothing multiplies with. Here a layer's weight is packed from where
it lies; where vLLM joins several (query, key and value), they are put together first, in memory that all layers share.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs
from vllm.platforms import current_platform


def can_pack(model: nn.Module) -> bool:
    """Return whether `Packing` serves all layers of a vLLM model on a CPU.

    It serves plain linear layers and embeddings, whose weights a kernel alone prepares; experts, latent attention and
    convolutions are prepared otherwise.
    """
    # on a processor with Zen's own library a kernel may go on reading the weight itself
    return current_platform.is_cpu() and not current_platform.is_zen_cpu() and all(map(_is_plain, model.modules()))


def _is_plain(module: Any) -> bool:
    method = getattr(module, "quant_method", None)
    if isinstance(method, UnquantizedLinearMethod):
        return module.weight.dim() <= 2 and not hasattr(module, "_cpu_skip_gemm_dispatch")
    return method is None or isinstance(method, UnquantizedEmbeddingMethod)


def pack_heads(model: nn.Module, loaded: Collection[str] | None = None) -> None:
    """On a CPU the head multiplies with a packed copy of its weight, which no reload makes again where the head is tied
    to the embedding: it would go on with the old one, without a word. `loaded` names what has new values; None:
    anything may.
    """
    if not current_platform.is_cpu():
        return
    named = model.named_parameters(remove_duplicate=False)
    new = {id(parameter) for name, parameter in named if loaded is None or name in loaded}
    tables = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    for head in [table for table in tables if isinstance(table, ParallelLMHead)] or tables:
        if hasattr(head, "cpu_linear") and id(head.weight) in new:
            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


class Packing:
    """Lets `load_weights` of a model be called again, though its linear layers have no weights that it could fill.

    Weights of one layer must follow each other.
    """

    def __init__(self, model: Any) -> None:
        """Give every packed layer a weight to load into, of which only the one that is being loaded has a content."""
        self._model = model
        # layers that have their weight only as their kernel has packed it
        methods = ((module, getattr(module, "quant_method", None)) for module in model.modules())
        linear: list[Any] = [module for module, method in methods if isinstance(method, UnquantizedLinearMethod)]
        layers = [layer for layer in linear if layer.weight.numel() == 0]
        kinds = [get_layerwise_info(layer).restore_metadata[0]["weight"] for layer in layers]
        self._places = dict[Any, Tensor]()
        largest = max((kind.numel() for kind in kinds), default=0)
        memory = torch.empty(largest, dtype=kinds[0].dtype if kinds else None)
        for layer, kind in zip(layers, kinds, strict=True):
            self._places[layer] = memory[: kind.numel()].view(kind.shape)
            layer.register_parameter("weight", self._stand_in(layer, kind))
        self._open: Any = None
        self._packed = set[Any]()

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take these, under the names of the model's files; layers of which none is among them stay as they are.

        Raises:
            ValueError: weights of a layer did not follow each other.
        """
        self._packed.clear()
        loaded = self._model.load_weights(weights)
        self._close()
        pack_heads(self._model, loaded)

    def _stand_in(self, layer: Any, kind: Tensor) -> Any:
        weight: Any = self._places[layer].detach()
        weight.__class__, weight.__dict__ = kind.__class__, kind.__dict__.copy()
        restore_layer_refs(weight, layer)
        weight.weight_loader = partial(self._take, layer, weight.weight_loader)
        return weight

    def _take(
        self, layer: Any, load: Callable[..., None], weight: nn.Parameter, given: Tensor, *part: object, **more: Any
    ) -> None:
        if layer is not self._open:
            self._close()
            self._open = layer
        if layer in self._packed:
            raise ValueError(f"a weight of {type(layer).__name__} came after those of other layers")
        is_whole = not part and not more and given.shape == weight.shape
        if is_whole and given.dtype == weight.dtype and given.is_contiguous():
            weight.data = given
        else:
            load(weight, given, *part, **more)

    def _close(self) -> None:
        """All of a layer's weights have come."""
        if self._open is not None:
            dispatch_cpu_unquantized_gemm(self._open, remove_weight=False)
            self._open.weight.data = self._places[self._open]
            self._packed.add(self._open)
        self._open = None
