"""A standard error that is a terminal, or is none."""

import io


class Screen(io.StringIO):
    """Keeps what is written to it."""

    def __init__(self, *, is_terminal: bool) -> None:
        """`is_terminal`: what it says of itself."""
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal
