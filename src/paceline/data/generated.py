"""Datasets that are generated, the same every time: word problems, games, and seeds.

`arithmetic` has templated problems with a known answer:

    Tom has 12 coins. Ann hands 5 to Tom. Tom loses 3. How many coins does Tom have?
    12+5=17;17-3=14

Every value, from the first to the answer, lies in 0..99, and no number comes twice in a question. The verb decides the
operation, so a problem has to be read, not only its numbers. `arithmetic(operations=1, largest=10)` has problems of one
step with values up to 10.

`guess` has games of the environment of that name:

    Guess a number from 12 to 37.

A range has 16 to 30 numbers within 1..99, so five guesses are enough for who halves what is left. All games of a range
belong to one split: a range of the test split is never played in training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random

from paceline.data.rows import check_split, drawn_once, split_of
from paceline.errors import DataError

LARGEST_VALUE = 99
LARGEST_FIRST = 60
LARGEST_OPERAND = 20
OPERATIONS = (2, 3, 4, 5)
PARAMETERS = {"operations": range(1, 6), "largest": range(10, LARGEST_VALUE + 1)}
"""Parameters of `arithmetic(...)` and their values. Below 10 there are too few different sums."""

NAMES = ("Tom", "Ann", "Ben", "Eva", "Max", "Mia", "Leo", "Zoe", "Sam", "Ida")
OBJECTS = ("coins", "books", "cards", "shells", "pens", "apples", "stamps", "marbles")
OPENINGS = ("{hero} has {n} {objects}.", "{hero} starts with {n} {objects}.", "{hero} owns {n} {objects}.")
QUESTIONS = ("How many {objects} does {hero} have?", "How many {objects} are left?", "How many does {hero} have now?")
SENTENCES = {
    "+": ("{hero} finds {n}.", "{hero} buys {n}.", "{friend} hands {n} to {hero}.", "{hero} gets {n} from {friend}."),
    "-": ("{hero} loses {n}.", "{hero} sells {n}.", "{hero} gives {n} to {friend}.", "{friend} takes {n} from {hero}."),
    "*": ("{friend} doubles what {hero} has.", "Now {hero} has twice as many."),
    "/": ("{hero} keeps only half.", "Half of them get lost."),
}
OPERATION_WEIGHTS = {"+": 4, "-": 4, "*": 1, "/": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArithmeticProblem:
    """A question with its answer and the steps that lead there."""

    question: str
    answer: str
    """Whole number, 0..99."""
    solution: str
    """Operations as `left operator right=result`, joined by `;`: `12+5=17;17-3=14`."""

    @property
    def completion(self) -> str:
        """Return a full answer text: reasoning in think tags, answer in answer tags."""
        return f"<think>{self.solution}</think><answer>{self.answer}</answer>"


def arithmetic_rows(
    split: str, size: int, *, operations: int | None = None, largest: int = LARGEST_VALUE
) -> list[dict[str, str]]:
    """Return the first `size` problems of a split as dataset rows with the columns question, answer and solution.

    The same rows every time; a larger size only adds rows at the end. `operations` is the number of steps, None: 2 to
    5; `largest` bounds all values.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    steps = OPERATIONS if operations is None else (operations,)
    return [asdict(problem) for problem in islice(problems(split, operations=steps, largest=largest), size)]


def problems(
    split: str, *, seed: int = 0, operations: tuple[int, ...] = OPERATIONS, largest: int = LARGEST_VALUE
) -> Iterator[ArithmeticProblem]:
    """Yield different problems endlessly; `operations` are the possible numbers of steps, all equally frequent.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    rng = Random(f"{seed}/{split}")
    return drawn_once("arithmetic", split, lambda: _problem(rng, rng.choice(operations), largest))


def _problem(rng: Random, num_operations: int, largest: int) -> ArithmeticProblem:
    hero, friend = rng.sample(NAMES, 2)
    words = {"hero": hero, "friend": friend, "objects": rng.choice(OBJECTS)}
    value = rng.randint(1, min(LARGEST_FIRST, largest))
    used = {value}
    sentences = [rng.choice(OPENINGS).format(n=value, **words)]
    steps = []
    for _ in range(num_operations):
        # operands that keep the value a whole number in 0..largest
        fitting = {
            "+": range(1, min(LARGEST_OPERAND, largest - value) + 1),
            "-": range(1, min(LARGEST_OPERAND, value) + 1),
            "*": (2,) if 0 < value <= largest // 2 else (),
            "/": (2,) if value > 0 and value % 2 == 0 else (),
        }
        # Small models find the next sentence by the operand of the last step: twice the same number would be ambiguous.
        fresh = {operator: [n for n in operands if n not in used] for operator, operands in fitting.items()}
        allowed = [operator for operator, operands in fresh.items() if operands]
        if not allowed:  # small values may be used up
            return _problem(rng, num_operations, largest)
        operator = rng.choices(allowed, [OPERATION_WEIGHTS[operator] for operator in allowed])[0]
        operand = rng.choice(fresh[operator])
        results = {"+": value + operand, "-": value - operand, "*": value * operand, "/": value // operand}
        result = results[operator]
        sentences.append(rng.choice(SENTENCES[operator]).format(n=operand, **words))
        steps.append(f"{value}{operator}{operand}={result}")
        used.add(operand)
        value = result
    sentences.append(rng.choice(QUESTIONS).format(**words))
    return ArithmeticProblem(question=" ".join(sentences), answer=str(value), solution=";".join(steps))


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


def guess_rows(split: str, size: int) -> list[dict[str, object]]:
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


# reasoning-gym draws item i of a dataset from `seed + i`, so neighbouring seeds share all but one item: the splits lie
# a thousand million items apart.
FIRST_SEEDS = {"train": 0, "test": 1_000_000_000}


def seed_rows(split: str, size: int) -> list[dict[str, object]]:
    """Return rows for an environment that makes its games from seeds: a fixed question and a different seed each.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    check_split("seeds", split)
    first = FIRST_SEEDS[split]
    return [{"question": "Play this game.", "seed": seed} for seed in range(first, first + size)]
