"""Rendezvous of ranks and their process group: gloo on CPUs, NCCL on GPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.errors import TrainingError, first_line

JOIN_SECONDS = 300.0
"""Timeout in seconds for all ranks to join, which happens before weights are read."""


class RankLost(TrainingError):
    """The other ranks are gone or silent. One of them failed; this process did not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Rendezvous: a file on one machine, which needs no open port, or the host and port of a store."""

    file: Path | None = None
    host: str = ""
    port: int = 0
    opened: dist.Store | None = None
    """A store that is already connected."""


@contextmanager
def meeting_at(host: str) -> Iterator[Meeting]:
    """Open a store at a free port of this machine for the duration of the context."""
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    yield Meeting(host=host, port=store.port)
    del store


@contextmanager
def process_group(meeting: Meeting, *, rank: int, size: int, device: torch.device, timeout: float) -> Iterator[None]:
    """Join the process group for the duration of the context; RankLost if not all ranks join.

    `timeout`: seconds of any later wait for other ranks. After an error the group is not destroyed, since that would
    wait for ranks that may be gone.
    """
    if meeting.file is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: nothing listens where others could reach it
    backend = "nccl" if device.type == "cuda" else "gloo"
    with lost(f"rank {rank} of {size} met nobody"):
        if meeting.opened is not None:
            store = meeting.opened
        elif meeting.file is not None:
            store = dist.FileStore(str(meeting.file), size)
        else:
            store = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=timedelta(seconds=JOIN_SECONDS))
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
            device_id=device if backend == "nccl" else None,
        )
    yield
    dist.destroy_process_group()


@contextmanager
def lost(doing: str) -> Iterator[None]:
    """Raise RankLost for the RuntimeError by which any backend reports a peer that is gone or late."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"{doing} when another rank went away or was late ({first_line(error)})") from None
