"""ZeRO: ranks with samples of their own hold slices of what each would hold a copy of, by torch's `fully_shard`.

| stage | sliced for good | a rank's whole weights | a rank's whole gradients |
|---|---|---|---|
| 1 | optimiser state | from one update to the next | until an update's last micro-batch |
| 2 | and gradients | from one update to the next | a layer's at a time |
| 3 | and weights | a layer's at a time | a layer's at a time |

Source: ZeRO, arXiv:1910.02054, section 5. Gradients are added up, not averaged: token weights are those of a step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from paceline.parallel.mesh import Mesh

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """How far ranks share what they hold."""

    stage: int = 0
    """As in the table above; 0: copies."""
    offload: bool = False
    """Slices wait in main memory."""


def shard(
    model: nn.Module, layers: list[nn.Module], mesh: Mesh, sharding: Sharding, compute_dtype: torch.dtype
) -> None:
    """Leave each rank its slices of the model's parameters: of each of `layers` on its own, then of all the rest.

    On GPUs the layers' weights are sent and multiplied in `compute_dtype`, half the bytes of their own; gradients are
    added up in their own.
    """
    names = ("replicate", "shard") if mesh.sizes.replicate > 1 else ("shard",)
    stays = sharding.stage < 3
    offload = CPUOffloadPolicy() if sharding.offload else OffloadPolicy()
    common = {"mesh": mesh.devices[names], "offload_policy": offload}
    half = mesh.devices.device_type == "cuda" and compute_dtype.itemsize == 2
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,
    )
    for layer in layers:
        fully_shard(layer, reshard_after_forward=not stays, mp_policy=precision, **common)
    fully_shard(model, reshard_after_forward=False, **common)
    # its weights are there in calls of registered methods only; ours may call whatever part of the model it likes
    model.run_sharded = lambda call: call()
    register_fsdp_forward_method(model, "run_sharded")
    for module in _sharded(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no averages


def run(model: nn.Module, call: Callable[[], Found]) -> Found:
    """A pass through a model that was given to `shard`, its own forward or any other."""
    return model.run_sharded(call) if isinstance(model, FSDPModule) else call()


def begin_pass(model: nn.Module, stage: int, *, last: bool) -> None:
    """Before a pass with a gradient: what it leaves behind. `last`: of an update, whose gradients are then complete."""
    for module in _sharded(model):
        module.set_requires_gradient_sync(last or stage > 1, recurse=False)
        module.set_reshard_after_backward(last or stage > 2, recurse=False)


def give_back(model: nn.Module) -> None:
    """Leave each rank its slices alone: a pass without a gradient keeps what it has fetched of the outermost module."""
    for module in _sharded(model):
        module.reshard()


def _sharded(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def is_sharded(parameter: Tensor) -> bool:
    """Whether `shard` left only a slice of it here."""
    return hasattr(parameter, "device_mesh") and "shard" in (parameter.device_mesh.mesh_dim_names or ())
