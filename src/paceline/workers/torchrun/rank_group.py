"""All ranks as one: the first asks, those that are asked do their part at the same time, itself often among them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from paceline.errors import ProcessLost
from paceline.models.parallel.ranks import RankLost
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.timeline import Recorder
from paceline.workers.torchrun.roles import Roles

BUILD = "build"
"""The first call, which makes what all later ones are methods of."""
LEAVE = "leave"
"""The last one: no more follow, the run has come to its end."""
BLAME_SECONDS = 5.0
"""That a lost touch waits for the name of the rank that is the cause."""

RankCall = tuple[str, tuple[Any, ...]]
"""A method and its arguments."""


class Channels(Protocol):
    """Ways to the other ranks, from the first one; from them, the way to it."""

    def send(self, ranks: Collection[int], message: Any) -> None:
        """The same message to several."""

    def receive(self, rank: int) -> Any:
        """The next message from a rank.

        Raises:
            RankLost: none will come.
        """


class Watch(Protocol):
    """Knows who is lost."""

    def verdict(self, seconds: float) -> BaseException | None:
        """Why the run is over, once it is known; None: it is not within so many seconds."""


class RankGroup:
    """`SamplingWorkers`, and more: ranks do what they are asked, the first one here."""

    def __init__(
        self,
        make_own: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        channels: Channels,
        watch: Watch,
        roles: Roles,
        recorder: Recorder,
    ) -> None:
        """Have every rank make its part with these arguments; what each of them does goes to `recorder`."""
        self._channels, self._watch, self._make_own, self.recorder = channels, watch, make_own, recorder
        self.roles = roles
        self._own: Any = None
        self._ask_same(roles.all, BUILD, arguments)

    @property
    def count(self) -> int:
        """See `SamplingWorkers`."""
        return len(self.roles.sampling)

    def call(self, method: str, *arguments: object) -> list[Any]:
        """What every rank gives, by rank.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: this rank's call raised it.
        """
        return self._ask_same(self.roles.all, method, arguments)

    def call_training(self, method: str, *arguments: object) -> list[Any]:
        """What every rank that trains gives, by rank.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: this rank's call raised it.
        """
        return self._ask_same(self.roles.training, method, arguments)

    def ask_own(self, method: str, *arguments: object) -> Any:
        """What this rank gives, and nobody else is asked.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: the call raised it.
        """
        try:
            return getattr(self._own, method)(*arguments)
        except RankLost as lost:
            raise (self._watch.verdict(BLAME_SECONDS) or ProcessLost(str(lost))) from None

    def share_out(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `SamplingWorkers`: a share for each rank that samples, of fewer the first of them have one."""
        calls = {rank: (method, share) for rank, share in zip(self.roles.sampling, shares, strict=False)}
        return self._together(calls, self._send_each)

    def _ask_same(self, ranks: range, method: str, arguments: tuple[Any, ...]) -> list[Any]:
        return self._together(dict.fromkeys(ranks, (method, arguments)), self._send_all)

    def _together(self, calls: Mapping[int, RankCall], send: Callable[[Mapping[int, RankCall]], None]) -> list[Any]:
        started, answers = self.recorder.clock(), list[Any]()
        try:
            send({rank: call for rank, call in calls.items() if rank != 0})
            for rank, (method, arguments) in calls.items():
                HEARTBEAT.beat(
                    "rank 0", f"waits for what rank {rank} gives of `{method}`" if rank else f"does `{method}`"
                )
                answers.append(self._channels.receive(rank) if rank else self._do(method, arguments))
                self.recorder.end(f"rank {rank}", method, started)
        except RankLost as lost:
            raise (self._watch.verdict(BLAME_SECONDS) or ProcessLost(str(lost))) from None
        return answers

    def _do(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if method == BUILD:
            self._own = self._make_own(*arguments)
            return None
        return getattr(self._own, method)(*arguments)

    def _send_each(self, calls: Mapping[int, RankCall]) -> None:
        for rank, call in calls.items():
            self._channels.send([rank], call)

    def _send_all(self, calls: Mapping[int, RankCall]) -> None:
        """What all are asked alike, turned into bytes once."""
        if calls:
            self._channels.send(list(calls), next(iter(calls.values())))


def answer_calls(make: Callable[..., Any], channels: Channels) -> None:
    """Of a rank that is not the first: do what it asks, until it asks for nothing more.

    Raises:
        RankLost: the first rank, or another one, cannot be reached any more.
        PacelineError: a call raised it; there is no answer then.
    """
    part: Any = None
    while True:
        method, arguments = channels.receive(0)
        if method == LEAVE:
            return
        if method == BUILD:
            part, answer = make(*arguments), None
        else:
            answer = getattr(part, method)(*arguments)
        channels.send([0], answer)
