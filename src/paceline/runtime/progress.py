"""Progress of the current phase, reported by engines and trainers to the display."""

from typing import Literal, Protocol

from typing_extensions import override

Phase = Literal["generate", "reward", "update"]
"""Parts of a step; the first two are parts of an evaluation too."""


class Progress(Protocol):
    """Receiver of progress reports from any thread; it returns nothing, so no result can depend on it.

    A call must cost next to nothing: engines make one for every position that they decode.
    """

    def begin(self, what: str) -> None:
        """Begin another part of the run, such as `step 12`, which ends the phases before it."""

    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        """Report that `done` of `of` parts of a phase are done: ended completions, called reward functions or
        micro-batches. `tokens` counts all tokens generated in the phase so far, also in unfinished completions."""


class NullProgress(Progress):
    """Receiver that ignores all reports."""

    @override
    def begin(self, what: str) -> None:
        pass

    @override
    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        pass


NULL_PROGRESS = NullProgress()
