"""A `Progress` that keeps what it is told."""

from paceline.runtime.progress import Phase


class RecordedProgress:
    """What work said of itself, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int, int, int]] = []
        self.begun: list[str] = []

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        self.said.append((name, done, of, tokens))
