"""Words between all ranks, over a process group that may be one beside the training's own."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from paceline.models.parallel.process_group import lost

ASIDE_SECONDS = 1800.0
"""That a rank waits for the others' words beside the training: one may have much to write before it speaks."""


class Aside:
    """`Words` over a group of their own, on CPUs: a thread may use it while the ranks train."""

    def __init__(self) -> None:
        """All ranks of the process group make this call, in the same order among those that make groups."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=ASIDE_SECONDS))

    def exchange(self, text: str) -> Sequence[str]:
        """See `Words`."""
        with lost(f"rank {self.rank} was saving with the others"):
            return exchange(text, size=self.size, device=torch.device("cpu"), group=self._group)


def exchange(text: str, *, size: int, device: torch.device, group: dist.ProcessGroup | None = None) -> list[str]:
    """What each of `size` ranks said, by rank; None: the group of all of them that there is.

    Raises:
        RuntimeError: another rank is gone, or silent for too long.
    """
    said = text.encode()
    own = torch.tensor([len(said)], device=device)
    lengths = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(lengths, own, group)
    longest = max(1, *(int(length) for length in lengths))
    padded = torch.tensor([*said.ljust(longest)], dtype=torch.uint8, device=device)
    texts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(texts, padded, group)
    return [bytes(one[:length].tolist()).decode() for one, length in zip(texts, lengths, strict=True)]
