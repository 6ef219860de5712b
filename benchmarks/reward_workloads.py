"""What reward functions are measured on: answers with the verdicts they deserve, and small programs with inputs.

| answers    | what a batch is                                                                                    |
|------------|----------------------------------------------------------------------------------------------------|
| mixed      | half plain numbers, as in GSM8K; half rows of `tests/support/math_cases.py`, so that answers repeat |
| distinct   | the same, each pair once                                                                           |
| hostile    | `mixed`, with one answer in a hundred built to be slow or huge                                     |

Every repetition has a batch of its own, the same for all contenders.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.support.math_cases import HOSTILE, mixed

ANSWERS = ("mixed", "distinct", "hostile")
HOSTILE_EVERY = 100
GOLD_OF_HOSTILE = "x^2+2x+1"
NUM_ANSWERS, NUM_ANSWERS_QUICK = 1000, 200
NUM_PROGRAMS, NUM_PROGRAMS_QUICK = 400, 20

Pair = tuple[str, str, bool]
"""Gold answer, answer, whether it is right."""


def answers(name: str, repetition: int, *, is_quick: bool) -> list[Pair]:
    """The batch of one repetition."""
    pairs = mixed(NUM_ANSWERS_QUICK if is_quick else NUM_ANSWERS, seed=repetition)
    if name == "distinct":
        return list(dict.fromkeys(pairs))
    if name == "hostile":
        draw = random.Random(repetition)
        for place in range(0, len(pairs), HOSTILE_EVERY):
            pairs[place] = (GOLD_OF_HOSTILE, draw.choice(HOSTILE), False)
    return pairs


def fingerprint(pairs: Sequence[Pair]) -> str:
    """Of a batch, to see that two processes had the same one."""
    return blake2b(repr(list(pairs)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One program with one input."""

    source: str
    stdin: str


PROGRAMS = (
    "numbers = list(map(int, input().split()))\nprint(sum(numbers))",
    "print(input()[::-1])",
    "import sys\nprint(*sorted(map(int, sys.stdin.read().split())))",
    "import math\na, b, *_ = map(int, input().split())\nprint(math.gcd(a, b))",
    "from collections import Counter\nfor letter, count in sorted(Counter(input()).items()):\n    print(letter, count)",
    "n = int(input().split()[0])\na, b = 0, 1\nfor _ in range(n):\n    a, b = b, a + b\nprint(a)",
    "n = int(input().split()[0])\nprint([p for p in range(2, n) if all(p % d for d in range(2, int(p**0.5) + 1))])",
    "import sys\nrows = sys.stdin.read().split()\nprint('\\n'.join(' '.join(pair) for pair in zip(rows, rows[1:])))",
)
"""Small programs as beginners' exercises ask for them; each reads a line of numbers."""


def runs(repetition: int, *, is_quick: bool) -> list[Run]:
    """Programs with inputs of their own."""
    draw = random.Random(repetition)
    return [
        Run(
            source=f"# {repetition}.{number}\n{PROGRAMS[number % len(PROGRAMS)]}",
            stdin=" ".join(str(draw.randrange(1, 200)) for _ in range(20)) + "\n",
        )
        for number in range(NUM_PROGRAMS_QUICK if is_quick else NUM_PROGRAMS)
    ]
