"""Dataset `programs`: tiny programs to write, generated the same every time.

    Read numbers on one line. Keep the even ones. Add 3 to each. Print the sum.

    v = list(map(int, input().split()))
    v = [x for x in v if x % 2 == 0]
    v = [x + 3 for x in v]
    print(sum(v))

Each comes with tests, inputs and the outputs that belong to them. They distinguish a program from one that omits a
step, from one with constant output and from one that echoes its input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations, islice
from random import Random
from typing import Any, get_args

from paceline.data.program_lines import KINDS, LARGEST_NUMBER, Kind, Reader, Snippet
from paceline.data.rows import GeneratedSplit
from paceline.errors import DataError

NUM_STEPS = (1, 2, 3)
SIZES = (False, False, True)
"""True for each test with a large case."""
ATTEMPTS = 8
"""Attempts to draw tests before a description is given up: `Sort them. Print the sum.` cannot have any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A piece with its number and the words chosen for it."""

    piece: Snippet
    number: int
    text: str

    @property
    def code(self) -> str:
        """Return the line of the program."""
        return self.piece.code.format(k=self.number)

    def run(self, value: Any) -> Any:
        """Compute what the line makes of the value so far."""
        return self.piece.run(value, self.number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """A program's reader, steps and printer."""

    kind: Kind
    reader: Reader
    opening: str
    """Words chosen for the reader."""
    steps: tuple[Sentence, ...]
    printer: Sentence

    @property
    def question(self) -> str:
        """Return the description, a sentence for each part."""
        return " ".join([self.opening, *(step.text for step in self.steps), self.printer.text])

    @property
    def program(self) -> str:
        """Return the code, a line or two for each part."""
        return "\n".join([self.reader.code, *(step.code for step in self.steps), self.printer.code])


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramProblem:
    """A description with a program that follows it, and tests of it."""

    outline: Outline
    question: str
    solution: str
    """Python that reads standard input and prints."""
    inputs: tuple[str, ...]
    """Standard input of each test."""
    outputs: tuple[str, ...]
    """Expected output of each test."""

    @property
    def completion(self) -> str:
        """Return a full answer text: the program between fences."""
        return f"```python\n{self.solution}\n```"


def rows(split: str, size: int) -> list[dict[str, object]]:
    """Return the first `size` problems of a split as dataset rows with the columns question, test_cases and solution.

    The same rows every time; a larger size only adds rows at the end.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    return [
        {
            "question": problem.question,
            "test_cases": {"inputs": list(problem.inputs), "outputs": list(problem.outputs)},
            "solution": problem.solution,
        }
        for problem in islice(problems(split), size)
    ]


def problems(split: str, *, seed: int = 0, num_steps: tuple[int, ...] = NUM_STEPS) -> Iterator[ProgramProblem]:
    """Yield different problems endlessly; `num_steps` are the possible numbers of steps.

    All are drawn equally often; of more steps, more descriptions are given up. Without any step there are only some
    hundred descriptions, so `num_steps=(0,)` would wait for ever.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    if split not in get_args(GeneratedSplit):
        raise DataError(f"dataset 'programs' has the splits 'train' and 'test', got {split!r}; use one of the two")
    return _stream(split, Random(f"{seed}/{split}"), num_steps)


def split_of(question: str) -> GeneratedSplit:
    """Return the split of a question: decided by its text alone, so no question is ever in both."""
    return "test" if blake2b(question.encode(), digest_size=1).digest()[0] % 2 else "train"


def _stream(split: str, rng: Random, num_steps: tuple[int, ...]) -> Iterator[ProgramProblem]:
    seen: set[str] = set()
    while True:
        outline = _outline(rng, rng.choice(num_steps))
        question = outline.question
        if split_of(question) != split or question in seen:
            continue
        seen.add(question)
        problem = _with_tests(outline)
        if problem is not None:
            yield problem


def _outline(rng: Random, num_steps: int) -> Outline:
    kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
    reader = rng.choice(kind.readers)
    # No step and no number comes twice: small models find the next sentence by what the last line says.
    numbers = list(range(2, LARGEST_NUMBER + 1))
    steps = []
    for piece in rng.sample(kind.steps, num_steps):
        number = rng.choice([number for number in numbers if number >= piece.smallest])
        numbers.remove(number)
        steps.append(_sentence(piece, number, rng))
    return Outline(
        kind=kind,
        reader=reader,
        opening=rng.choice(reader.sentences),
        steps=tuple(steps),
        printer=_sentence(rng.choice(kind.printers), 0, rng),
    )


def _sentence(piece: Snippet, number: int, rng: Random) -> Sentence:
    return Sentence(piece=piece, number=number, text=rng.choice(piece.sentences).format(k=number))


def _with_tests(outline: Outline) -> ProgramProblem | None:
    """Return the problem with tests that depend on its text alone; None if no tests say enough."""
    rng = Random(outline.question)
    for _ in range(ATTEMPTS):
        drawn = [outline.reader.draw(rng, large) for large in SIZES]
        outputs = [_printed(outline, value, outline.steps) for value in drawn]
        inputs = [outline.reader.stdin(value) for value in drawn]
        if None not in outputs and _say_enough(outline, drawn, inputs, outputs):
            return ProgramProblem(
                outline=outline,
                question=outline.question,
                solution=outline.program,
                inputs=tuple(inputs),
                outputs=tuple(str(output) for output in outputs),
            )
    return None


def _say_enough(outline: Outline, drawn: list[Any], inputs: list[str], outputs: list[str | None]) -> bool:
    """Return True if the tests fail constant and echoing programs, and the first one fails programs that omit steps."""
    echoes = [
        printed is not None and given.split() == printed.split() for given, printed in zip(inputs, outputs, strict=True)
    ]
    if len(set(outputs)) < len(outputs) or any(echoes):
        return False
    steps = outline.steps
    shorter = [kept for count in range(len(steps)) for kept in combinations(steps, count)]
    return all(_printed(outline, drawn[0], kept) != outputs[0] for kept in shorter)


def _printed(outline: Outline, drawn: Any, steps: Sequence[Sentence]) -> str | None:
    """Compute what a program of these steps prints; None if nothing is left to print."""
    value = outline.reader.run(drawn)
    for step in steps:
        value = step.run(value)
        if value in ([], ""):
            return None
    return str(outline.printer.run(value))
