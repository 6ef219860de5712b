"""Dataset `programs`: tiny programs to write, generated the same every time.

    Read numbers on one line. Keep the even ones. Add 3 to each. Print the sum.

    v = list(map(int, input().split()))
    v = [x for x in v if x % 2 == 0]
    v = [x + 3 for x in v]
    print(sum(v))

Each comes with tests, inputs and the outputs that belong to them. They distinguish a program from one that omits a
step, from one with constant output and from one that echoes its input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from random import Random
from typing import Any

from paceline.data.program_lines import KINDS, LARGEST_NUMBER, Kind, Reader, Snippet
from paceline.data.rows import drawn_once

NUM_STEPS = (1, 2, 3)
ATTEMPTS = 8  # Attempts to draw tests before a description is given up: `Sort them. Print the sum.` cannot have any.


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
class ProgramProblem:
    """A program's reader, steps and printer, described in words, and tests of it."""

    kind: Kind
    reader: Reader
    opening: str
    """Words chosen for the reader."""
    steps: tuple[Sentence, ...]
    printer: Sentence
    inputs: tuple[str, ...] = ()
    """Standard input of each test."""
    outputs: tuple[str, ...] = ()
    """Expected output of each test."""

    @property
    def question(self) -> str:
        """Return the description, a sentence for each part."""
        return " ".join([self.opening, *(step.text for step in self.steps), self.printer.text])

    @property
    def solution(self) -> str:
        """Return Python that reads standard input and prints, a line or two for each part."""
        return "\n".join([self.reader.code, *(step.code for step in self.steps), self.printer.code])

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
    rng = Random(f"{seed}/{split}")
    drawn = drawn_once("programs", split, lambda: _drawn(rng, rng.choice(num_steps)))
    return (tested for problem in drawn if (tested := _with_tests(problem)) is not None)


def _drawn(rng: Random, num_steps: int) -> ProgramProblem:
    kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
    reader = rng.choice(kind.readers)

    def sentence(piece: Snippet, number: int) -> Sentence:
        return Sentence(piece=piece, number=number, text=rng.choice(piece.sentences).format(k=number))

    # No step and no number comes twice: small models find the next sentence by what the last line says.
    numbers = list(range(2, LARGEST_NUMBER + 1))
    steps = []
    for piece in rng.sample(kind.steps, num_steps):
        number = rng.choice([number for number in numbers if number >= piece.smallest])
        numbers.remove(number)
        steps.append(sentence(piece, number))
    opening = rng.choice(reader.sentences)
    printer = sentence(rng.choice(kind.printers), 0)
    return ProgramProblem(kind=kind, reader=reader, opening=opening, steps=tuple(steps), printer=printer)


def _with_tests(problem: ProgramProblem) -> ProgramProblem | None:
    """Return the problem with tests that depend on its text alone; None if no tests say enough."""
    rng, steps = Random(problem.question), problem.steps
    for _ in range(ATTEMPTS):
        drawn = [problem.reader.draw(rng, large) for large in (False, False, True)]
        inputs = tuple(problem.reader.stdin(value) for value in drawn)
        outputs = [_printed(problem, value, steps) for value in drawn]
        expected = tuple(output for output in outputs if output is not None)
        echoes = any(given.split() == output.split() for given, output in zip(inputs, expected, strict=False))
        if len(set(expected)) < len(inputs) or echoes:  # nothing is left to print, or a constant or an echo would pass
            continue
        # The first test has to fail every program that omits steps.
        shorter = (kept for count in range(len(steps)) for kept in combinations(steps, count))
        if all(_printed(problem, drawn[0], kept) != expected[0] for kept in shorter):
            return replace(problem, inputs=inputs, outputs=expected)
    return None


def _printed(problem: ProgramProblem, drawn: Any, steps: Sequence[Sentence]) -> str | None:
    """Compute what a program of these steps prints; None if nothing is left to print."""
    value = problem.reader.run(drawn)
    for step in steps:
        value = step.run(value)
        if value in ([], ""):
            return None
    return str(problem.printer.run(value))
