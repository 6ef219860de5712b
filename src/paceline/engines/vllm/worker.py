"""What runs inside vLLM's workers: tokens drawn by our keys, weights taken in one call.

vLLM imports this file by name (`worker_extension_cls`) in every process that computes, which also registers `Handover`.

S sequences, V vocabulary.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from paceline.engines.sampling import as_signed_64, draw, uniforms
from paceline.engines.vllm.asking import BACKEND, KEY, SAMPLING
from paceline.engines.vllm.packing import Packing, can_pack, pack_heads

SHARED_MEMORY = Path("/dev/shm")


class KeyedSampler(Sampler):
    """Draws as every engine of ours does: by the completion's key and position, and with its logprob at that moment.

    vLLM's own seeds are not used: on a CPU they end the engine where a prompt is computed in chunks, and a chunk would
    use up a number of the generator, so that a completion would depend on its neighbours.
    """

    def __init__(self, runner: Any) -> None:
        """`runner` is the worker's model runner, which knows the requests of a batch."""
        super().__init__()
        self._runner = runner
        self.policy_version = 0
        """How many updates the weights have seen that `logits` are of; said of every token, where vLLM has its rank."""

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """One token for each row of `logits` [S, V]; all sequences of a batch are of one call, with one `Sampling`."""
        requests = [self._runner.requests[name] for name in self._runner.input_batch.req_ids]
        orders = [request.sampling_params.extra_args for request in requests]
        keys = torch.tensor([as_signed_64(order[KEY]) for order in orders], device=logits.device)
        positions = torch.tensor([len(request.output_token_ids) for request in requests], device=logits.device)
        tokens, logprobs = draw(logits.float(), uniforms(keys, positions), orders[0][SAMPLING])
        return SamplerOutput(
            sampled_token_ids=tokens.int()[:, None],
            logprobs_tensors=LogprobsTensors(
                tokens.int()[:, None], logprobs.float()[:, None], torch.full_like(tokens, self.policy_version)
            ),
        )


@dataclass
class Nothing(WeightTransferInitInfo):
    """There is no connection to open."""


@dataclass
class Given(WeightTransferUpdateInfo):
    """Weights under the names of the model's files."""

    tensors: Iterable[tuple[str, Tensor]] | None = None
    """In this process."""
    path: str | None = None
    """For workers in other processes: a safetensors file in memory."""
    names: Sequence[str] = ()
    """Names of the tensors in the file, which forgets their order."""

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """One after the other."""
        if self.path is None:
            yield from self.tensors or ()
            return
        with safe_open(self.path, framework="pt") as file:
            for name in self.names:
                yield name, file.get_tensor(name)


class Handover(WeightTransferEngine[Nothing, Given]):
    """Whole weights, layer by layer: each is read, prepared for its kernels, and takes the place of the old one."""

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
# It warns, at every update, of a tied head and of rotary tables that they got no weights; the probe sees what matters.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class Extension:
    """Methods that a vLLM worker gets beside its own."""

    def draw_by_keys(self: Any) -> None:
        """From now on tokens are drawn by `KeyedSampler`."""
        self.model_runner.sampler = KeyedSampler(self.model_runner)

    def leave_no_files(self: Any) -> None:
        """Unlink the shared-memory files of CPU workers, open in all by now; a killed process would leave them."""
        for path in SHARED_MEMORY.glob(f"{os.environ['VLLM_DIST_IDENT']}*"):
            path.unlink(missing_ok=True)

    def take_weights(self: Any, update_info: dict[str, Any], policy_version: int) -> None:
        """A whole update. In one call, because between the three parameters are nowhere, and any other call meanwhile
        would end the engine."""
        self.start_weight_update()
        self.update_weights(update_info)
        self.finish_weight_update()
        self.model_runner.sampler.policy_version = policy_version
