"""How a model lies on the ranks of a mesh, and passes through the part that lies on this one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.kernels.logprobs import LogitPasses
from paceline.models.parallel.context import check_context_size, some_tokens
from paceline.models.parallel.mesh import Mesh
from paceline.models.parallel.ranks import ParallelLayout, ReturnT, Tokens
from paceline.models.parallel.sharding import Sharding, shard, sharded_modules
from paceline.models.parallel.stages import Stages, keep_stages, mark_both_ends, own_layers
from paceline.models.parallel.tensor import split_over_tensor
from paceline.models.parallel.tensor_layers import is_part, shared, vocabulary_passes
from paceline.objective.micro_batches import MicroBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshLayout(ParallelLayout):
    """How a model lies on the axes of a mesh."""

    mesh: Mesh
    sharding: Sharding

    @property
    @override
    def stages(self) -> Stages | None:
        if self.mesh.sizes.pipeline == 1:
            return None
        place, group = self.mesh.place("pipeline"), self.mesh.group("pipeline")
        return Stages(ranks=self.mesh.sizes.pipeline, place=place, group=group)

    def apply(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        """Leave this rank its part of a whole model in training mode, with its adapter if it has one.

        Raises:
            ModelError: the model cannot be split over the mesh.
        """
        sizes = self.mesh.sizes
        if sizes.context > 1:
            check_context_size(model.config, sizes.context, tensor=sizes.tensor)
        if self.stages is not None:
            keep_stages(model, self.stages)
        if sizes.tensor > 1:
            split_over_tensor(model, self.mesh)
        if sizes.shard > 1:
            shard(model, own_layers(model), self.mesh, self.sharding, compute_dtype)
        mark_both_ends(model)  # last, as what comes before may put another parameter in its place

    @override
    def tokens(self, batch: MicroBatch) -> Tokens:
        return Tokens(batch=batch) if self.mesh.context is None else some_tokens(batch, self.mesh.context)

    @override
    def run(self, model: nn.Module, call: Callable[[], ReturnT]) -> ReturnT:
        if not isinstance(model, FSDPModule):
            return call()
        run_sharded = cast(Callable[[Callable[[], ReturnT]], ReturnT], model.run_sharded)
        return run_sharded(call)

    @override
    def begin_pass(self, model: nn.Module, *, last: bool) -> None:
        for module in sharded_modules(model):
            module.set_requires_gradient_sync(last or self.sharding.stage > 1, recurse=False)
            module.set_reshard_after_backward(last or self.sharding.stage > 2, recurse=False)

    @override
    def rest(self, model: nn.Module) -> None:
        # a pass without a gradient keeps what it has fetched of the outermost module
        for module in sharded_modules(model):
            module.reshard()

    @override
    def local(self, weight: Tensor) -> Tensor:
        return weight.to_local() if isinstance(weight, DTensor) else weight

    @override
    def shared(self, head: Tensor, hidden: Tensor) -> Tensor:
        return shared(hidden, self.mesh.group("tensor")) if is_part(head) else hidden

    @override
    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        return vocabulary_passes(self.mesh.group("tensor")) if is_part(head) else None
