"""All ranks as one group: the first rank calls methods on the others and on itself at the same time."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override

from paceline.errors import ProcessLost
from paceline.models.parallel.ranks import RankLost
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.timeline import Recorder
from paceline.training.rollouts.sharing import SamplingWorkers
from paceline.workers.torchrun.roles import Roles

BUILD = "build"
"""First call, which makes the object that all later calls are methods of."""
LEAVE = "leave"
"""Last call: the run is over."""
BLAME_SECONDS = 5.0
"""Seconds to wait for the name of the lost rank when a channel breaks."""

RankCall = tuple[str, tuple[Any, ...]]
"""A method's name and arguments."""


class Channels(Protocol):
    """Channels from the first rank to the others, or from another rank to it."""

    def send(self, ranks: Collection[int], message: Any) -> None:
        """Send the same message to several ranks."""

    def receive(self, rank: int) -> Any:
        """Wait for a rank's next message.

        Raises:
            RankLost: none will come.
        """


class Watch(Protocol):
    """Knows which rank was lost."""

    def verdict(self, seconds: float) -> BaseException | None:
        """Reason why the run is over, waiting up to `seconds` for it; None if there is none."""


class RankGroup(SamplingWorkers):
    """The ranks of a launch: `SamplingWorkers`, and calls on all ranks or on those that train."""

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
        """Have every rank build its object with these arguments; their spans go to `recorder`."""
        self._channels, self._watch, self._make_own, self.recorder = channels, watch, make_own, recorder
        self.roles = roles
        self._own: Any = None
        self._ask_same(roles.all, BUILD, arguments)

    @property
    @override
    def count(self) -> int:
        return len(self.roles.sampling)

    def call(self, method: str, *arguments: object) -> list[Any]:
        """Call a method on every rank; answers by rank.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: this rank's call raised it.
        """
        return self._ask_same(self.roles.all, method, arguments)

    def call_training(self, method: str, *arguments: object) -> list[Any]:
        """Call a method on every training rank; answers by rank.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: this rank's call raised it.
        """
        return self._ask_same(self.roles.training, method, arguments)

    def ask_own(self, method: str, *arguments: object) -> Any:
        """Call a method on this rank alone.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: the call raised it.
        """
        try:
            return getattr(self._own, method)(*arguments)
        except RankLost as lost:
            raise (self._watch.verdict(BLAME_SECONDS) or ProcessLost(str(lost))) from None

    @override
    def share_out(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give each sampling rank one share; with fewer shares the last ranks get none."""
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
        """Send one call to all, pickled once."""
        if calls:
            self._channels.send(list(calls), next(iter(calls.values())))


def answer_calls(make: Callable[..., Any], channels: Channels) -> None:
    """Answer the first rank's calls on another rank until the last one.

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
