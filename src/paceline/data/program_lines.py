"""What the descriptions of the dataset `programs` are made of: sentences, each with the code that does what it says.

Every piece also says in Python functions what that code computes, so the outputs of a program are known without running
it. The code and the function are written apart; a test runs one against the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

LARGEST_NUMBER = 9
"""What `{k}` is at most, in a sentence and in its code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One sentence and its code; both may hold `{k}`, a whole number."""

    sentences: tuple[str, ...]
    """Different words for the same thing."""
    code: str
    run: Callable[[Any, int], Any]
    """What the code makes of the value so far and of k; a printer's gives the text that is printed."""
    smallest: int = 2
    """The least that k may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """The first sentence and its code: from standard input to the value that the steps work on."""

    sentences: tuple[str, ...]
    code: str
    run: Callable[[Any], Any]
    """From what was drawn to the value that the code holds of it."""
    stdin: Callable[[Any], str]
    """From what was drawn to the text of standard input."""
    draw: Callable[[Random, bool], Any]
    """What standard input holds; True asks for a large case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Programs on one kind of value: how it is read, what can be done with it, how it is printed."""

    weight: int
    """How frequent the kind is, relative to the others."""
    readers: tuple[Reader, ...]
    steps: tuple[Piece, ...]
    printers: tuple[Piece, ...]


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
    return Reader(
        sentences=sentences,
        code=f"a, b = map(int, input().split())\nx = {code}",
        run=run,
        stdin=lambda pair: f"{pair[0]} {pair[1]}\n",
        draw=_pair,
    )


NUMBERS = Kind(
    weight=5,
    readers=(
        Reader(
            sentences=("Read numbers on one line.", "Read a line of numbers."),
            code="v = list(map(int, input().split()))",
            run=lambda numbers: numbers,
            stdin=lambda numbers: " ".join(map(str, numbers)) + "\n",
            draw=_numbers,
        ),
        Reader(
            sentences=("Read n, then n numbers on lines of their own.", "Read a count and that many lines of numbers."),
            code="v = [int(input()) for _ in range(int(input()))]",
            run=lambda numbers: numbers,
            stdin=lambda numbers: "".join(f"{number}\n" for number in [len(numbers), *numbers]),
            draw=_numbers,
        ),
    ),
    steps=(
        Piece(
            sentences=("Add {k} to each.", "Increase each by {k}."),
            code="v = [x + {k} for x in v]",
            run=lambda v, k: [x + k for x in v],
        ),
        Piece(
            sentences=("Take {k} from each.", "Lower each by {k}."),
            code="v = [x - {k} for x in v]",
            run=lambda v, k: [x - k for x in v],
        ),
        Piece(
            sentences=("Multiply each by {k}.", "Make each {k} times as large."),
            code="v = [x * {k} for x in v]",
            run=lambda v, k: [x * k for x in v],
        ),
        Piece(
            sentences=("Square each.", "Multiply each by itself."),
            code="v = [x * x for x in v]",
            run=lambda v, _: [x * x for x in v],
        ),
        Piece(
            sentences=("Keep the even ones.", "Leave out the odd ones."),
            code="v = [x for x in v if x % 2 == 0]",
            run=lambda v, _: [x for x in v if x % 2 == 0],
        ),
        Piece(
            sentences=("Keep those above {k}.", "Keep the ones larger than {k}."),
            code="v = [x for x in v if x > {k}]",
            run=lambda v, k: [x for x in v if x > k],
        ),
        Piece(
            sentences=("Keep those below {k}.", "Keep the ones smaller than {k}."),
            code="v = [x for x in v if x < {k}]",
            run=lambda v, k: [x for x in v if x < k],
        ),
        Piece(
            sentences=("Sort them.", "Put them in order of size."),
            code="v = sorted(v)",
            run=lambda v, _: sorted(v),
        ),
        Piece(
            sentences=("Reverse their order.", "Turn them around."),
            code="v = v[::-1]",
            run=lambda v, _: v[::-1],
        ),
        Piece(
            sentences=("Drop the first {k}.", "Leave out the first {k}."),
            code="v = v[{k}:]",
            run=lambda v, k: v[k:],
        ),
        Piece(
            sentences=("Keep the first {k}.", "Leave out all but the first {k}."),
            code="v = v[:{k}]",
            run=lambda v, k: v[:k],
        ),
    ),
    printers=(
        Piece(sentences=("Print them.", "Print what is left."), code="print(*v)", run=lambda v, _: _spaced(v)),
        Piece(
            sentences=("Print each on a line.", "Print one per line."),
            code="for x in v: print(x)",
            run=lambda v, _: "".join(f"{x}\n" for x in v),
        ),
        Piece(sentences=("Print the sum.", "Print the total."), code="print(sum(v))", run=lambda v, _: f"{sum(v)}\n"),
        Piece(
            sentences=("Print the largest.", "Print the maximum."), code="print(max(v))", run=lambda v, _: f"{max(v)}\n"
        ),
        Piece(
            sentences=("Print the smallest.", "Print the minimum."),
            code="print(min(v))",
            run=lambda v, _: f"{min(v)}\n",
        ),
        Piece(
            sentences=("Print how many there are.", "Print their count."),
            code="print(len(v))",
            run=lambda v, _: f"{len(v)}\n",
        ),
    ),
)

NUMBER = Kind(
    weight=3,
    readers=(
        Reader(
            sentences=("Read a number.", "Read one number."),
            code="x = int(input())",
            run=lambda number: number,
            stdin=lambda number: f"{number}\n",
            draw=_number,
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
        Piece(sentences=("Add {k}.", "Increase it by {k}."), code="x = x + {k}", run=lambda x, k: x + k),
        Piece(sentences=("Take away {k}.", "Lower it by {k}."), code="x = x - {k}", run=lambda x, k: x - k),
        Piece(
            sentences=("Multiply by {k}.", "Make it {k} times as large."), code="x = x * {k}", run=lambda x, k: x * k
        ),
        Piece(sentences=("Square it.", "Multiply it by itself."), code="x = x * x", run=lambda x, _: x * x),
        Piece(
            sentences=("Take the remainder by {k}.", "Keep what is left when divided by {k}."),
            code="x = x % {k}",
            run=lambda x, k: x % k,
            smallest=5,
        ),
        Piece(
            sentences=("Divide by {k}, rounding down.", "Divide it by {k} without remainder."),
            code="x = x // {k}",
            run=lambda x, k: x // k,
        ),
    ),
    printers=(
        Piece(sentences=("Print it.", "Print the result."), code="print(x)", run=lambda x, _: f"{x}\n"),
        Piece(
            sentences=("Print it twice.", "Print the result twice."), code="print(x, x)", run=lambda x, _: f"{x} {x}\n"
        ),
        Piece(
            sentences=("Print it and its square.", "Print the result and its square."),
            code="print(x, x * x)",
            run=lambda x, _: f"{x} {x * x}\n",
        ),
    ),
)

WORD = Kind(
    weight=4,
    readers=(
        Reader(
            sentences=("Read a word.", "Read one word."),
            code="s = input()",
            run=lambda word: word,
            stdin=lambda word: f"{word}\n",
            draw=_word,
        ),
    ),
    steps=(
        Piece(
            sentences=("Make it upper case.", "Write it in capitals."), code="s = s.upper()", run=lambda s, _: s.upper()
        ),
        Piece(sentences=("Turn it around.", "Reverse it."), code="s = s[::-1]", run=lambda s, _: s[::-1]),
        Piece(sentences=("Repeat it {k} times.", "Write it {k} times."), code="s = s * {k}", run=lambda s, k: s * k),
        Piece(
            sentences=("Drop its first {k} letters.", "Leave out its first {k} letters."),
            code="s = s[{k}:]",
            run=lambda s, k: s[k:],
        ),
        Piece(
            sentences=("Keep its first {k} letters.", "Leave out all but its first {k} letters."),
            code="s = s[:{k}]",
            run=lambda s, k: s[:k],
        ),
        Piece(
            sentences=("Put {k} at its end.", "Write {k} after it."), code='s = s + "{k}"', run=lambda s, k: f"{s}{k}"
        ),
        Piece(
            sentences=("Put {k} at its start.", "Write {k} before it."),
            code='s = "{k}" + s',
            run=lambda s, k: f"{k}{s}",
        ),
    ),
    printers=(
        Piece(sentences=("Print it.", "Print the result."), code="print(s)", run=lambda s, _: f"{s}\n"),
        Piece(sentences=("Print its letters with spaces.",), code="print(*s)", run=lambda s, _: _spaced(s)),
        Piece(
            sentences=("Print its length.", "Print how long it is."),
            code="print(len(s))",
            run=lambda s, _: f"{len(s)}\n",
        ),
        Piece(
            sentences=("Print it twice.", "Print the result twice."), code="print(s, s)", run=lambda s, _: f"{s} {s}\n"
        ),
    ),
)

KINDS = (NUMBERS, NUMBER, WORD)


def _spaced(values: Any) -> str:
    return " ".join(map(str, values)) + "\n"
