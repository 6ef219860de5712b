"""The ranks of a run in a grid: which of them hold the same, which hold shares of it.

Ranks are numbered with `tensor` fastest, so that those who talk most stand next to each other. Neighbours on the axes
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
"""Along which ranks hold different parts of the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """This rank's place in the grid of the process group that there is."""

    sizes: Sizes
    devices: DeviceMesh
    data: dist.ProcessGroup
    """The ranks that hold the same part of the model, or slices of it, with samples, or tokens, of their own."""
    context: dist.ProcessGroup | None = None
    """Those of them that share the tokens of their samples with this one; None: none does."""

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
        return self.place("replicate") * self.sizes.shard + self.place("shard")

    @property
    def part(self) -> tuple[int, ...]:
        """This rank's part of the model; ranks with the same part hold copies of it."""
        return tuple(self.place(axis) for axis in PARTED)

    @property
    def has_copies(self) -> bool:
        """True if another rank holds the same part."""
        parts: int = math.prod(getattr(self.sizes, axis) for axis in PARTED)
        return self.sizes.ranks > parts

    def place(self, axis: str) -> int:
        """Where on an axis this rank stands."""
        return self.devices.get_local_rank(axis)

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks that differ from this one along an axis only."""
        return self.devices.get_group(axis)


def make_mesh(sizes: Sizes, device: torch.device) -> Mesh:
    """Make the grid over all ranks, which all call this; ValueError if there are not as many as the sizes say."""
    if sizes.ranks != dist.get_world_size():
        raise ValueError(f"{sizes} needs {sizes.ranks} ranks, there are {dist.get_world_size()}")
    devices = init_device_mesh(device.type, tuple(getattr(sizes, axis) for axis in AXES), mesh_dim_names=AXES)
    data = devices["replicate", "shard"]._flatten("data")
    context = None
    if sizes.context > 1:
        context = data._unflatten(0, (sizes.shares, sizes.context), ("share", "context")).get_group("context")
    return Mesh(sizes=sizes, devices=devices, data=data.get_group(), context=context)
