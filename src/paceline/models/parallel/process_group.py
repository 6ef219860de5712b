"""Where ranks meet, and the process group of torch that they make: gloo on CPUs, NCCL on GPUs."""

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
"""Timeout for all ranks to join; none reads weights before."""


class RankLost(TrainingError):
    """The other ranks are gone or silent. One of them failed; this process did not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where ranks find each other: by a file on one machine, which needs no open port, or through a store's port."""

    file: Path | None = None
    host: str = ""
    port: int = 0
    opened: dist.Store | None = None
    """A connection that there is already."""


@contextmanager
def meeting_at(host: str) -> Iterator[Meeting]:
    """A meeting at a free port of this machine, for as long as this lasts."""
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    yield Meeting(host=host, port=store.port)
    del store


@contextmanager
def process_group(meeting: Meeting, *, rank: int, size: int, device: torch.device, timeout: float) -> Iterator[None]:
    """Join the ranks that meet there, for as long as this lasts; RankLost if not all of them come.

    `timeout`: seconds that one may wait for the others. After an error the group is left to the process's end: to take
    it down waits for the others, who may be gone.
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
    """torch tells of a peer that is gone, and of one that is late, by a RuntimeError of whatever backend there is."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"{doing} when another rank went away or was late ({first_line(error)})") from None
