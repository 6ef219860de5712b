"""Code inside vLLM's workers: tokens drawn by Paceline's keys, weights loaded in one call.

vLLM imports this file by name (`worker_extension_cls`) in every worker process, which also registers `Handover`.

S sequences, V vocabulary.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs
from vllm.platforms import current_platform
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from paceline.engines.sampling import as_signed_64, draw_each, uniforms
from paceline.engines.vllm.asking import BACKEND, KEY, SAMPLING


def can_pack(model: nn.Module) -> bool:
    """Return whether `Packing` serves all layers of a vLLM model on a CPU.

    It supports plain linear layers and embeddings, whose weights a kernel alone prepares; experts, latent attention
    and convolutions are prepared otherwise.
    """
    # on a processor with Zen's own library a kernel may go on reading the weight itself
    return current_platform.is_cpu() and not current_platform.is_zen_cpu() and all(map(_is_plain, model.modules()))


def _is_plain(module: Any) -> bool:
    method = getattr(module, "quant_method", None)
    if isinstance(method, UnquantizedLinearMethod):
        return module.weight.dim() <= 2 and not hasattr(module, "_cpu_skip_gemm_dispatch")
    return method is None or isinstance(method, UnquantizedEmbeddingMethod)


def pack_heads(model: nn.Module, loaded: Collection[str] | None = None) -> None:
    """Pack the head's weight again on a CPU, which no reload does for a head that is tied to the embedding.

    It would silently multiply with the old weight. `loaded` names what has new values; None: anything may.
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
    """Allows repeated `load_weights` on a CPU, where a linear layer keeps its weight only as packed for its kernel.

    vLLM's own reload copies every weight before it is packed, and packs embeddings that are never multiplied. Here a
    layer's weight is packed in place; weights that vLLM joins (query, key and value) are first joined in memory that
    all layers share. Weights of one layer must be consecutive.
    """

    def __init__(self, model: Any) -> None:
        """Give every packed layer a weight to load into; only that of the layer being loaded has contents."""
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
        """Load weights by their names in the model's files; layers without any stay unchanged.

        Raises:
            ValueError: weights of a layer were not consecutive.
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
        self, layer: Any, load: Callable[..., None], weight: nn.Parameter, value: Tensor, *part: object, **more: Any
    ) -> None:
        if layer is not self._open:
            self._close()
            self._open = layer
        if layer in self._packed:
            raise ValueError(f"a weight of {type(layer).__name__} came after those of other layers")
        is_whole = not part and not more and value.shape == weight.shape
        if is_whole and value.dtype == weight.dtype and value.is_contiguous():
            weight.data = value
        else:
            load(weight, value, *part, **more)

    def _close(self) -> None:
        """Pack the layer whose weights have all been loaded."""
        if self._open is not None:
            dispatch_cpu_unquantized_gemm(self._open, remove_weight=False)
            self._open.weight.data = self._places[self._open]
            self._packed.add(self._open)
        self._open = None


SHARED_MEMORY = Path("/dev/shm")


class KeyedSampler(Sampler):
    """Draws tokens as every engine does: by the completion's key and position, and with the logprob of the draw.

    vLLM's own seeds are not used: on a CPU they crash the engine if a prompt is computed in chunks, and a chunk would
    consume a number of the generator, so that a completion would depend on its neighbours.
    """

    def __init__(self, runner: Any) -> None:
        """`runner` is the worker's model runner, which knows the requests of a batch."""
        super().__init__()
        self._runner = runner
        self.policy_version = 0
        """Policy version of the weights; reported for every token in place of vLLM's rank."""

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """Draw one token for each row of `logits` [S, V] by its request's sampling."""
        requests = [self._runner.requests[name] for name in self._runner.input_batch.req_ids]
        orders = [request.sampling_params.extra_args for request in requests]
        keys = torch.tensor([as_signed_64(order[KEY]) for order in orders], device=logits.device)
        positions = torch.tensor([len(request.output_token_ids) for request in requests], device=logits.device)
        samplings = [order[SAMPLING] for order in orders]
        tokens, logprobs = draw_each(logits.float(), uniforms(keys, positions), samplings)
        return SamplerOutput(
            sampled_token_ids=tokens.int()[:, None],
            logprobs_tensors=LogprobsTensors(
                tokens.int()[:, None], logprobs.float()[:, None], torch.full_like(tokens, self.policy_version)
            ),
        )


@dataclass
class Nothing(WeightTransferInitInfo):
    """Empty: there is no connection to open."""


@dataclass
class Given(WeightTransferUpdateInfo):
    """Weights by their names in the model's files."""

    tensors: Iterable[tuple[str, Tensor]] | None = None
    """Weights in this process."""
    path: str | None = None
    """Path of a safetensors file in memory, for workers in other processes."""
    names: Sequence[str] = ()
    """Names of the tensors in order, which the file does not keep."""

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Yield names and weights."""
        if self.path is None:
            yield from self.tensors or ()
            return
        with safe_open(self.path, framework="pt") as file:
            for name in self.names:
                yield name, file.get_tensor(name)


class Handover(WeightTransferEngine[Nothing, Given]):
    """Loads whole weights layer by layer: each is read, prepared for its kernels, and replaces the old one."""

    init_info_cls = Nothing
    update_info_cls = Given
    _packing: Packing | None = None

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """See vLLM's `WeightTransferEngine`."""

    def start_weight_update(self) -> None:
        """See vLLM's `WeightTransferEngine`."""
        if self._packing is None and can_pack(self.model):
            self._packing = Packing(self.model)
        if self._packing is None:
            initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Given) -> None:
        """See vLLM's `WeightTransferEngine`."""
        load = self.model.load_weights if self._packing is None else self._packing.load
        load(update_info.weights())

    def finish_weight_update(self) -> None:
        """See vLLM's `WeightTransferEngine`."""
        if self._packing is None:
            finalize_layerwise_reload(self.model, self.model_config)
            pack_heads(self.model)

    def shutdown(self) -> None:
        """See vLLM's `WeightTransferEngine`."""


WeightTransferEngineFactory.register_engine(BACKEND, Handover)
# It warns at every update that a tied head and rotary tables got no weights; the probe detects what matters.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class Extension:
    """Methods added to vLLM's workers."""

    def draw_by_keys(self: Any) -> None:
        """Draw tokens by `KeyedSampler` from now on."""
        self.model_runner.sampler = KeyedSampler(self.model_runner)

    def leave_no_files(self: Any) -> None:
        """Unlink the shared-memory files of CPU workers, open in all by now; a killed process would leave them."""
        for path in SHARED_MEMORY.glob(f"{os.environ['VLLM_DIST_IDENT']}*"):
            path.unlink(missing_ok=True)

    def take_weights(self: Any, update_info: dict[str, Any], policy_version: int) -> None:
        """Run a whole update in one call: between its steps weights are missing, and any other call would fail."""
        self.start_weight_update()
        self.update_weights(update_info)
        self.finish_weight_update()
        self.model_runner.sampler.policy_version = policy_version
