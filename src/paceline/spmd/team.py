"""All ranks as one: the first asks, every one does its part at the same time, itself included."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from paceline.errors import ProcessLost
from paceline.parallel import RankLost
from paceline.timeline import Recorder

BUILD = "build"
"""The first call, which makes what all later ones are methods of."""
LEAVE = "leave"
"""The last one: no more follow, the run has come to its end."""
BLAME_SECONDS = 5.0
"""That a lost touch waits for the name of the rank that is the cause."""

Call = tuple[str, tuple[Any, ...]]
"""A method and its arguments."""


class Lines(Protocol):
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


class Team:
    """`SamplingWorkers`, and more: every rank does what it is asked, the first one here."""

    def __init__(
        self,
        make_own: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        lines: Lines,
        watch: Watch,
        size: int,
        recorder: Recorder,
    ) -> None:
        """Have every rank make its part with these arguments; what each of them does goes to `recorder`."""
        self._lines, self._watch, self._size, self.recorder = lines, watch, size, recorder
        self._own: Any = None

        def build(*given: Any) -> None:
            self._own = make_own(*given)

        self._together({rank: (BUILD, arguments) for rank in range(size)}, build)

    @property
    def count(self) -> int:
        """See `SamplingWorkers`: all ranks."""
        return self._size

    def call(self, method: str, *arguments: object) -> list[Any]:
        """What every rank gives, by rank.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: this rank's call raised it.
        """
        own = getattr(self._own, method)
        return self._together({rank: (method, arguments) for rank in range(self._size)}, own)

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
        """See `SamplingWorkers`: a share for each rank, of fewer the first ranks have one."""
        own = getattr(self._own, method)
        return self._together({rank: (method, share) for rank, share in enumerate(shares)}, own)

    def _together(self, calls: dict[int, Call], own: Callable[..., Any]) -> list[Any]:
        if not calls:
            return []
        started = self.recorder.clock()
        try:
            self._send(calls)
            answers = [own(*calls[0][1])]
            self._note(0, calls[0][0], started)
            for rank in list(calls)[1:]:
                answers.append(self._lines.receive(rank))
                self._note(rank, calls[rank][0], started)
        except RankLost as lost:
            raise (self._watch.verdict(BLAME_SECONDS) or ProcessLost(str(lost))) from None
        return answers

    def _send(self, calls: dict[int, Call]) -> None:
        """To all others at once where all are asked the same."""
        others = list(calls)[1:]
        if all(calls[rank] is calls[0] or calls[rank][1] is calls[0][1] for rank in others):
            self._lines.send(others, calls[0])
            return
        for rank in others:
            self._lines.send([rank], calls[rank])

    def _note(self, rank: int, method: str, started: float) -> None:
        self.recorder.end(f"rank {rank}", method, started)


def answer_calls(make: Callable[..., Any], lines: Lines) -> None:
    """Of a rank that is not the first: do what it asks, until it asks for nothing more.

    Raises:
        RankLost: the first rank, or another one, cannot be reached any more.
        PacelineError: a call raised it; there is no answer then.
    """
    part: Any = None
    while True:
        method, arguments = lines.receive(0)
        if method == LEAVE:
            return
        if method == BUILD:
            part, answer = make(*arguments), None
        else:
            answer = getattr(part, method)(*arguments)
        lines.send([0], answer)
