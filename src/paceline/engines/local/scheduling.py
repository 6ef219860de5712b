"""Continuous batching: prompts enter, rows end, free rows are refilled, the batch shrinks and grows.

Knows rows and tokens; nothing of attention, caches or text. A completion that may be continued gives its row to
another, and what is cached of it is parked. Its next turn takes any free row and reads what was said since, token by
token among the others' steps.
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
from paceline.engines.local.attention import Context
from paceline.engines.local.decoder import Decoder, rounded_up
from paceline.engines.local.parking import Parked, reading_pays
from paceline.engines.requests import Stopping
from paceline.engines.sampling import as_signed_64, draw, uniforms
from paceline.runtime.activity import ACTIVITY

UNIFORM_BLOCK = 32
"""Positions whose uniform numbers are made at once."""
REFILL_SHARE = 4
"""Waiting prompts enter once one row in this many is free: fewer, larger prefills."""
SPARE_ROWS = 2
"""A batch that conversations may come back to shrinks once the rows in use are one in this many: storage moves less."""
_FREE = -1

OnEnded = Callable[[list[tuple[int, list[int]]]], list[bool]]
"""Called with the completions that one step has ended: the number and the tokens of each. Returns which of them may be
continued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingJob:
    """A prompt and the completions to sample from it, which are numbered over the whole call."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[int, ...]
    """Number of each completion."""
    keys: tuple[int, ...]
    limits: tuple[int, ...]
    """Largest number of tokens of each completion."""
    continues: int | None = None
    """Number of the completion with whose prompt and tokens the prompt begins; None: it is of its own."""


TakeJobs = Callable[[bool], Sequence[SamplingJob] | None]
"""Gives the jobs that have come up since it was called last; None: there will be no more. True: waits until either."""


class Rows:
    """The rows of a batch in parallel columns: one entry for each row, which holds a completion or is free."""

    def __init__(self, count: int, history: int) -> None:
        """Start with all rows free; `history` is how many tokens of each completion are kept."""
        self.sequence = np.full(count, _FREE)
        """Number of each row's completion. Replaced and never changed in place, since the log of draws refers to it."""
        self.num_sampled = np.zeros(count, dtype=np.int64)
        """Tokens sampled by each row's completion; below 0 while it still reads, so that it is 0 at the first draw."""
        self.keys = np.zeros(count, dtype=np.int64)
        self.limits = np.zeros(count, dtype=np.int64)
        self.history = np.zeros((count, history), dtype=np.int32)
        """Tokens sampled by each row's completion."""
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

    def resize(self, size: int) -> np.ndarray:
        """Keep `size` rows, those with a completion first; return the rows that stay, in their new order.

        Where that is more rows than there are, the first one stands for each that is new.
        """
        keep = np.argsort(self.sequence == _FREE, kind="stable")[:size]
        keep = np.concatenate([keep, np.zeros(size - len(keep), dtype=keep.dtype)])
        self.sequence, self.num_sampled = self.sequence[keep], self.num_sampled[keep]
        self.sequence[self.alive :], self.num_sampled[self.alive :] = _FREE, 0
        self.keys, self.limits, self.history = self.keys[keep], self.limits[keep], self.history[keep]
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
    take_jobs: TakeJobs | None
    """Gives further jobs, numbered on; None: there are none."""
    parked: Parked

    def __post_init__(self) -> None:
        self._waiting, self._num_sequences = list[SamplingJob](), 0
        self._longest, self._room = 0, 0
        """Tokens of the longest prompt and its completion together, and what the decoder has room for."""
        self._parks = self.take_jobs is not None and self.decoder.refills
        self._add(self.jobs)

        keeps_history = self.stopping.watches_text or self.on_ended is not None
        self._history = self.sampling.max_completion_length if keeps_history else 0
        """Tokens of each completion that are kept, as somebody reads them before the end."""
        self._rows = Rows(0, self._history)
        self._unread = dict[int, tuple[int, ...]]()
        """Tokens that the rows of these completions began with; all but the first are fed to them one by one."""
        self._tokens = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Newest token of each row."""
        self._uniforms = torch.zeros(0, 0, device=self.device)
        """Uniform numbers of all rows for the next `UNIFORM_BLOCK` positions."""
        self._uniforms_used = UNIFORM_BLOCK
        """Positions of them that have been drawn."""

        self._log = list[_Draw]()
        self._num_tokens, self._num_ended = 0, 0

    def run(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Sample every completion to its end, from the weights at hand and newer ones that arrive meanwhile.

        Returns:
            Tokens of each completion, their logprobs and the policy versions that sampled them.
        """
        ACTIVITY.advance("generate", 0, self._num_sequences)
        while True:
            if self.take_jobs is not None:
                self._take_further(self.take_jobs)
            if not (self._waiting or self._rows.alive):
                if self.take_jobs is None:
                    break
                continue
            self._refill()
            if not self._rows.alive:
                continue  # all that entered ended with their first token
            if not (self._waiting and self.decoder.refills):
                # drop free rows once the next smaller round size holds the others
                size, spare = rounded_up(self._rows.alive), 1 if self.take_jobs is None else SPARE_ROWS
                if size < len(self._rows) and size * spare <= len(self._rows):
                    self._resize(size)
            self._take_weights()
            uniform = self._next_uniforms()
            self._tokens, logprobs = self.decoder.draw_next(self._tokens, uniform, self.sampling)
            self._record(slice(None), self._tokens, logprobs)
            if self._unread:
                self._read_on()
        if not self._num_sequences:
            return []
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

    def _add(self, jobs: Sequence[SamplingJob]) -> None:
        """Let jobs wait with the others."""
        # Shortest prompts enter last, so that neighbours are padded little and the cache is sized at the start.
        self._waiting = sorted([*self._waiting, *jobs], key=lambda job: -len(job.prompt_ids))
        self._num_sequences += sum(len(job.sequences) for job in jobs)
        for job in jobs:
            # at first as if all began: a limit is what a turn may take of the tokens of a whole conversation
            most = max(job.limits) if self._room else self.sampling.max_completion_length
            self._longest = max(self._longest, len(job.prompt_ids) + most)

    def _take_further(self, take_jobs: TakeJobs) -> None:
        """Let jobs that have come up wait with the others; block for them where there is nothing else to do."""
        is_idle = not (self._waiting or self._rows.alive)
        jobs = take_jobs(is_idle)
        if jobs is None:
            self.take_jobs = None
            return
        if is_idle:
            self._take_weights()  # what arrived meanwhile, for the first tokens too
        for job in jobs:
            if job.continues is not None and job.continues in self.parked:
                read = len(job.prompt_ids) - self.parked.length(job.continues)
                if not reading_pays(read, len(job.prompt_ids)):
                    self.parked.take(job.continues)
        if jobs:
            self._add(jobs)

    def _take_weights(self) -> None:
        """Sample the next tokens from newer weights, if there are any."""
        version = None if self.take_newer is None else self.take_newer()
        if version is not None:
            self.policy_version = version
            if self._room:
                self.decoder.reread()

    def _begin(self) -> None:
        """Lay out the decoder for the jobs that wait."""
        if not self.decoder.refills:
            count = sum(len(job.sequences) for job in self._fitting(self.concurrent_sequences))
        else:
            count = min(self.concurrent_sequences, sum(len(job.sequences) for job in self._waiting))
            if self._room:
                self.decoder.end()
        if self._longest > self._room:
            self._room = max(self._longest, self._room * 3 // 2)
        self.decoder.begin(count, self._room)
        self._rows = Rows(count, self._history)
        self._tokens = torch.zeros(count, dtype=torch.int64, device=self.device)
        self._uniforms_used = UNIFORM_BLOCK

    def _resize(self, size: int) -> None:
        """Keep so many rows, or make as many of them."""
        keep = self._to_device(self._rows.resize(size))
        self._tokens = self._tokens.index_select(0, keep)
        self._uniforms_used = UNIFORM_BLOCK
        self.decoder.compact(keep, self._rows.alive)

    def _refill(self) -> None:
        """Let waiting prompts enter: once enough rows are free, or once all are where the decoder cannot refill."""
        if not self._waiting:
            return
        if not self.decoder.refills or self._longest > self._room:
            if self._rows.alive:
                return
            self._begin()
        if self._parks:
            self._resume()
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

    def _resume(self) -> None:
        """Let completions whose contexts are parked go on in free rows, of which more are made if there may be more."""
        if len(self._rows) < self.concurrent_sequences:
            wanted = self._rows.alive + sum(len(job.sequences) for job in self._waiting)
            if wanted > len(self._rows):
                self._resize(min(rounded_up(wanted), self.concurrent_sequences))
        free = len(self._rows) - self._rows.alive
        if not free:
            return
        resumed, contexts, waiting = list[SamplingJob](), list[Context](), list[SamplingJob]()
        for job in self._waiting:
            if job.continues is not None and job.continues in self.parked and len(resumed) < free:
                resumed.append(job)
                contexts.append(self.parked.take(job.continues))
            else:
                waiting.append(job)
        if not resumed:
            return
        self._waiting = waiting
        rows = np.concatenate(self._rows.take(resumed))
        self.decoder.resume(contexts, rows.tolist())
        unread = [job.prompt_ids[context.shape[-2] :] for job, context in zip(resumed, contexts, strict=True)]
        self._unread |= {job.sequences[0]: tokens for job, tokens in zip(resumed, unread, strict=True)}
        # the last of them is followed by the first draw, at position 0
        self._rows.num_sampled[rows] = [1 - len(tokens) for tokens in unread]
        self._feed(rows, [tokens[0] for tokens in unread])
        self._uniforms_used = UNIFORM_BLOCK

    def _read_on(self) -> None:
        """Rows that still read go on with the next token of their prompt, whatever was drawn for them."""
        rows = np.flatnonzero((self._rows.num_sampled <= 0) & (self._rows.sequence != _FREE))
        if len(rows):
            places = zip(self._rows.sequence[rows].tolist(), self._rows.num_sampled[rows].tolist(), strict=True)
            self._feed(rows, [self._unread[sequence][num_sampled - 1] for sequence, num_sampled in places])

    def _feed(self, rows: np.ndarray, tokens: list[int]) -> None:
        self._tokens = self._tokens.index_copy(0, self._to_device(rows), self._to_device(np.array(tokens)))

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
        if self._unread:  # rows that still read draw for nobody
            sequences = np.where(self._rows.num_sampled[rows] < 0, _FREE, sequences)
        self._log.append(_Draw(sequences, on_host, logprobs, self.policy_version))
        self._rows.num_sampled[rows] += 1
        num_sampled, living = self._rows.num_sampled[rows], sequences != _FREE
        if self._history:
            self._rows.history[self._rows.numbers(rows)[living], num_sampled[living] - 1] = on_host[living]

        ended = (self.stopping.ended(on_host) | (num_sampled >= self._rows.limits[rows])) & living
        if self.stopping.watches_text:
            for index in self.stopping.candidates(on_host):
                if living[index] and not ended[index]:
                    ended[index] = self.stopping.completes_string(self._sampled_by(self._rows.numbers(rows)[index]))
        if ended.any():
            numbers = self._rows.numbers(rows)[ended]
            if self.on_ended is not None:
                ended_now = [(int(self._rows.sequence[row]), self._sampled_by(row)) for row in numbers]
                continued = self.on_ended(ended_now)
                if self.take_jobs is not None and self._parks and any(continued):
                    self._park(numbers[continued])
            for sequence in self._rows.sequence[numbers].tolist() if self._unread else ():
                self._unread.pop(sequence, None)
            self._rows.release(numbers)
            self._num_ended += len(numbers)
            self.decoder.release(numbers.tolist())
        self._num_tokens += int(living.sum())
        ACTIVITY.advance("generate", self._num_ended, self._num_sequences, tokens=self._num_tokens)

    def _park(self, rows: np.ndarray) -> None:
        for sequence, context in zip(self._rows.sequence[rows].tolist(), self.decoder.park(rows.tolist()), strict=True):
            self.parked.park(sequence, context)

    def _sampled_by(self, row: int) -> list[int]:
        tokens: list[int] = self._rows.history[row, : self._rows.num_sampled[row]].tolist()
        return tokens

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)
