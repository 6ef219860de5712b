"""Dataset `programs`: tiny programs to write, generated the same every time.

    Read numbers on one line. Keep the even ones. Add 3 to each. Print the sum.

    v = list(map(int, input().split()))
    v = [x for x in v if x % 2 == 0]
    v = [x + 3 for x in v]
    print(sum(v))

Each comes with tests, inputs and the outputs that belong to them. They distinguish a program from one that omits a
step, from one with constant output and from one that echoes its input."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from random import Random
from typing import Any

from paceline.data.rows import drawn_once

LARGEST_NUMBER = 9  # Largest value of `{k}` in a sentence and in its code


@dataclass(frozen=True, slots=True)
class Snippet:
    """One sentence and its code; both may hold `{k}`, a whole number. A test compares code and `run`."""

    sentences: tuple[str, ...]
    """Different words for the same operation."""
    code: str
    run: Callable[[Any, int], Any]
    """Function from the value so far and k to the next value, or, of a printer, to the printed text."""
    smallest: int = 2
    """Smallest value of k."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The first sentence and its code: from standard input to the value that the steps work on."""

    sentences: tuple[str, ...]
    code: str
    stdin: Callable[[Any], str]
    """Function from the drawn value to the text of standard input."""
    draw: Callable[[Random, bool], Any]
    """Function that draws the content of standard input; True asks for a large case."""
    run: Callable[[Any], Any] = lambda drawn: drawn
    """Function from the drawn value to the value that the code holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Programs on one kind of value: its readers, steps and printers."""

    weight: int
    """Relative frequency of the kind."""
    readers: tuple[Reader, ...]
    steps: tuple[Snippet, ...]
    printers: tuple[Snippet, ...]


def _numbers(rng: Random, large: bool) -> list[int]:
    if large:
        return [rng.randint(-200, 200) for _ in range(rng.randint(24, 40))]
    return [rng.randint(-9, 20) for _ in range(rng.randint(5, 9))]


def _number(rng: Random, large: bool) -> int:
    return rng.randint(10**6, 10**9) if large else rng.randint(10, 99)


def _pair(rng: Random, large: bool) -> tuple[int, int]:
    return _number(rng, large), _number(rng, large)


def _word(rng: Random, large: bool) -> str:
    length = rng.randint(30, 60) if large else rng.randint(7, 10)
    return "".join(rng.choice("aabdeeilmnoorstu") for _ in range(length))


def _pair_reader(sentences: tuple[str, ...], code: str, run: Callable[[tuple[int, int]], int]) -> Reader:
    code = f"a, b = map(int, input().split())\nx = {code}"
    return Reader(sentences, code, stdin=lambda pair: f"{pair[0]} {pair[1]}\n", draw=_pair, run=run)


NUMBERS = Kind(
    weight=5,
    readers=(
        Reader(
            ("Read numbers on one line.", "Read a line of numbers."),
            "v = list(map(int, input().split()))",
            stdin=lambda numbers: " ".join(map(str, numbers)) + "\n",
            draw=_numbers,
        ),
        Reader(
            ("Read n, then n numbers on lines of their own.", "Read a count and that many lines of numbers."),
            "v = [int(input()) for _ in range(int(input()))]",
            stdin=lambda numbers: "".join(f"{number}\n" for number in [len(numbers), *numbers]),
            draw=_numbers,
        ),
    ),
    steps=(
        Snippet(
            ("Add {k} to each.", "Increase each by {k}."), "v = [x + {k} for x in v]", lambda v, k: [x + k for x in v]
        ),
        Snippet(
            ("Take {k} from each.", "Lower each by {k}."), "v = [x - {k} for x in v]", lambda v, k: [x - k for x in v]
        ),
        Snippet(
            ("Multiply each by {k}.", "Make each {k} times as large."),
            "v = [x * {k} for x in v]",
            lambda v, k: [x * k for x in v],
        ),
        Snippet(
            ("Square each.", "Multiply each by itself."), "v = [x * x for x in v]", lambda v, _: [x * x for x in v]
        ),
        Snippet(
            ("Keep the even ones.", "Leave out the odd ones."),
            "v = [x for x in v if x % 2 == 0]",
            lambda v, _: [x for x in v if x % 2 == 0],
        ),
        Snippet(
            ("Keep those above {k}.", "Keep the ones larger than {k}."),
            "v = [x for x in v if x > {k}]",
            lambda v, k: [x for x in v if x > k],
        ),
        Snippet(
            ("Keep those below {k}.", "Keep the ones smaller than {k}."),
            "v = [x for x in v if x < {k}]",
            lambda v, k: [x for x in v if x < k],
        ),
        Snippet(("Sort them.", "Put them in order of size."), "v = sorted(v)", lambda v, _: sorted(v)),
        Snippet(("Reverse their order.", "Turn them around."), "v = v[::-1]", lambda v, _: v[::-1]),
        Snippet(("Drop the first {k}.", "Leave out the first {k}."), "v = v[{k}:]", lambda v, k: v[k:]),
        Snippet(("Keep the first {k}.", "Leave out all but the first {k}."), "v = v[:{k}]", lambda v, k: v[:k]),
    ),
    printers=(
        Snippet(("Print them.", "Print what is left."), "print(*v)", lambda v, _: _spaced(v)),
        Snippet(
            ("Print each on a line.", "Print one per line."),
            "for x in v: print(x)",
            lambda v, _: "".join(f"{x}\n" for x in v),
        ),
        Snippet(("Print the sum.", "Print the total."), "print(sum(v))", lambda v, _: f"{sum(v)}\n"),
        Snippet(("Print the largest.", "Print the maximum."), "print(max(v))", lambda v, _: f"{max(v)}\n"),
        Snippet(("Print the smallest.", "Print the minimum."), "print(min(v))", lambda v, _: f"{min(v)}\n"),
        Snippet(("Print how many there are.", "Print their count."), "print(len(v))", lambda v, _: f"{len(v)}\n"),
    ),
)

NUMBER = Kind(
    weight=3,
    readers=(
        Reader(
            ("Read a number.", "Read one number."), "x = int(input())", stdin=lambda number: f"{number}\n", draw=_number
        ),
        _pair_reader(("Read two numbers. Take their sum.", "Read two numbers. Add them."), "a + b", sum),
        _pair_reader(
            ("Read two numbers. Take the second from the first.", "Read two numbers. Take the first minus the second."),
            "a - b",
            lambda pair: pair[0] - pair[1],
        ),
        _pair_reader(
            ("Read two numbers. Take their product.", "Read two numbers. Multiply them."),
            "a * b",
            lambda pair: pair[0] * pair[1],
        ),
        _pair_reader(("Read two numbers. Take the larger.", "Read two numbers. Keep the larger."), "max(a, b)", max),
        _pair_reader(("Read two numbers. Take the smaller.", "Read two numbers. Keep the smaller."), "min(a, b)", min),
    ),
    steps=(
        Snippet(("Add {k}.", "Increase it by {k}."), "x = x + {k}", lambda x, k: x + k),
        Snippet(("Take away {k}.", "Lower it by {k}."), "x = x - {k}", lambda x, k: x - k),
        Snippet(("Multiply by {k}.", "Make it {k} times as large."), "x = x * {k}", lambda x, k: x * k),
        Snippet(("Square it.", "Multiply it by itself."), "x = x * x", lambda x, _: x * x),
        Snippet(
            ("Take the remainder by {k}.", "Keep what is left when divided by {k}."),
            "x = x % {k}",
            lambda x, k: x % k,
            smallest=5,
        ),
        Snippet(
            ("Divide by {k}, rounding down.", "Divide it by {k} without remainder."),
            "x = x // {k}",
            lambda x, k: x // k,
        ),
    ),
    printers=(
        Snippet(("Print it.", "Print the result."), "print(x)", lambda x, _: f"{x}\n"),
        Snippet(("Print it twice.", "Print the result twice."), "print(x, x)", lambda x, _: f"{x} {x}\n"),
        Snippet(
            ("Print it and its square.", "Print the result and its square."),
            "print(x, x * x)",
            lambda x, _: f"{x} {x * x}\n",
        ),
    ),
)

WORD = Kind(
    weight=4,
    readers=(Reader(("Read a word.", "Read one word."), "s = input()", stdin=lambda word: f"{word}\n", draw=_word),),
    steps=(
        Snippet(("Make it upper case.", "Write it in capitals."), "s = s.upper()", lambda s, _: s.upper()),
        Snippet(("Turn it around.", "Reverse it."), "s = s[::-1]", lambda s, _: s[::-1]),
        Snippet(("Repeat it {k} times.", "Write it {k} times."), "s = s * {k}", lambda s, k: s * k),
        Snippet(("Drop its first {k} letters.", "Leave out its first {k} letters."), "s = s[{k}:]", lambda s, k: s[k:]),
        Snippet(
            ("Keep its first {k} letters.", "Leave out all but its first {k} letters."),
            "s = s[:{k}]",
            lambda s, k: s[:k],
        ),
        Snippet(("Put {k} at its end.", "Write {k} after it."), 's = s + "{k}"', lambda s, k: f"{s}{k}"),
        Snippet(("Put {k} at its start.", "Write {k} before it."), 's = "{k}" + s', lambda s, k: f"{k}{s}"),
    ),
    printers=(
        Snippet(("Print it.", "Print the result."), "print(s)", lambda s, _: f"{s}\n"),
        Snippet(("Print its letters with spaces.",), "print(*s)", lambda s, _: _spaced(s)),
        Snippet(("Print its length.", "Print how long it is."), "print(len(s))", lambda s, _: f"{len(s)}\n"),
        Snippet(("Print it twice.", "Print the result twice."), "print(s, s)", lambda s, _: f"{s} {s}\n"),
    ),
)

KINDS = (NUMBERS, NUMBER, WORD)


def _spaced(values: Any) -> str:
    return " ".join(map(str, values)) + "\n"


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
        echoes = any(stdin.split() == output.split() for stdin, output in zip(inputs, expected, strict=False))
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
