"""`Ranks` over a mesh: gradients of copies added up, the norm of a gradient that lies in pieces, numbers of all."""

import json
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.parallel.mesh import Mesh
from paceline.parallel.process_group import lost
from paceline.parallel.ranks import Numbers
from paceline.parallel.sharding import is_sharded
from paceline.parallel.split import MeshSplit

BUCKET_BYTES = 1 << 25
"""Of one message, unless a single gradient is larger: many small messages cost a round trip each."""


class MeshRanks:
    """`Ranks` of the process group that there is."""

    def __init__(self, mesh: Mesh, split: MeshSplit) -> None:
        """`split` is how the model that they train lies on them."""
        self.mesh, self.split = mesh, split
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.share, self.shares = mesh.share, mesh.sizes.shares
        self.speaks = mesh.place("tensor") == 0 and mesh.place("pipeline") == mesh.sizes.pipeline - 1

    def passes(self, counts: Sequence[int]) -> int:
        """See `Ranks`: slices are fetched from each other in every pass."""
        return max(counts) if self.mesh.sizes.shard > 1 else counts[self.share]

    def add_up_gradients(self, model: nn.Module) -> None:
        """See `Ranks`: gradients of slices are added up by who made the slices, in the backward pass."""
        copies = [one for one in model.parameters() if one.requires_grad and not is_sharded(one)]
        if self.shares == 1 or not copies:
            return
        for parameter, is_there in zip(copies, self._somewhere(copies), strict=True):
            if is_there and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with lost(f"rank {self.rank} was adding up gradients"):
            for bucket in _buckets([_local(one.grad) for one in copies if one.grad is not None]):
                _add_up(bucket, self.mesh.data)

    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        """See `Ranks`."""
        moved = [one for one in parameters if one.grad is not None]
        if self.mesh.sizes.ranks == self.mesh.sizes.replicate:
            return torch.nn.utils.clip_grad_norm_(moved, limit)
        gradients = [_local(one.grad) for one in moved]
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        copies = torch.tensor([self._copies(one) for one in moved], dtype=torch.float64).to(norms.device)
        squares = (norms.square() / copies).sum()
        with lost(f"rank {self.rank} was measuring the gradient"):
            dist.all_reduce(squares)
        norm = squares.sqrt().to(gradients[0].dtype)
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def collect(self, numbers: Numbers) -> Sequence[Numbers]:
        """See `Ranks`."""
        return [json.loads(text) for text in self.exchange(json.dumps(dict(numbers)))]

    def exchange(self, text: str) -> Sequence[str]:
        """See `Ranks`."""
        said = text.encode()
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
        with lost(f"rank {self.rank} was exchanging words with the others"):
            own = torch.tensor([len(said)], device=device)
            lengths = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(lengths, own)
            longest = max(1, *(int(length) for length in lengths))
            padded = torch.tensor([*said.ljust(longest)], dtype=torch.uint8, device=device)
            texts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(texts, padded)
        return [bytes(one[:length].tolist()).decode() for one, length in zip(texts, lengths, strict=True)]

    def hand_on(self, tensor: Tensor, *, source: int) -> Tensor:
        """See `Ranks`."""
        with lost(f"rank {self.rank} was handing a weight on"):
            dist.broadcast(tensor, source)
        return tensor

    def _copies(self, parameter: nn.Parameter) -> int:
        """How many ranks hold the same piece of it."""
        pieces = 1
        if isinstance(parameter, DTensor):
            for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
                pieces *= size if placement.is_shard() else 1
        return self.mesh.sizes.ranks // self.mesh.sizes.pipeline // pieces

    def _somewhere(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        """Which parameters have a gradient on any rank that holds the same."""
        here = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        here = here.to(parameters[0].device)
        with lost(f"rank {self.rank} was looking which parameters have gradients"):
            dist.all_reduce(here, op=dist.ReduceOp.MAX, group=self.mesh.data)
        return [bool(one) for one in here.tolist()]


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _add_up(bucket: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        dist.all_reduce(bucket[0], group=group)
        return
    flat = torch.cat([one.flatten() for one in bucket])
    dist.all_reduce(flat, group=group)
    for one, total in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
        one.copy_(total.view_as(one))


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbours of one precision in lists of at most `BUCKET_BYTES`."""
    buckets, size = list[list[Tensor]](), BUCKET_BYTES
    for one in tensors:
        if size + one.nbytes > BUCKET_BYTES or buckets[-1][0].dtype != one.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(one)
        size += one.nbytes
    return buckets
