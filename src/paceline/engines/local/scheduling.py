"""Continuous batching: prompts enter, rows end, free rows are refilled, the batch shrinks.

Knows rows and tokens; nothing of attention, caches or text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.engines import Sampling, TakeNewer
from paceline.engines.local.decoder import Decoder, rounded_up
from paceline.engines.requests import Stopping
from paceline.engines.sampling import as_signed_64, draw, uniforms
from paceline.runtime.activity import ACTIVITY

UNIFORM_BLOCK = 32
"""Positions whose uniform numbers are made at once."""
REFILL_SHARE = 4
"""Waiting prompts enter once one row in this many is free: fewer, larger prefills."""
_FREE = -1

OnEnded = Callable[[list[tuple[int, list[int]]]], None]
"""Called with the completions that one step has ended: the number and the tokens of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingJob:
    """A prompt and the completions to sample from it, which are numbered over the whole call."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[int, ...]
    """Number of each completion."""
    keys: tuple[int, ...]
    limits: tuple[int, ...]
    """Largest number of tokens of each completion."""


class Rows:
    """The rows of a batch in parallel columns: one entry for each row, which holds a completion or is free."""

    def __init__(self, count: int) -> None:
        """Start with all rows free."""
        self.sequence = np.full(count, _FREE)
        """Number of each row's completion. Replaced and never changed in place, since the log of draws refers to it."""
        self.num_sampled = np.zeros(count, dtype=np.int64)
        self.keys = np.zeros(count, dtype=np.int64)
        self.limits = np.zeros(count, dtype=np.int64)
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
        rows = np.flatnonzero(self.sequence == _FREE)[: bounds[-1]]
        self.sequence = self.sequence.copy()
        self.sequence[rows] = [sequence for job in jobs for sequence in job.sequences]
        self.num_sampled[rows] = 0
        self.keys[rows] = [as_signed_64(key) for job in jobs for key in job.keys]
        self.limits[rows] = [limit for job in jobs for limit in job.limits]
        self.alive += len(rows)
        return [rows[first:last] for first, last in pairwise(bounds)]

    def release(self, rows: np.ndarray) -> None:
        """Free these rows."""
        self.sequence = self.sequence.copy()
        self.sequence[rows] = _FREE
        self.alive -= len(rows)

    def compact(self, size: int) -> np.ndarray:
        """Keep `size` rows, those with a completion first; return the rows that stay, in their new order."""
        keep = np.argsort(self.sequence == _FREE, kind="stable")[:size]
        self.sequence, self.num_sampled = self.sequence[keep], self.num_sampled[keep]
        self.keys, self.limits = self.keys[keep], self.limits[keep]
        return keep


class _Draw(NamedTuple):
    """One token of some rows, free ones included."""

    sequences: np.ndarray
    tokens: np.ndarray
    logprobs: Tensor
    policy_version: int


@dataclass(kw_only=True)
class Scheduler:
    """Samples all completions of one call over a decoder. `run` is the only method to call, once."""

    decoder: Decoder
    sampling: Sampling
    stopping: Stopping
    jobs: Sequence[SamplingJob]
    policy_version: int
    """Version of the weights at hand."""
    take_newer: TakeNewer | None
    concurrent_sequences: int
    """Largest number of rows computed at once."""
    device: torch.device
    on_ended: OnEnded | None

    def __post_init__(self) -> None:
        # Shortest prompts enter last, so that neighbours are padded little and the cache is sized at the start.
        self._waiting = sorted(self.jobs, key=lambda job: -len(job.prompt_ids))
        self._num_sequences = sum(len(job.sequences) for job in self.jobs)
        self._max_length = max(len(job.prompt_ids) for job in self.jobs) + self.sampling.max_completion_length

        self._rows = Rows(0)
        self._tokens = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Newest token of each row."""
        self._uniforms = torch.zeros(0, 0, device=self.device)
        """Uniform numbers of all rows for the next `UNIFORM_BLOCK` positions."""
        self._uniforms_used = UNIFORM_BLOCK
        """Positions of them that have been drawn."""

        self._log = list[_Draw]()
        keeps_history = self.stopping.watches_text or self.on_ended is not None
        shape = (self._num_sequences, self.sampling.max_completion_length)
        self._history = np.zeros(shape, dtype=np.int32) if keeps_history else None
        """Tokens of each completion, kept only if somebody reads them before the end."""
        self._num_tokens, self._num_ended = 0, 0

    def run(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Sample every completion to its end, from the weights at hand and newer ones that arrive meanwhile.

        Returns:
            Tokens of each completion, their logprobs and the policy versions that sampled them.
        """
        ACTIVITY.advance("generate", 0, self._num_sequences)
        if self.decoder.refills:
            self._begin(min(self.concurrent_sequences, self._num_sequences))
        while self._waiting or self._rows.alive:
            self._refill()
            if not self._rows.alive:
                continue  # all that entered ended with their first token
            if not (self._waiting and self.decoder.refills):
                # drop free rows once the next smaller round size holds the others
                size = rounded_up(self._rows.alive)
                if size < len(self._rows):
                    keep = self._to_device(self._rows.compact(size))
                    self._tokens = self._tokens.index_select(0, keep)
                    self._uniforms_used = UNIFORM_BLOCK
                    self.decoder.compact(keep, self._rows.alive)
            version = None if self.take_newer is None else self.take_newer()
            if version is not None:  # the next token is sampled from newer weights
                self.policy_version = version
                self.decoder.reread()
            uniform = self._next_uniforms()
            self._tokens, logprobs = self.decoder.draw_next(self._tokens, uniform, self.sampling)
            self._record(slice(None), self._tokens, logprobs)
        self.decoder.end()

        # Sort all draws by completion; free rows fall out.
        sequences = np.concatenate([one.sequences for one in self._log])
        tokens = np.concatenate([one.tokens for one in self._log])
        nats = torch.cat([one.logprobs for one in self._log]).double().cpu().numpy()
        versions = np.repeat([one.policy_version for one in self._log], [len(one.sequences) for one in self._log])
        order = np.argsort(sequences, kind="stable")
        order = order[np.searchsorted(sequences[order], 0) :]
        ends = np.cumsum(np.bincount(sequences[order], minlength=self._num_sequences))
        columns = (np.split(column[order], ends[:-1]) for column in (tokens, nats, versions))
        return list(zip(*columns, strict=True))

    def _begin(self, count: int) -> None:
        self.decoder.begin(count, self._max_length)
        self._rows = Rows(count)
        self._tokens = torch.zeros(count, dtype=torch.int64, device=self.device)
        self._uniforms_used = UNIFORM_BLOCK

    def _refill(self) -> None:
        """Let waiting prompts enter: once enough rows are free, or once all are where the decoder cannot refill."""
        if not self._waiting or (self._rows.alive and not self.decoder.refills):
            return
        if not self.decoder.refills:
            self._begin(sum(len(job.sequences) for job in self._fitting(self.concurrent_sequences)))
        free = len(self._rows) - self._rows.alive
        if self._rows.alive and free * REFILL_SHARE < len(self._rows):
            return
        entering = self._fitting(free)
        if not entering:
            return
        self._waiting = self._waiting[len(entering) :]

        # Compute the prompts and sample the first token of their completions.
        rows_of = self._rows.take(entering)
        rows = np.concatenate(rows_of)
        logits = self.decoder.admit([job.prompt_ids for job in entering], [members.tolist() for members in rows_of])
        prompt_of = np.repeat(np.arange(len(entering)), [len(members) for members in rows_of])
        uniform = uniforms(self._to_device(self._rows.keys[rows]), self._to_device(np.zeros(len(rows), dtype=np.int64)))
        tokens, logprobs = draw(logits.index_select(0, self._to_device(prompt_of)), uniform, self.sampling)
        self._tokens = self._tokens.index_copy(0, self._to_device(rows), tokens)
        self._uniforms_used = UNIFORM_BLOCK
        self._record(rows, tokens, logprobs)

    def _fitting(self, free: int) -> list[SamplingJob]:
        """Return the first waiting jobs whose completions fit into the free rows together."""
        used = np.cumsum([len(job.sequences) for job in self._waiting[: free + 1]])
        return self._waiting[: int(np.searchsorted(used, free, side="right"))]

    def _next_uniforms(self) -> Float[Tensor, " S"]:
        """Return a uniform number for each row, which its key and position determine."""
        if self._uniforms_used == UNIFORM_BLOCK:
            offsets = torch.arange(UNIFORM_BLOCK, device=self.device)[:, None]
            positions = self._to_device(self._rows.num_sampled) + offsets
            self._uniforms = uniforms(self._to_device(self._rows.keys), positions)
            self._uniforms_used = 0
        self._uniforms_used += 1
        return self._uniforms[self._uniforms_used - 1]

    def _record(self, rows: np.ndarray | slice, tokens: Int[Tensor, " N"], logprobs: Float[Tensor, " N"]) -> None:
        """Log what these rows sampled, and end the completions that it ends."""
        on_host = tokens.cpu().numpy()
        sequences = self._rows.sequence[rows]
        self._log.append(_Draw(sequences, on_host, logprobs, self.policy_version))
        self._rows.num_sampled[rows] += 1
        num_sampled, living = self._rows.num_sampled[rows], sequences != _FREE
        if self._history is not None:
            self._history[sequences[living], num_sampled[living] - 1] = on_host[living]

        ended = (self.stopping.ended(on_host) | (num_sampled >= self._rows.limits[rows])) & living
        if self.stopping.watches_text:
            for index in self.stopping.candidates(on_host):
                if living[index] and not ended[index]:
                    ended[index] = self.stopping.completes_string(self._sampled_by(self._rows.numbers(rows)[index]))
        if ended.any():
            numbers = self._rows.numbers(rows)[ended]
            if self.on_ended is not None:
                self.on_ended([(int(self._rows.sequence[row]), self._sampled_by(row)) for row in numbers])
            self._rows.release(numbers)
            self._num_ended += len(numbers)
            self.decoder.release(numbers.tolist())
        self._num_tokens += int(living.sum())
        ACTIVITY.advance("generate", self._num_ended, self._num_sequences, tokens=self._num_tokens)

    def _sampled_by(self, row: int) -> list[int]:
        assert self._history is not None
        tokens: list[int] = self._history[self._rows.sequence[row], : self._rows.num_sampled[row]].tolist()
        return tokens

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)
