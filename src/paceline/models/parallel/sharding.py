"""ZeRO by torch's `fully_shard`: data-parallel ranks hold slices of the model instead of copies.

| stage | sliced for good | a rank's whole weights | a rank's whole gradients |
|---|---|---|---|
| 1 | optimiser state | from one update to the next | until an update's last micro-batch |
| 2 | and gradients | from one update to the next | a layer's at a time |
| 3 | and weights | a layer's at a time | a layer's at a time |

Source: ZeRO, arXiv:1910.02054, section 5. Gradients are added up, not averaged: token weights are those of a step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import SymInt, Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from paceline.models.parallel.mesh import Mesh
from paceline.runtime.devices import return_free_memory

LARGE_MESSAGE = 1 << 23
"""Elements of a message for which freeing unused memory first is worth its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """ZeRO stage and placement of the slices."""

    stage: int = 0
    """Stage in the table above; 0: full copies."""
    offload: bool = False
    """True if slices are kept in main memory."""


def shard(
    model: nn.Module, layers: list[nn.Module], mesh: Mesh, sharding: Sharding, compute_dtype: torch.dtype
) -> None:
    """Reduce each rank to its slices of the model's parameters: first of each of `layers`, then of all the rest.

    On GPUs the layers' weights are sent and multiplied in `compute_dtype`, half the bytes of their own; gradients are
    added up in their own.
    """
    names = ("replicate", "shard") if mesh.sizes.replicate > 1 else ("shard",)
    stays = sharding.stage < 3
    is_gpu = mesh.devices.device_type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=is_gpu) if sharding.offload else OffloadPolicy()
    common: dict[str, Any] = {"mesh": mesh.devices[names], "offload_policy": offload}
    half = is_gpu and compute_dtype.itemsize == 2
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,
    )
    for layer in layers:
        fully_shard(layer, reshard_after_forward=not stays, mp_policy=precision, **common)
    fully_shard(model, reshard_after_forward=False, **common)
    if not stays:

        def give_back_behind(layer: nn.Module, inputs: object, output: Tensor) -> None:
            """Free embedding and head once the backward pass reaches the last layer; their gradients stay."""
            if output.requires_grad:
                output.register_hook(lambda _: cast(FSDPModule, model).reshard())

        layers[-1].register_forward_hook(give_back_behind)
    # its weights are there in calls of registered methods only; ours may call whatever part of the model it likes
    setattr(model, "run_sharded", lambda call: call())  # noqa: B010  # torch types a module's attributes as modules
    register_fsdp_forward_method(model, "run_sharded")
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no averages
        if mesh.devices.device_type == "cpu":
            module.set_custom_reduce_scatter(_PieceByPiece())  # type: ignore[arg-type]  # its base class is private to torch


class _PieceByPiece:
    """Reduce-scatter piece by piece, as gloo copies its whole input."""

    def allocate(self, size: Sequence[int | SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a message; before a large one, return unused memory to the system."""
        if math.prod(map(int, size)) >= LARGE_MESSAGE:
            return_free_memory(device)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: object, async_op: bool = False
    ) -> None:
        """Reduce the pieces of `input_tensor`, one for each rank, and keep this rank's sum."""
        this_rank = dist.get_rank(group)
        for rank, piece in enumerate(input_tensor.chunk(dist.get_world_size(group))):
            dist.reduce(piece, group_dst=rank, group=group)
            if rank == this_rank:
                output_tensor.copy_(piece)


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """Yield the modules that `shard` has sharded."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def is_sharded(parameter: Tensor) -> bool:
    """Return whether a parameter is sharded."""
    return hasattr(parameter, "device_mesh") and "shard" in (parameter.device_mesh.mesh_dim_names or ())
