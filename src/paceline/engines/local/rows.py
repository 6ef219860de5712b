"""The rows of a batch, the completions that take them, and contexts of conversations between their turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.engines import Sampling
from paceline.engines.local.attention import Context
from paceline.engines.sampling import as_signed_64
from paceline.types import Media

FREE = -1
"""Number of the completion of a row that has none."""
PARKED_SHARE = 0.25
"""Share of free memory for parked contexts. The rest is for the rows in use, whose contexts grow, and for environments,
tools and reward functions."""
ASSUMED_FREE = 4 << 30
"""Free bytes of memory to assume if the system does not tell."""
READ_COST = 4
"""Tokens of a prompt that are computed in the time in which a row of a decoding step reads one. On two CPU cores in
float32: 9 of 32 rows, 5 of 64 and 2 of 256 with the embedded model, 5 of 8 rows, 2 of 32 and 1 of 64 with layers of a
model of half a billion parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingJob:
    """A prompt and the completions to sample from it, which are numbered over the whole call."""

    prompt_ids: tuple[int, ...]
    media: tuple[Media, ...] = ()
    """Images of the prompt."""
    sequences: tuple[int, ...]
    """Number of each completion."""
    keys: tuple[int, ...]
    limits: tuple[int, ...]
    """Largest number of tokens of each completion."""
    sampling: Sampling
    """How tokens are drawn."""
    continues: int | None = None
    """Number of the completion that the prompt continues; None: it continues none."""

    @property
    def order(self) -> tuple[int, tuple[int, ...], list[tuple[int, str]]]:
        """Longer prompts first; those of the same tokens and images are neighbours."""
        return -len(self.prompt_ids), self.prompt_ids, [(image.start, image.sha256) for image in self.media]


class Rows:
    """The rows of a batch in parallel columns: one entry for each row, which holds a completion or is free."""

    def __init__(self, count: int, history: int) -> None:
        """Start with all rows free; `history` is how many tokens of each completion are kept."""
        self.sequence = np.full(count, FREE)
        """Number of each row's completion. Replaced and never changed in place, since the log of draws refers to it."""
        self.num_sampled = np.zeros(count, dtype=np.int64)
        """Tokens drawn for each row's completion, including those not yet on the host; below 0 while the row reads its
        prompt, so that it is 0 at the first draw."""
        self.keys = np.zeros(count, dtype=np.int64)
        self.limits = np.zeros(count, dtype=np.int64)
        self.history = np.zeros((count, history), dtype=np.int32)
        """Tokens sampled by each row's completion."""
        self.sampling = np.full(count, None, dtype=object)
        """Sampling options of each row's completion; stale or None for a free row."""
        self.alive = 0
        """Number of rows that hold a completion."""

    def __len__(self) -> int:
        return len(self.sequence)

    def numbers(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the numbers of the rows that an index selects."""
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

        If there are fewer rows, the first one is repeated for each new one.
        """
        keep = np.argsort(self.sequence == FREE, kind="stable")[:size]
        keep = np.concatenate([keep, np.zeros(size - len(keep), dtype=keep.dtype)])
        self.sequence, self.num_sampled = self.sequence[keep], self.num_sampled[keep]
        self.sequence[self.alive :], self.num_sampled[self.alive :] = FREE, 0
        self.keys, self.limits, self.history = self.keys[keep], self.limits[keep], self.history[keep]
        self.sampling = self.sampling[keep]
        return keep


def reading_pays(observed: int, prompt: int) -> bool:
    """Return whether reading the last `observed` tokens one by one takes less than computing the whole prompt anew.

    It depends on lengths only, so that a run can be repeated.

    >>> reading_pays(250, 1000), reading_pays(251, 1000)
    (True, False)
    """
    return observed * READ_COST <= prompt


class Parked:
    """Contexts by the numbers of their completions; the oldest are dropped when memory runs out."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._contexts = dict[int, Context]()

    def __contains__(self, number: object) -> bool:
        return number in self._contexts

    def park(self, number: int, context: Context) -> None:
        """Keep a context; drop the oldest ones if they do not fit."""
        self._contexts[number] = context
        self._bytes += context.nbytes
        while self._bytes > self._most:
            self.take(next(iter(self._contexts)))

    def length(self, number: int) -> int:
        """Return the tokens of a context."""
        return self._contexts[number].length

    def take(self, number: int) -> Context:
        """Remove a context and return it."""
        context = self._contexts.pop(number)
        self._bytes -= context.nbytes
        return context
