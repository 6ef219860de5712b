"""The rows that reward functions cannot grade, found when the data is read."""

from collections.abc import Callable, Mapping

from paceline.rewards.function import BuiltIn, RewardFunction

RowCheck = Callable[[Mapping[str, object], str], None]
"""Called with a row's columns and its name; raises DataError for a row that cannot be used."""


def row_check(functions: Mapping[str, RewardFunction]) -> RowCheck | None:
    """What each of these functions has to say against a row, together; None where none looks at rows."""
    checks = [one.check_row for one in functions.values() if isinstance(one, BuiltIn) and one.check_row is not None]
    if not checks:
        return None

    def check(columns: Mapping[str, object], row_id: str) -> None:
        for one in checks:
            one(columns, row_id)

    return check
