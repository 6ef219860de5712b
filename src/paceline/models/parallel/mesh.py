"""The device mesh of a run: which ranks hold the same part of the model, which hold different ones.

Ranks are numbered with `tensor` fastest, so that those that communicate most are neighbours. Neighbours on the axes
`replicate` and `shard`, `context` of them, share the tokens of their samples.
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paceline.config.layout import Sizes

AXES = ("pipeline", "replicate", "shard", "tensor")
PARTED = ("pipeline", "shard", "tensor")
"""Axes along which ranks hold different parts of the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """This rank's position in the device mesh of the default process group."""

    sizes: Sizes
    devices: DeviceMesh
    data: dist.ProcessGroup
    """Ranks that hold the same part of the model, or slices of it, and have their own samples or tokens."""
    context: dist.ProcessGroup | None = None
    """Ranks among them that share this rank's samples, token by token; None: there are none."""

    @property
    def share(self) -> int:
        """This rank's share of a step's samples, from 0."""
        return self._among_data // self.sizes.context

    @property
    def turn(self) -> int:
        """This rank's number among the ranks that share the same samples."""
        return self._among_data % self.sizes.context

    @property
    def _among_data(self) -> int:
        return self.devices.get_local_rank("replicate") * self.sizes.shard + self.devices.get_local_rank("shard")

    @property
    def part(self) -> tuple[int, ...]:
        """This rank's part of the model; ranks with the same part hold copies of it."""
        return tuple(map(self.devices.get_local_rank, PARTED))

    @property
    def has_copies(self) -> bool:
        """True if another rank holds the same part."""
        parts: int = math.prod(getattr(self.sizes, axis) for axis in PARTED)
        return self.sizes.ranks > parts


def make_mesh(sizes: Sizes, device: torch.device) -> Mesh:
    """Make the mesh. All ranks call this; ValueError if the sizes need another number of ranks."""
    if sizes.ranks != dist.get_world_size():
        raise ValueError(f"{sizes} needs {sizes.ranks} ranks, there are {dist.get_world_size()}")
    devices = init_device_mesh(device.type, tuple(getattr(sizes, axis) for axis in AXES), mesh_dim_names=AXES)
    data = devices["replicate", "shard"]._flatten("data")
    context = None
    if sizes.context > 1:
        context = data._unflatten(0, (sizes.shares, sizes.context), ("share", "context")).get_group("context")
    return Mesh(sizes=sizes, devices=devices, data=data.get_group(), context=context)
