"""Dataset `guess`: games of the environment `guess`, generated the same every time.

    Guess a number from 12 to 37.

A range has 16 to 30 numbers within 1..99, so five guesses are enough for who halves what is left. All games of a range
belong to one split: a range of the test split is never played in training.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

from paceline.data.rows import check_split, split_of
from paceline.errors import DataError

LARGEST_NUMBER = 99
SIZES = range(16, 31)
"""Numbers of a range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuessingGame:
    """A range and the number in it that is to be guessed."""

    question: str
    """The rules that the player reads."""
    low: int
    high: int
    answer: str
    """The number, low..high."""


def rows(split: str, size: int) -> list[dict[str, object]]:
    """Return the first `size` games of a split as dataset rows with the columns question, low, high and answer.

    The same rows every time; a larger size only adds rows at the end.

    Raises:
        DataError: a split other than `train` and `test`, or more games than it has.
    """
    all_games = games(split)
    if size > len(all_games):
        raise DataError(f"dataset 'guess' has {len(all_games)} games in the split {split!r}, got {size}; take fewer")
    return [asdict(game) for game in all_games[:size]]


def games(split: str) -> Sequence[GuessingGame]:
    """Return all games of a split in their order.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    check_split("guess", split)
    ranges = [(low, low + size - 1) for size in SIZES for low in range(1, LARGEST_NUMBER - size + 2)]
    in_split = [
        GuessingGame(question=question, low=low, high=high, answer=str(number))
        for low, high in ranges
        if split_of(question := f"Guess a number from {low} to {high}.") == split
        for number in range(low, high + 1)
    ]
    Random(f"guess/{split}").shuffle(in_split)
    return in_split
