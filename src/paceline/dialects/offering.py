"""Which options this version has: a dialect speaks of what is there, and says so where it is not."""

from paceline.config import options


def offers(name: str, value: str | None = None) -> bool:
    """Whether there is an option of this name, and this word among those that it takes.

    >>> offers("bound", "clip"), offers("bound", "soft"), offers("telepathy")
    (True, False, False)
    """
    return any(option.name == name and (value is None or value in option.choices) for option in options())
