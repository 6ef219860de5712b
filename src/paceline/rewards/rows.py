"""The rows that reward functions cannot grade, found when the data is read."""

from collections.abc import Mapping

from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.types import RowCheck


def row_check(functions: Mapping[str, RewardFunction]) -> RowCheck | None:
    """What each of these functions has to say against a row, together; None where none looks at rows."""
    checks = [one.check_row for one in functions.values() if isinstance(one, BuiltIn) and one.check_row is not None]
    if not checks:
        return None

    def check(columns: Mapping[str, object], row_id: str) -> None:
        for one in checks:
            one(columns, row_id)

    return check
