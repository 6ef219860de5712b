"""Continuous batching: prompts enter, rows end, free rows are refilled, the batch shrinks and grows.

Knows rows and tokens; nothing of attention, caches or text. When a completion that may be continued ends, its cache is
parked and its row freed. Its next turn takes any free row and reads the new tokens one by one in the other rows' steps.

On a GPU a step starts before the tokens of the previous one are read, so that the device does not wait for the host. A
row that turns out to have ended has then drawn one token too many, which is dropped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.engines import Sampling, TakeNewer
from paceline.engines.local.attention import Context
from paceline.engines.local.decoder import Decoder, PromptMedia, rounded_up
from paceline.engines.local.routes import RouteLog
from paceline.engines.local.rows import FREE, Parked, Rows, SamplingJob, reading_pays
from paceline.engines.requests import Stopping
from paceline.engines.sampling import draw_each, uniforms
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import on_its_way

UNIFORM_BLOCK = 32
"""Positions whose uniform numbers are made at once."""
REFILL_SHARE = 4
"""Waiting prompts enter once one row in this many is free, for fewer and larger prefills."""
SPARE_ROWS = 2
"""A batch with conversations shrinks once only one row in this many is in use, so that storage moves less."""

OnEnded = Callable[[list[tuple[int, list[int]]]], list[bool]]
"""Called with the number and the tokens of each completion that ended in a step. Returns which may be continued."""
OnDrawn = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Called with the numbers of the completions in a step, the token and logprob of each, and whether it has ended.
Returns which others to end."""
TakeJobs = Callable[[bool], Sequence[SamplingJob] | None]
"""Returns the jobs since the last call; None: there will be no more. True waits until either."""


class _Draw(NamedTuple):
    """One token of some rows, free ones included, not yet read from the device."""

    rows: np.ndarray | slice
    sequences: np.ndarray
    """Numbers of the completions in these rows, FREE for rows that only read."""
    tokens: Callable[[], np.ndarray]
    logprobs: Tensor
    nats: Callable[[], np.ndarray] | None
    """Reads the logprobs on the host, if `on_drawn` needs them."""
    policy_version: int


class _Drawn(NamedTuple):
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
    """Version of the current weights."""
    take_newer: TakeNewer | None
    concurrent_sequences: int
    """Largest number of rows computed at once."""
    device: torch.device
    on_ended: OnEnded | None
    take_jobs: TakeJobs | None
    """Returns further jobs, numbered consecutively; None: there are none."""
    parked: Parked
    on_drawn: OnDrawn | None = None
    """Called with each step's tokens; then no tokens are kept, and `run` returns an empty list."""
    room: int = 0
    """Largest number of tokens of a prompt and its completion together; 0: that of the first jobs."""
    routes: RouteLog | None = None
    """Takes the routes of all tokens; None: they are not wanted."""

    def __post_init__(self) -> None:
        self._waiting, self._num_sequences = list[SamplingJob](), 0
        self._longest, self._room = self.room, 0
        """Tokens of the longest prompt and its completion together, and what the decoder has room for."""
        self._parks = self.take_jobs is not None and self.decoder.refills
        self._add(self.jobs)

        keeps_history = self.stopping.watches_text or self.on_ended is not None
        self._history = self.sampling.max_completion_length if keeps_history else 0
        """Number of each completion's tokens to keep on the host, for stop strings and `on_ended`."""
        self._rows = Rows(0, self._history)
        self._unread = dict[int, tuple[int, ...]]()
        """Prompt tokens that resumed completions had not cached; all but the first are fed one by one."""
        self._tokens = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Newest token of each row."""
        self._uniforms = torch.zeros(0, 0, device=self.device)
        """Uniform numbers of all rows for the next `UNIFORM_BLOCK` positions."""
        self._uniforms_used = UNIFORM_BLOCK
        """Number of those positions that have been used."""

        self._on_the_way = deque[_Draw]()
        """Draws whose tokens are not read yet, oldest first. All are read before rows are assigned or moved."""
        self._log = list[_Drawn]()
        self._num_tokens, self._num_ended = 0, 0

    def run(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Sample every completion to its end, from the current weights and newer ones that arrive meanwhile.

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
            self._shrink()
            if not self._rows.alive:
                continue  # all that entered ended with their first token, or all others have ended
            self._take_weights()
            self._tokens, logprobs = self._draw_next(self._next_uniforms())
            if self.routes is not None:
                self.routes.appended(self._rows.sequence, self._rows.num_sampled)
            self._note(slice(None), self._tokens, logprobs)
            if self._unread:
                self._feed_unread()
            self._catch_up(but=1 if self.decoder.runs_ahead else 0)
        if not self._num_sequences:
            return []
        self.decoder.end()
        return self._by_completion() if self.on_drawn is None else []

    def _by_completion(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Sort all draws by completion; drop those of free rows."""
        sequences = np.concatenate([drawn.sequences for drawn in self._log])
        tokens = np.concatenate([drawn.tokens for drawn in self._log])
        nats = torch.cat([drawn.logprobs for drawn in self._log]).double().cpu().numpy()
        versions = np.repeat(
            [drawn.policy_version for drawn in self._log], [len(drawn.sequences) for drawn in self._log]
        )
        order = np.argsort(sequences, kind="stable")
        order = order[np.searchsorted(sequences[order], 0) :]
        ends = np.cumsum(np.bincount(sequences[order], minlength=self._num_sequences))
        columns = (np.split(column[order], ends[:-1]) for column in (tokens, nats, versions))
        return list(zip(*columns, strict=True))

    def _add(self, jobs: Sequence[SamplingJob]) -> None:
        """Queue jobs."""
        # shortest prompts last: neighbours are padded little, and the cache is sized at the start
        self._waiting = sorted([*self._waiting, *jobs], key=lambda job: job.order)
        self._num_sequences += sum(len(job.sequences) for job in jobs)
        for job in jobs:
            # at first as if all began: a limit is what a turn may take of the tokens of a whole conversation
            most = max(job.limits) if self._room or self.room else self.sampling.max_completion_length
            self._longest = max(self._longest, len(job.prompt_ids) + most)

    def _take_further(self, take_jobs: TakeJobs) -> None:
        """Queue jobs that have come up; block for them if there is nothing else to do."""
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
        """Switch to newer weights, if there are any."""
        version = None if self.take_newer is None else self.take_newer()
        if version is not None:
            self.policy_version = version
            if self._room:
                self.decoder.reread()

    def _begin(self) -> None:
        """Size the decoder for the waiting jobs."""
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

    def _shrink(self) -> None:
        """Drop free rows once the next smaller round size holds the others."""
        if not self._rows.alive or (self._waiting and self.decoder.refills):
            return
        size, spare = self._round_size(), 1 if self.take_jobs is None else SPARE_ROWS
        if size < len(self._rows) and size * spare <= len(self._rows):
            self._catch_up()
            if self._rows.alive:
                self._resize(self._round_size())

    def _round_size(self) -> int:
        return max(rounded_up(self._rows.alive), self.decoder.least_rows)

    def _resize(self, size: int) -> None:
        """Shrink or grow to this many rows."""
        keep = self._to_device(self._rows.resize(size))
        self._tokens = self._tokens.index_select(0, keep)
        self._uniforms_used = UNIFORM_BLOCK
        self.decoder.compact(keep, self._rows.alive)

    def _refill(self) -> None:
        """Admit waiting prompts once enough rows are free, or all of them if the decoder cannot refill."""
        if not self._waiting:
            return
        if not self.decoder.refills or self._longest > self._room:
            if self._rows.alive:
                return
            self._catch_up()
            self._begin()
        if self._parks:
            self._resume()
        # a listener to each token waits for the first one
        if self._rows.alive and self._free() * REFILL_SHARE < len(self._rows) and self.on_drawn is None:
            return
        if not self._fitting(self._free()):
            return
        self._catch_up()
        entering = self._fitting(self._free())
        self._waiting = self._waiting[len(entering) :]

        # Compute the prompts, equal ones once, and sample the first token of their completions.
        members = dict[tuple[tuple[int, ...], PromptMedia], list[int]]()
        for job, taken in zip(entering, self._rows.take(entering), strict=True):
            members.setdefault((job.prompt_ids, job.media), []).extend(taken.tolist())
        prompts, media = zip(*members, strict=True)
        logits = self.decoder.admit(prompts, list(members.values()), media)
        if self.routes is not None:
            self.routes.admitted(self._rows.sequence[taken].tolist() for taken in members.values())
        rows = np.concatenate(list(members.values()))
        prompt_of = np.repeat(np.arange(len(members)), [len(each) for each in members.values()])
        uniform = uniforms(self._to_device(self._rows.keys[rows]), self._to_device(np.zeros(len(rows), dtype=np.int64)))
        each = self._rows.sampling[rows].tolist()
        tokens, logprobs = draw_each(logits.index_select(0, self._to_device(prompt_of)), uniform, each)
        self._tokens = self._tokens.index_copy(0, self._to_device(rows), tokens)
        self._uniforms_used = UNIFORM_BLOCK
        self._note(rows, tokens, logprobs)
        self._catch_up()

    def _free(self) -> int:
        return len(self._rows) - self._rows.alive

    def _resume(self) -> None:
        """Continue parked contexts in free rows, after growing the batch if it may grow."""
        if len(self._rows) < self.concurrent_sequences:
            wanted = self._rows.alive + sum(len(job.sequences) for job in self._waiting)
            if wanted > len(self._rows):
                self._catch_up()
                self._resize(min(rounded_up(wanted), self.concurrent_sequences))
        if not self._free() or not any(job.continues in self.parked for job in self._waiting):
            return
        self._catch_up()
        resumed, contexts, waiting = list[SamplingJob](), list[Context](), list[SamplingJob]()
        for job in self._waiting:
            if job.continues is not None and job.continues in self.parked and len(resumed) < self._free():
                resumed.append(job)
                contexts.append(self.parked.take(job.continues))
            else:
                waiting.append(job)
        if not resumed:
            return
        self._waiting = waiting
        rows = np.concatenate(self._rows.take(resumed))
        self.decoder.resume(contexts, rows.tolist())
        unread = [job.prompt_ids[context.length :] for job, context in zip(resumed, contexts, strict=True)]
        self._unread |= {job.sequences[0]: tokens for job, tokens in zip(resumed, unread, strict=True)}
        # the last of them is followed by the first draw, at position 0
        self._rows.num_sampled[rows] = [1 - len(tokens) for tokens in unread]
        self._feed(rows, [tokens[0] for tokens in unread])
        self._uniforms_used = UNIFORM_BLOCK

    def _feed_unread(self) -> None:
        """Feed rows that still read the next token of their prompt in place of what was drawn."""
        rows = np.flatnonzero((self._rows.num_sampled <= 0) & (self._rows.sequence != FREE))
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

    def _draw_next(self, uniform: Float[Tensor, " S"]) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        """Append the newest token to every row, and draw the next ones; a decoder may do both at once."""
        if self.on_drawn is None:
            return self.decoder.draw_next(self._tokens, uniform, self.sampling)
        living = self._rows.sequence != FREE
        kinds = {*self._rows.sampling[living]}
        if len(kinds) == 1:
            return self.decoder.draw_next(self._tokens, uniform, kinds.pop())
        each = np.where(living, self._rows.sampling, self._rows.sampling[living][0])
        return draw_each(self.decoder.step(self._tokens), uniform, each.tolist())

    def _note(self, rows: np.ndarray | slice, tokens: Int[Tensor, " N"], logprobs: Float[Tensor, " N"]) -> None:
        """Queue a draw of these rows, to be read once the device has computed it."""
        sequences = self._rows.sequence[rows]
        if self._unread:  # what rows draw while they read is dropped
            sequences = np.where(self._rows.num_sampled[rows] < 0, FREE, sequences)
        self._rows.num_sampled[rows] += 1
        nats = None if self.on_drawn is None else on_its_way(logprobs.double())
        self._on_the_way.append(_Draw(rows, sequences, on_its_way(tokens), logprobs, nats, self.policy_version))

    def _catch_up(self, but: int = 0) -> None:
        """Read all draws but the newest `but`."""
        while len(self._on_the_way) > but:
            self._read(self._on_the_way.popleft())

    def _read(self, draw: _Draw) -> None:
        """Log what rows have drawn, and end the completions that it ends."""
        rows, tokens = draw.rows, draw.tokens()
        # a completion that an earlier draw has ended had its row for one step more
        sequences = np.where(self._rows.sequence[rows] == draw.sequences, draw.sequences, FREE)
        if self.on_drawn is None:
            self._log.append(_Drawn(sequences, tokens, draw.logprobs, draw.policy_version))
        if self.routes is not None and isinstance(rows, slice):  # a step, and no admission
            self.routes.read(self._rows.sequence)
        num_sampled, living = self._rows.num_sampled[rows] - len(self._on_the_way), sequences != FREE
        if self._history:
            self._rows.history[self._rows.numbers(rows)[living], num_sampled[living] - 1] = tokens[living]

        ended = (self.stopping.ended(tokens) | (num_sampled >= self._rows.limits[rows])) & living
        for index in self.stopping.candidates(tokens) if self.stopping.watches_text else ():
            if living[index] and not ended[index]:
                ended[index] = self.stopping.completes_string(self._sampled_by(self._rows.numbers(rows)[index]))
        if self.on_drawn is not None and draw.nats is not None:
            ended[living] |= self.on_drawn(sequences[living], tokens[living], draw.nats()[living], ended[living])
        if ended.any():
            self._end(self._rows.numbers(rows)[ended])
        self._num_tokens += int(living.sum())
        ACTIVITY.advance("generate", self._num_ended, self._num_sequences, tokens=self._num_tokens)

    def _end(self, numbers: np.ndarray) -> None:
        """Report the completions of these rows, park those that may be continued, and free the rows."""
        if self.on_ended is not None:
            continued = self.on_ended([(int(self._rows.sequence[row]), self._sampled_by(row)) for row in numbers])
            if self.take_jobs is not None and self._parks and any(continued):
                self._park(numbers[continued])
        for sequence in self._rows.sequence[numbers].tolist() if self._unread else ():
            self._unread.pop(sequence, None)
        self._rows.release(numbers)
        self._num_ended += len(numbers)
        self.decoder.release(numbers.tolist())

    def _park(self, rows: np.ndarray) -> None:
        for sequence, context in zip(self._rows.sequence[rows].tolist(), self.decoder.park(rows.tolist()), strict=True):
            # steps that were begun before the end was read have appended tokens
            length = context.length - len(self._on_the_way)
            self.parked.park(sequence, context.until(length))

    def _sampled_by(self, row: int) -> list[int]:
        tokens: list[int] = self._rows.history[row, : self._rows.num_sampled[row] - len(self._on_the_way)].tolist()
        return tokens

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)
