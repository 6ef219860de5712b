"""Which completion sits in which row: prompts enter, rows end, room is refilled, the batch shrinks.

Knows rows and tokens; nothing of attention, caches or text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.engines import Sampling, TakeNewer
from paceline.engines.local.decoder import Decoder
from paceline.engines.local.rows import rounded_up
from paceline.engines.sampling import as_signed_64, draw, uniforms
from paceline.engines.stopping import Stopping
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.progress import Progress

UNIFORM_BLOCK = 32
"""Positions whose uniform numbers are made at once."""
REFILL_SHARE = 4
"""Waiting prompts enter once one row in so many is free: fewer, larger prefills."""
_NO_SEQUENCE = -1

OnEnded = Callable[[list[tuple[int, list[int]]]], None]
"""Called with the sequences that one step has ended, each with its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A prompt and the sequences (completions, numbered over the whole call) to sample from it."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[int, ...]
    keys: tuple[int, ...]
    limits: tuple[int, ...]
    """Tokens of each sequence, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """All tokens of a call; those of sequence i lie from `ends[i - 1]` to `ends[i]`."""

    tokens: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    """Of each token: how many updates the weights had seen that sampled it."""
    ends: np.ndarray


class Schedule:
    """One call's progress over a decoder. `run` is the only thing to call, once."""

    def __init__(
        self,
        decoder: Decoder,
        sampling: Sampling,
        stopping: Stopping,
        *,
        concurrent_sequences: int,
        device: torch.device,
        progress: Progress,
        on_ended: OnEnded | None,
    ) -> None:
        """`concurrent_sequences` bounds the rows computed at the same time."""
        self._decoder, self._sampling, self._stopping = decoder, sampling, stopping
        self._capacity, self._device, self._progress = concurrent_sequences, device, progress
        self._log: list[tuple[np.ndarray, np.ndarray, Tensor, int]] = []
        self._on_ended = on_ended

    def run(self, jobs: Sequence[Job], *, policy_version: int, take_newer: TakeNewer | None = None) -> Sampled:
        """Sample every job's sequences to their end, from weights of this version and those that come meanwhile.

        Jobs enter shortest prompt last, so that neighbours are padded little and the cache is sized at the start.
        """
        self._version = policy_version
        self._made, self._ended, self._of = 0, 0, sum(len(job.sequences) for job in jobs)
        self._progress.phase("generate", 0, self._of)
        waiting = sorted(jobs, key=lambda job: -len(job.prompt_ids))
        if self._stopping.watches_text or self._on_ended is not None:
            shape = (sum(len(job.sequences) for job in jobs), self._sampling.max_completion_length)
            self._history = np.zeros(shape, dtype=np.int32)
        self._max_length = len(waiting[0].prompt_ids) + self._sampling.max_completion_length
        self._begin(waiting)
        while waiting or self._alive:
            waiting = self._refill(waiting)
            if not self._alive:
                continue
            if not (waiting and self._decoder.refills):
                self._shrink()
            if take_newer is not None:
                self._renew(take_newer())
            self._step()
        self._decoder.end()
        return self._collected(sum(len(job.sequences) for job in jobs))

    def _renew(self, version: int | None) -> None:
        """Between two tokens: the next one is of the newer weights, where there are any."""
        if version is not None:
            self._version = version
            self._decoder.reread()

    def _begin(self, waiting: Sequence[Job]) -> None:
        if self._decoder.refills:
            rows = min(self._capacity, sum(len(job.sequences) for job in waiting))
        else:
            rows = sum(len(job.sequences) for job in self._fitting(waiting, self._capacity))
        self._decoder.begin(rows, self._max_length)
        self._sequence_of = np.full(rows, _NO_SEQUENCE)
        self._sampled = np.zeros(rows, dtype=np.int64)
        self._keys = np.zeros(rows, dtype=np.int64)
        self._limits = np.zeros(rows, dtype=np.int64)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._alive = 0
        self._block_used = UNIFORM_BLOCK

    @staticmethod
    def _fitting(waiting: Sequence[Job], free: int) -> list[Job]:
        """The first waiting jobs that have room together."""
        used = np.cumsum([len(job.sequences) for job in waiting[: free + 1]])
        return list(waiting[: int(np.searchsorted(used, free, side="right"))])

    def _refill(self, waiting: list[Job]) -> list[Job]:
        if not waiting or (self._alive and not self._decoder.refills):
            return waiting
        if not self._alive and not self._decoder.refills:
            self._begin(waiting)
        free = len(self._sequence_of) - self._alive
        if self._alive and free * REFILL_SHARE < len(self._sequence_of):
            return waiting
        entering = self._fitting(waiting, free)
        if entering:
            self._admit(entering)
        return waiting[len(entering) :]

    def _admit(self, jobs: Sequence[Job]) -> None:
        free = np.flatnonzero(self._sequence_of == _NO_SEQUENCE)
        bounds = np.cumsum([0] + [len(job.sequences) for job in jobs])
        rows = free[: bounds[-1]]
        rows_of = [rows[first:last].tolist() for first, last in pairwise(bounds)]
        sequences = np.array([sequence for job in jobs for sequence in job.sequences])
        self._sequence_of = self._sequence_of.copy()
        self._sequence_of[rows], self._sampled[rows] = sequences, 0
        self._keys[rows] = [as_signed_64(key) for job in jobs for key in job.keys]
        self._limits[rows] = [limit for job in jobs for limit in job.limits]
        logits = self._decoder.admit([job.prompt_ids for job in jobs], rows_of)
        prompt_of = torch.from_numpy(np.repeat(np.arange(len(jobs)), np.diff(bounds))).to(self._device)
        first = self._to_device(np.zeros(len(rows), dtype=np.int64))
        uniform = uniforms(self._to_device(self._keys[rows]), first)
        tokens, logprobs = draw(logits.index_select(0, prompt_of), uniform, self._sampling)
        self._tokens = self._tokens.index_copy(0, self._to_device(rows), tokens)
        self._alive += len(rows)
        self._block_used = UNIFORM_BLOCK
        self._record(rows, tokens, logprobs)

    def _step(self) -> None:
        uniform = self._next_uniforms()
        self._tokens, logprobs = self._decoder.draw_next(self._tokens, uniform, self._sampling)
        self._record(slice(None), self._tokens, logprobs)

    def _next_uniforms(self) -> Float[Tensor, " S"]:
        if self._block_used == UNIFORM_BLOCK:
            HEARTBEAT.beat("engine", f"{self._alive} completions under way")
            steps = torch.arange(UNIFORM_BLOCK, device=self._device)
            self._block = uniforms(self._to_device(self._keys), self._to_device(self._sampled) + steps[:, None])
            self._block_used = 0
        self._block_used += 1
        return self._block[self._block_used - 1]

    def _record(self, rows: np.ndarray | slice, tokens: Int[Tensor, " N"], logprobs: Float[Tensor, " N"]) -> None:
        """Log what these rows sampled and end the completions that it ends."""
        on_host = tokens.cpu().numpy()
        sequences = self._sequence_of[rows]
        self._log.append((sequences, on_host, logprobs, self._version))
        self._sampled[rows] += 1
        living = sequences != _NO_SEQUENCE
        ended = (self._stopping.ended(on_host) | (self._sampled[rows] >= self._limits[rows])) & living
        if self._stopping.watches_text or self._on_ended is not None:
            self._history[sequences[living], self._sampled[rows][living] - 1] = on_host[living]
        if self._stopping.watches_text:
            self._end_by_text(rows, on_host, living, ended)
        if ended.any():
            self._release(self._numbers(rows)[ended])
        self._made += int(living.sum())
        self._progress.phase("generate", self._ended, self._of, tokens=self._made)

    def _release(self, gone: np.ndarray) -> None:
        if self._on_ended is not None:
            self._on_ended([(int(self._sequence_of[row]), self._sampled_by(row)) for row in gone])
        self._sequence_of = self._sequence_of.copy()
        self._sequence_of[gone] = _NO_SEQUENCE
        self._alive -= len(gone)
        self._ended += len(gone)
        self._decoder.release(gone.tolist())

    def _end_by_text(self, rows: np.ndarray | slice, tokens: np.ndarray, living: np.ndarray, ended: np.ndarray) -> None:
        numbers = self._numbers(rows)
        for index in self._stopping.candidates(tokens):
            if living[index] and not ended[index]:
                ended[index] = self._stopping.completes_string(self._sampled_by(numbers[index]))

    def _numbers(self, rows: np.ndarray | slice) -> np.ndarray:
        """The rows that an index takes."""
        numbers: np.ndarray = np.arange(len(self._sequence_of))[rows]
        return numbers

    def _sampled_by(self, row: int) -> list[int]:
        """Everything that the living sequence of a row has sampled."""
        tokens: list[int] = self._history[self._sequence_of[row], : self._sampled[row]].tolist()
        return tokens

    def _shrink(self) -> None:
        """Leave ended rows behind once the next smaller round size holds the living ones."""
        size = rounded_up(self._alive)
        if size >= len(self._sequence_of):
            return
        living = self._sequence_of != _NO_SEQUENCE
        keep = np.argsort(~living, kind="stable")[:size]
        self._sequence_of, self._sampled = self._sequence_of[keep], self._sampled[keep]
        self._keys, self._limits = self._keys[keep], self._limits[keep]
        index = self._to_device(keep)
        self._tokens = self._tokens.index_select(0, index)
        self._block_used = UNIFORM_BLOCK
        self._decoder.compact(index, self._alive)

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _collected(self, num_sequences: int) -> Sampled:
        sequences = np.concatenate([entry[0] for entry in self._log])
        tokens = np.concatenate([entry[1] for entry in self._log])
        logprobs = torch.cat([entry[2] for entry in self._log]).double().cpu().numpy()
        versions = np.repeat([entry[3] for entry in self._log], [len(entry[0]) for entry in self._log])
        order = np.argsort(sequences, kind="stable")
        order = order[np.searchsorted(sequences[order], 0) :]
        counts = np.bincount(sequences[order], minlength=num_sequences)
        return Sampled(tokens=tokens[order], logprobs=logprobs[order], versions=versions[order], ends=np.cumsum(counts))
