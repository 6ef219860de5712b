"""Sampling by several processes, each for a share of the work: nobody who asks for completions can tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from typing_extensions import override

from paceline.engines import Engine, OnFinished, Request, Sampling
from paceline.training.rollouts.rounds import Drawn, Round, RoundSampler, merge_rounds
from paceline.types import Completion


class SamplingWorkers(Protocol):
    """Processes that sample: each has the methods `sample` of `RoundSampler` and `generate` of `Engine`."""

    @property
    def count(self) -> int:
        """How many there are."""

    def share_out(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One call per share, each by one of them; the answers in the order of the shares.

        Raises:
            PacelineError: a call raised it, or too many of them were lost.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedRoundSampler(RoundSampler):
    """A `RoundSampler`: every worker has a share of the tasks."""

    workers: SamplingWorkers

    @override
    def sample(self, drawn: Drawn) -> Round:
        shares = even_shares(len(drawn), self.workers.count)
        return merge_rounds(self.workers.share_out("sample", [(drawn[share],) for share in shares]), side_by_side=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedEngine(Engine):
    """An `Engine`: every worker completes a share of the prompts. It learns of all completions at once."""

    workers: SamplingWorkers

    @override
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_finished: OnFinished | None = None
    ) -> list[tuple[Completion, ...]]:
        shares = even_shares(len(requests), self.workers.count)
        answers = self.workers.share_out("generate", [(requests[share], sampling) for share in shares])
        return [group for answer in answers for group in answer]


def even_shares(count: int, workers: int) -> list[slice]:
    """`count` things for so many workers: neighbours, sizes that differ by at most one, none empty.

    >>> even_shares(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    parts = min(count, workers)
    starts = [part * count // parts for part in range(parts)] + [count]
    return [slice(first, last) for first, last in pairwise(starts)]
