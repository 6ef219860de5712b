"""The rows of a batch, and the completions that take them: numbers in columns, nothing of attention or text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.engines import Sampling
from paceline.engines.sampling import as_signed_64

FREE = -1
"""Number of the completion of a row that has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingJob:
    """A prompt and the completions to sample from it, which are numbered over the whole call."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[int, ...]
    """Number of each completion."""
    keys: tuple[int, ...]
    limits: tuple[int, ...]
    """Largest number of tokens of each completion."""
    sampling: Sampling
    """How tokens are drawn."""
    continues: int | None = None
    """Number of the completion with whose prompt and tokens the prompt begins; None: it is of its own."""


class Rows:
    """The rows of a batch in parallel columns: one entry for each row, which holds a completion or is free."""

    def __init__(self, count: int, history: int) -> None:
        """Start with all rows free; `history` is how many tokens of each completion are kept."""
        self.sequence = np.full(count, FREE)
        """Number of each row's completion. Replaced and never changed in place, since the log of draws refers to it."""
        self.num_sampled = np.zeros(count, dtype=np.int64)
        """Tokens drawn for each row's completion, those included that are on their way to the host; below 0 while it
        still reads, so that it is 0 at the first draw."""
        self.keys = np.zeros(count, dtype=np.int64)
        self.limits = np.zeros(count, dtype=np.int64)
        self.history = np.zeros((count, history), dtype=np.int32)
        """Tokens sampled by each row's completion."""
        self.sampling = np.full(count, None, dtype=object)
        """How the tokens of each row's completion are drawn; of a free row, those of an earlier one, or None."""
        self.alive = 0
        """Number of rows that hold a completion."""

    def __len__(self) -> int:
        return len(self.sequence)

    def numbers(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the numbers of the rows that an index takes."""
        numbers: np.ndarray = np.arange(len(self.sequence))[rows]
        return numbers

    def take(self, jobs: Sequence[SamplingJob]) -> list[np.ndarray]:
        """Give each completion a free row; return the rows of each job."""
        bounds = np.cumsum([0] + [len(job.sequences) for job in jobs])
        rows = np.flatnonzero(self.sequence == FREE)[: bounds[-1]]
        self.sequence = self.sequence.copy()
        self.sequence[rows] = [sequence for job in jobs for sequence in job.sequences]
        self.num_sampled[rows] = 0
        self.keys[rows] = [as_signed_64(key) for job in jobs for key in job.keys]
        self.limits[rows] = [limit for job in jobs for limit in job.limits]
        for job, members in zip(jobs, np.split(rows, bounds[1:-1]), strict=True):
            self.sampling[members] = job.sampling
        self.alive += len(rows)
        return [rows[first:last] for first, last in pairwise(bounds)]

    def release(self, rows: np.ndarray) -> None:
        """Free these rows."""
        self.sequence = self.sequence.copy()
        self.sequence[rows] = FREE
        self.alive -= len(rows)

    def resize(self, size: int) -> np.ndarray:
        """Keep `size` rows, those with a completion first; return the rows that stay, in their new order.

        Where that is more rows than there are, the first one stands for each that is new.
        """
        keep = np.argsort(self.sequence == FREE, kind="stable")[:size]
        keep = np.concatenate([keep, np.zeros(size - len(keep), dtype=keep.dtype)])
        self.sequence, self.num_sampled = self.sequence[keep], self.num_sampled[keep]
        self.sequence[self.alive :], self.num_sampled[self.alive :] = FREE, 0
        self.keys, self.limits, self.history = self.keys[keep], self.limits[keep], self.history[keep]
        self.sampling = self.sampling[keep]
        return keep
