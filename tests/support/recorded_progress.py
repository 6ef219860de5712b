"""A `Progress` that keeps what it is told."""

from typing import Self

from paceline.runtime.activity import ACTIVITY, Phase


class RecordedProgress:
    """What work said of itself within the context, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int, int, int]] = []
        self.begun: list[str] = []

    def __enter__(self) -> Self:
        ACTIVITY.displays.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        ACTIVITY.displays.remove(self)

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        self.said.append((name, done, of, tokens))
