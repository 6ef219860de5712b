"""Ranks over a process group of torch: gloo on CPUs, NCCL on GPUs."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.parallel.ranks import Numbers, RankLost

BUCKET_BYTES = 1 << 25
"""Of one message, unless a single gradient is larger: many small messages cost a round trip each."""
JOIN_SECONDS = 300.0
"""That a rank waits for the others to come; they read no weights before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where ranks find each other: by a file on one machine, which needs no open port, or through a store's port."""

    file: Path | None = None
    host: str = ""
    port: int = 0

    def store(self, *, size: int) -> dist.Store:
        """A connection to it, for one of `size` ranks."""
        if self.file is not None:
            return dist.FileStore(str(self.file), size)
        return dist.TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=JOIN_SECONDS))


@contextmanager
def meeting_at(host: str) -> Iterator[Meeting]:
    """A meeting at a free port of this machine, for as long as this lasts."""
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    yield Meeting(host=host, port=store.port)
    del store


@contextmanager
def joined_ranks(
    meeting: Meeting, *, rank: int, size: int, device: torch.device, timeout: float
) -> Iterator["ProcessRanks"]:
    """The ranks that meet there, for as long as this lasts. `timeout`: seconds that one may wait for the others."""
    if meeting.file is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: nothing listens where others could reach it
    backend = "nccl" if device.type == "cuda" else "gloo"
    with _lost(f"rank {rank} of {size} met nobody"):
        dist.init_process_group(
            backend,
            store=meeting.store(size=size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
            device_id=device if backend == "nccl" else None,
        )
    try:
        yield ProcessRanks(rank=rank, size=size)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRanks:
    """`Ranks` of the process group that there is."""

    rank: int
    size: int

    def add_up_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `Ranks`."""
        for parameter, is_there in zip(parameters, self._somewhere(parameters), strict=True):
            if is_there and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with _lost(f"rank {self.rank} was adding up gradients"):
            for bucket in _buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
                _add_up(bucket)

    def collect(self, numbers: Numbers) -> Sequence[Numbers]:
        """See `Ranks`."""
        text = json.dumps(dict(numbers)).encode()
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
        with _lost(f"rank {self.rank} was collecting metrics"):
            own = torch.tensor([len(text)], device=device)
            lengths = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(lengths, own)
            longest = max(int(length) for length in lengths)
            padded = torch.tensor([*text.ljust(longest)], dtype=torch.uint8, device=device)
            texts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(texts, padded)
        return [json.loads(bytes(text.tolist())) for text in texts]

    def _somewhere(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        """Which parameters have a gradient on any rank."""
        here = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        here = here.to(parameters[0].device)
        with _lost(f"rank {self.rank} was looking which parameters have gradients"):
            dist.all_reduce(here, op=dist.ReduceOp.MAX)
        return [bool(one) for one in here.tolist()]


def _add_up(bucket: Sequence[Tensor]) -> None:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        dist.all_reduce(bucket[0])
        return
    flat = torch.cat([one.flatten() for one in bucket])
    dist.all_reduce(flat)
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


@contextmanager
def _lost(doing: str) -> Iterator[None]:
    """torch tells of a peer that is gone, and of one that is late, by a RuntimeError of whatever backend there is."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"{doing} when another rank went away or was late ({str(error).splitlines()[0]})") from None
