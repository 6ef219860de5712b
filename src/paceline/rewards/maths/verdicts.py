r"""True if an answer equals the gold answer, as mathematics.

The first rule that knows the two texts decides, on one spelling of both (`notation`):

| rule       | decides                                   | equal                           | different           |
|------------|-------------------------------------------|---------------------------------|---------------------|
| same text  | identical after stripping                 | anything with itself            | empty with anything |
| quantities | both are numbers (`quantities`), exactly  | `1,000`, `1000`                 | `0.333`, `1/3`      |
| choice     | gold is one capital letter A-J            | `(B)`, `B.`                     | `A, B, C`, `B`      |
| time       | both are times                            | `5:30 p.m.`, `17:30`            | `10:30`, `11:30`    |
| assignment | one name on the left of `=` or `\in`      | `x=5`, `5`                      | `41=42`, `42`       |
| collection | either has elements: tuple, set, interval | `6, 4` and `4, 6`               | `(2,1)` and `(1,2)` |
|            | union, matrix                             | `x>3` and `x\in(3,\infty)`      | `[1,2)` and `[1,2]` |
| words      | either holds a word: same words, in any   | `Yes`, `\text{yes}`             | `42 or 43`, `42`    |
|            | case that language gives them             | `Paris`, `paris`                | `Bb`, `BB`          |
| unfinished | the answer is a calculation to do, or a   |                                 | `6(7)`, `42`        |
|            | union of sets to make                     |                                 |                     |
| symbolic   | the rest, by math-verify (`symbolic`)     | `2(x+1)`, `2x+2`                | `2x+1`, `2y+1`      |
| timeout    | nothing: the proof took over 2 s          |                                 | 9x9 determinants    |

There is no tolerance: 3.14 is not pi. When in doubt the answer is wrong: a false zero is a missed reward, a false
one is a lesson in cheating. Not symmetric: 84/2 does not answer 42, 42 does answer 84/2.

An inequality between one name and constants is an interval: `x>3` answers `(3,\infty)` and the other way round, but
`2x>6` answers neither, as it is the question. `6 * 7 = 42` answers 42: the calculation is right and done. Units are
compared where both sides have one, without conversion. Numbers in a base (`101_2`) and ratios (`2:3`) are equal to
their own text only.

The rules run in the calling thread, in microseconds. What takes a proof goes to worker processes (`proving`), which
work at the same time; a pair that uses more than 2 s of processor time is killed and counts as different. A pair that
needs more than 0.3 s waits until all others had as much. So n hostile answers hold up their neighbours by 0.3 n /
workers seconds at most, and the batch by 2.3 n / workers; most of them are wrong at some point (`symbolic`) and take
milliseconds.
"""

from collections.abc import Sequence
from concurrent.futures import Future

from paceline.errors import RewardError
from paceline.rewards.maths.equality import EqualityVerdict, recognises
from paceline.rewards.maths.proving import ProverReply, proofs
from paceline.rewards.maths.remembering import Pair, memory, verdict_of


def math_equal(gold: str, answer: str) -> bool:
    """Return whether `answer` is `gold`; the table above says by which rule. From any thread of any process.

    >>> math_equal("1000", "1,000"), math_equal("12", "1,2"), math_equal("1/2", "0.5")
    (True, False, True)

    Raises:
        RewardError: see `math_verdicts`.
    """
    return math_verdicts([(gold, answer)])[0].equal


def math_verdicts(pairs: Sequence[Pair]) -> list[EqualityVerdict]:
    """The verdicts on (gold, answer) pairs, in their order; what takes a proof is worked on in parallel.

    Raises:
        RewardError: the grader failed: three workers died on a pair, or none starts. The verdicts on the other pairs
            are remembered, so that asking again for each alone costs nothing.
    """
    outcomes = math_outcomes(pairs)
    for failure in outcomes:
        if isinstance(failure, RewardError):
            raise failure
    return [verdict for verdict in outcomes if isinstance(verdict, EqualityVerdict)]


def math_outcomes(pairs: Sequence[Pair]) -> list[EqualityVerdict | RewardError]:
    """As `math_verdicts`, with the failure of the grader in the place of the pair that it failed on."""
    return [_outcome(found) for found in [memory().begin(pair) for pair in pairs]]


def _outcome(found: "EqualityVerdict | Future[ProverReply]") -> EqualityVerdict | RewardError:
    """The verdict, waited for if need be: the pool ends every pair at its deadline."""
    if isinstance(found, EqualityVerdict):
        return found
    failure = found.exception()
    return verdict_of(found.result()) if failure is None else RewardError(str(failure))


def begin_verdicts(pairs: Sequence[Pair]) -> None:
    """Start working on pairs whose verdicts will be asked for; returns without waiting for a proof."""
    for pair in pairs:
        memory().begin(pair)


def forget_verdicts() -> None:
    """Judge anew what was judged before. The result is the same: this is for measurements."""
    memory().forget()


def is_verifiable(gold: str) -> bool:
    """Return whether a gold answer can be recognised in another spelling than its own; see `unverifiable`."""
    return not unverifiable([gold])


def unverifiable(golds: Sequence[str]) -> list[int]:
    r"""Positions of gold answers that no rule but "same text" can know.

    Empty or too long, a placeholder ("See solution"), braces without partner, LaTeX that math-verify does not read or
    not within 2 s.

    >>> unverifiable(["42", "See solution", r"\frac{1}{", r"\text{even}"])
    [1, 2]

    Raises:
        RewardError: see `math_verdicts`.
    """
    known = {gold: recognises(gold) for gold in dict.fromkeys(golds)}
    replies = {gold: proofs().submit({"gold": gold.strip()}) for gold, found in known.items() if found is None}
    known.update((gold, bool(reply.result()["equal"])) for gold, reply in replies.items())
    return [place for place, gold in enumerate(golds) if not known[gold]]
