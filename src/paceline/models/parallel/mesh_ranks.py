"""`Ranks` over a mesh: gradients of copies added up, the norm of a gradient that lies in pieces, numbers of all."""

import json
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.config.layout import ParallelConfig, layout
from paceline.models.parallel.mesh import Mesh, make_mesh
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.ranks import WHOLE, Numbers, Split
from paceline.models.parallel.sharding import Sharding, is_sharded
from paceline.models.parallel.split import MeshSplit
from paceline.models.parallel.stages import is_at_both_ends
from paceline.models.parallel.tensor_layers import PartialGradients
from paceline.models.parallel.words import Aside, exchange

BUCKET_BYTES = 1 << 25
"""Of one message, unless a single gradient is larger: many small messages cost a round trip each."""


def make_ranks(options: ParallelConfig, device: torch.device) -> "MeshRanks":
    """The ranks of the process group that there is, laid out as the options say; every one of them makes this call.

    Raises:
        ConfigError: the options need another number of ranks.
    """
    mesh = make_mesh(layout(options, dist.get_world_size()), device)
    sharding = Sharding(stage=options.zero_stage, offload=options.parameter_offload)
    return MeshRanks(mesh, MeshSplit(mesh=mesh, sharding=sharding, schedule=options.pipeline_schedule))


class MeshRanks:
    """`Ranks` of the process group that there is."""

    def __init__(self, mesh: Mesh, split: MeshSplit) -> None:
        """`split` is how the model that they train lies on them."""
        self.mesh = mesh
        # copies are computed as one process computes them
        self.split: Split = split if mesh.sizes.splits_the_model or mesh.sizes.context > 1 else WHOLE
        self.rank, self.size, self.sizes = dist.get_rank(), dist.get_world_size(), mesh.sizes
        self.share, self.shares = mesh.share, mesh.sizes.shares
        is_last = mesh.place("pipeline") == mesh.sizes.pipeline - 1
        self.speaks = is_last and mesh.place("tensor") == 0 and mesh.turn == 0
        self._aside: Aside | None = None

    def passes(self, counts: Sequence[int]) -> int:
        """See `Ranks`: slices are fetched from each other in every pass, and a pipeline's schedule has its numbers."""
        count = max(counts) if self.mesh.sizes.shard > 1 else counts[self.share]
        return count if self.split.stages is None else self.split.stages.passes(count)

    def add_up_gradients(self, model: nn.Module) -> None:
        """See `Ranks`: gradients of slices are added up by who made the slices, in the backward pass."""
        self._add_up_copies([one for one in model.parameters() if one.requires_grad and not is_sharded(one)])
        self._add_up_parts(model)
        both = [one for one in model.parameters() if one.requires_grad and is_at_both_ends(one)]
        for parameter in both:
            self._add_other_end(parameter)

    def _add_up_parts(self, model: nn.Module) -> None:
        """Gradients of which each rank of a tensor group has what its own heads or columns give."""
        parts = [_local(one.grad) for one in _partial(model) if one.grad is not None]
        with lost(f"rank {self.rank} was adding up gradients"):
            for bucket in _buckets(parts):
                _add_up(bucket, self.mesh.group("tensor"))

    def _add_up_copies(self, copies: Sequence[nn.Parameter]) -> None:
        """Gradients of the ranks that hold the same, with samples or tokens of their own."""
        if dist.get_world_size(self.mesh.data) == 1 or not copies:
            return
        for parameter, is_there in zip(copies, self._somewhere(copies), strict=True):
            if is_there and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with lost(f"rank {self.rank} was adding up gradients"):
            for bucket in _buckets([_local(one.grad) for one in copies if one.grad is not None]):
                _add_up(bucket, self.mesh.data)

    def _add_other_end(self, parameter: nn.Parameter) -> None:
        """The gradient of an output embedding and that of the same matrix as input embedding, at a pipeline's ends."""
        stages = self.split.stages
        assert stages is not None
        if parameter.grad is None:  # then it has none at the other end either, or there all of it
            parameter.grad = torch.zeros_like(parameter)
        gradient = _local(parameter.grad)
        own, other = gradient.contiguous(), torch.empty_like(gradient, memory_format=torch.contiguous_format)
        peer = dist.get_global_rank(stages.group, stages.ranks - 1 - stages.place)
        messages = [dist.P2POp(dist.isend, own, peer, stages.group), dist.P2POp(dist.irecv, other, peer, stages.group)]
        with lost(f"rank {self.rank} was adding up the gradient of the embedding"):
            for work in dist.batch_isend_irecv(messages):
                work.wait()
        gradient += other

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
        is_nccl = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
        with lost(f"rank {self.rank} was exchanging words with the others"):
            return exchange(text, size=self.size, device=device)

    def aside(self) -> Aside:
        """See `Ranks`."""
        if self._aside is None:
            with lost(f"rank {self.rank} was meeting the others beside the training"):
                self._aside = Aside()
        return self._aside

    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        """See `Ranks`."""
        with lost(f"rank {self.rank} was handing a weight on"):
            dist.broadcast(tensor, source)
        return tensor

    def _copies(self, parameter: nn.Parameter) -> int:
        """How many ranks hold the same piece of it."""
        pieces = 1
        if isinstance(parameter, DTensor):
            for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
                pieces *= 1 if placement.is_replicate() else size  # torch has two kinds of shards
        return self.mesh.sizes.ranks // self.mesh.sizes.pipeline // pieces * (2 if is_at_both_ends(parameter) else 1)

    def _somewhere(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        """Which parameters have a gradient on any rank that holds the same."""
        here = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        here = here.to(parameters[0].device)
        with lost(f"rank {self.rank} was looking which parameters have gradients"):
            dist.all_reduce(here, op=dist.ReduceOp.MAX, group=self.mesh.data)
        return [bool(one) for one in here.tolist()]


def _partial(model: nn.Module) -> list[nn.Parameter]:
    """Trained parameters that every rank of the tensor axis has whole and uses for its own heads."""
    modules = [module for module in model.modules() if isinstance(module, PartialGradients)]
    return [one for module in modules for one in module.parameters() if one.requires_grad]


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
