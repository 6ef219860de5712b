"""How far the work at hand has come: a border between whatever works and whoever shows it."""

from typing import Literal, Protocol

Phase = Literal["generate", "reward", "update"]
"""Parts of a step; the first two are parts of an evaluation too."""


class Progress(Protocol):
    """Is told how far work has come, from any thread, and gives nothing back: no result can depend on it.

    A call must cost next to nothing: engines make one for every position that they decode.
    """

    def begin(self, what: str) -> None:
        """The run turns to something else, such as `step 12`. Phases that are over were of what was before."""

    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        """So many of the phase's parts are done: completions that have ended, reward functions that were called, or
        micro-batches. `tokens` were generated in it so far, in completions that have ended or not."""


class NullProgress:
    """Nobody looks."""

    def begin(self, what: str) -> None:
        """See `Progress`."""

    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        """See `Progress`."""


NULL_PROGRESS = NullProgress()
