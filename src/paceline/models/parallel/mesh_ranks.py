"""Layout of a model on a mesh, and `Ranks` over it: gradients summed and clipped, numbers and text gathered."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.config.layout import ParallelConfig, layout
from paceline.kernels.logprobs import LogitPasses
from paceline.models.parallel.context import Tokens, check_context_size, some_tokens
from paceline.models.parallel.mesh import Mesh, make_mesh
from paceline.models.parallel.process_group import lost
from paceline.models.parallel.ranks import WHOLE, ParallelLayout, RankNumbers, Ranks, ReturnT, TextGroup
from paceline.models.parallel.sharding import Sharding, is_sharded, shard, sharded_modules
from paceline.models.parallel.stages import Stages, is_at_both_ends, keep_stages, mark_both_ends, own_layers
from paceline.models.parallel.tensor import split_over_tensor
from paceline.models.parallel.tensor_layers import PartialGradients, is_part, shared, vocabulary_passes
from paceline.objective.micro_batches import MicroBatch

BUCKET_BYTES = 1 << 25
"""Bytes of one message, unless a single gradient is larger: many small messages cost a round trip each."""
SIDE_GROUP_SECONDS = 1800.0
"""Timeout of the side group: a rank may have much to write before it answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshLayout(ParallelLayout):
    """Layout of a model on the axes of a mesh."""

    mesh: Mesh
    sharding: Sharding

    @property
    @override
    def stages(self) -> Stages | None:
        if self.mesh.sizes.pipeline == 1:
            return None
        stage, group = self.mesh.devices.get_local_rank("pipeline"), self.mesh.devices.get_group("pipeline")
        return Stages(ranks=self.mesh.sizes.pipeline, rank=stage, group=group)

    def apply(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        """Reduce a model in training mode, adapter included, to this rank's part; ModelError if it cannot be split."""
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
        return shared(hidden, self.mesh.devices.get_group("tensor")) if is_part(head) else hidden

    @override
    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        return vocabulary_passes(self.mesh.devices.get_group("tensor")) if is_part(head) else None


def make_ranks(options: ParallelConfig, device: torch.device, *, offload: bool) -> "MeshRanks":
    """Make the ranks of the default process group by the options. Every rank makes this call.

    `offload`: slices are kept in main memory. ConfigError: the options need another number of ranks.
    """
    mesh = make_mesh(layout(options, dist.get_world_size()), device)
    sharding = Sharding(stage=options.zero_stage, offload=offload)
    return MeshRanks(mesh, MeshLayout(mesh=mesh, sharding=sharding))


class MeshRanks(Ranks):
    """`Ranks` over the default process group."""

    def __init__(self, mesh: Mesh, parallel_layout: MeshLayout) -> None:
        """`parallel_layout` says how the trained model lies on the mesh."""
        self.mesh = mesh
        # copies are computed as one process computes them
        self.parallel_layout: ParallelLayout = (
            parallel_layout if mesh.sizes.splits_the_model or mesh.sizes.context > 1 else WHOLE
        )
        self.rank, self.size, self.sizes = dist.get_rank(), dist.get_world_size(), mesh.sizes
        self.share, self.shares = mesh.share, mesh.sizes.shares
        is_last = mesh.devices.get_local_rank("pipeline") == mesh.sizes.pipeline - 1
        self.speaks = is_last and mesh.devices.get_local_rank("tensor") == 0 and mesh.turn == 0
        self._side_group: SideGroup | None = None

    @override
    def passes(self, counts: Sequence[int]) -> int:
        # Sharded weights are gathered in every pass, so all ranks make the same number.
        count = max(counts) if self.mesh.sizes.shard > 1 else counts[self.share]
        return count if self.parallel_layout.stages is None else self.parallel_layout.stages.passes(count)

    @override
    def add_up_gradients(self, model: nn.Module) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # over ranks with the same parameters and other samples or tokens; the backward pass has done so for slices
        copies = [parameter for parameter in trained if not is_sharded(parameter)]
        if dist.get_world_size(self.mesh.data) > 1 and copies:
            # a gradient that any rank has, all have
            here = torch.tensor([parameter.grad is not None for parameter in copies], dtype=torch.uint8).to(
                copies[0].device
            )
            with lost(f"rank {self.rank} was comparing which parameters have gradients"):
                dist.all_reduce(here, op=dist.ReduceOp.MAX, group=self.mesh.data)
            for parameter, is_there in zip(copies, here.tolist(), strict=True):
                if is_there and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._add_up(copies, self.mesh.data)
        # what every rank of the tensor axis has whole, and uses for its own heads or columns
        modules = (module for module in model.modules() if isinstance(module, PartialGradients))
        partial = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
        self._add_up(partial, self.mesh.devices.get_group("tensor"))
        for parameter in trained:
            if is_at_both_ends(parameter):
                self._add_other_end(parameter)

    def _add_up(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        """Sum gradients over a group; neighbours of one precision share a message of at most `BUCKET_BYTES`."""
        buckets, size = list[list[Tensor]](), BUCKET_BYTES
        for gradient in (_local(parameter.grad) for parameter in parameters if parameter.grad is not None):
            if size + gradient.nbytes > BUCKET_BYTES or buckets[-1][0].dtype != gradient.dtype:
                buckets.append([])
                size = 0
            buckets[-1].append(gradient)
            size += gradient.nbytes
        with lost(f"rank {self.rank} was adding up gradients"):
            for bucket in buckets:
                if len(bucket) == 1 and bucket[0].is_contiguous():
                    dist.all_reduce(bucket[0], group=group)
                    continue
                flat = torch.cat([gradient.flatten() for gradient in bucket])
                dist.all_reduce(flat, group=group)
                for gradient, total in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
                    gradient.copy_(total.view_as(gradient))

    def _add_other_end(self, parameter: nn.Parameter) -> None:
        """Sum the gradient of a tied embedding over the first and the last stage of a pipeline."""
        stages = self.parallel_layout.stages
        assert stages is not None
        if parameter.grad is None:  # then it has none at the other end either, or there all of it
            parameter.grad = torch.zeros_like(parameter)
        gradient = _local(parameter.grad)
        sent, received = gradient.contiguous(), torch.empty_like(gradient, memory_format=torch.contiguous_format)
        assert stages.group is not None
        peer = dist.get_global_rank(stages.group, stages.ranks - 1 - stages.rank)
        messages = [
            dist.P2POp(dist.isend, sent, peer, stages.group),
            dist.P2POp(dist.irecv, received, peer, stages.group),
        ]
        with lost(f"rank {self.rank} was adding up the gradient of the embedding"):
            for work in dist.batch_isend_irecv(messages):
                work.wait()
        gradient += received

    @override
    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        moved = [parameter for parameter in parameters if parameter.grad is not None]
        if self.mesh.sizes.ranks == self.mesh.sizes.replicate:
            return torch.nn.utils.clip_grad_norm_(moved, limit)
        gradients = [_local(parameter.grad) for parameter in moved if parameter.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        # ranks that hold the same part of each parameter
        copies = list[int]()
        for parameter in moved:
            pieces = 1
            if isinstance(parameter, DTensor):
                for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
                    pieces *= 1 if placement.is_replicate() else size  # torch has two kinds of shards
            copies.append(
                self.mesh.sizes.ranks // self.mesh.sizes.pipeline // pieces * (2 if is_at_both_ends(parameter) else 1)
            )
        squares = (norms.square() / torch.tensor(copies, dtype=torch.float64).to(norms.device)).sum()
        with lost(f"rank {self.rank} was measuring the gradient"):
            dist.all_reduce(squares)
        norm = squares.sqrt().to(gradients[0].dtype)
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @override
    def collect(self, numbers: RankNumbers) -> Sequence[RankNumbers]:
        return [json.loads(text) for text in self.all_gather_text(json.dumps(dict(numbers)))]

    @override
    def all_gather_text(self, text: str) -> Sequence[str]:
        is_nccl = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
        with lost(f"rank {self.rank} was exchanging text with the others"):
            return _all_gather_text(text, size=self.size, device=device)

    @override
    def side_group(self) -> "SideGroup":
        if self._side_group is None:
            with lost(f"rank {self.rank} was joining the side group"):
                self._side_group = SideGroup()
        return self._side_group

    @override
    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        with lost(f"rank {self.rank} was broadcasting a weight"):
            dist.broadcast(tensor, source)
        return tensor


class SideGroup(TextGroup):
    """`TextGroup` over a process group of its own on CPUs, for a thread that runs while the ranks train."""

    def __init__(self) -> None:
        """Create the group. All ranks make this call, in the same order among calls that create groups."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=SIDE_GROUP_SECONDS))

    @override
    def all_gather_text(self, text: str) -> Sequence[str]:
        with lost(f"rank {self.rank} was saving with the others"):
            return _all_gather_text(text, size=self.size, device=torch.device("cpu"), group=self._group)


def _all_gather_text(
    text: str, *, size: int, device: torch.device, group: dist.ProcessGroup | None = None
) -> list[str]:
    own_bytes = text.encode()
    own_length = torch.tensor([len(own_bytes)], device=device)
    lengths = [torch.empty_like(own_length) for _ in range(size)]
    dist.all_gather(lengths, own_length, group)

    # all_gather takes tensors of one length
    longest = max(1, *(int(length) for length in lengths))
    padded = torch.tensor([*own_bytes.ljust(longest)], dtype=torch.uint8, device=device)
    texts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(texts, padded, group)
    return [bytes(encoded[:length].tolist()).decode() for encoded, length in zip(texts, lengths, strict=True)]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
