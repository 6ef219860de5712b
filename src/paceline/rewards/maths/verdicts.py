r"""Equality of an answer with the gold answer, as mathematics.

The first rule that applies to both texts decides, on one spelling of both (`notation`):

| rule       | decides                                   | equal                           | different           |
|------------|-------------------------------------------|---------------------------------|---------------------|
| same text  | identical after stripping                 | anything with itself            | empty with anything |
| quantities | both are numbers (`quantities`), exactly  | `1,000`, `1000`                 | `0.333`, `1/3`      |
|            | with a unit or a counted noun             | `12 apples`, `12`               | `12 dozen`, `12`    |
| approxi-   | one has a mark of approximation, and gold | `3.14`, `about 3.14`            | `42`, `~42`         |
| mation     | is a decimal or has one too               |                                 |                     |
| choice     | gold is one capital letter A-J, or several| `(B)`, `B. Paris`; `AC`, `C, A` | `A, B, C`, `B`      |
| time       | both are times                            | `5:30 p.m.`, `17:30`            | `10:30`, `11:30`    |
| congruence | both are remainders                       | `2 \pmod 5`, `2 mod 5`          | `7 mod 5`, `2 mod 5`|
| assignment | one name on the left of `=` or `\in`      | `x=5`, `5`                      | `41=42`, `42`       |
| collection | either has elements: tuple, set, interval | `6, 4` and `4, 6`               | `(2,1)` and `(1,2)` |
|            | union, matrix, system                     | `x>3` and `x\in(3,\infty)`      | `[1,2)` and `[1,2]` |
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

The rules run in the calling thread, in microseconds. What takes a proof goes to worker processes, which
work at the same time; a pair that uses more than 2 s of processor time is killed and counts as different. A pair that
needs more than 0.3 s waits until all others had as much. So n hostile answers hold up their neighbours by 0.3 n /
workers seconds at most, and the batch by 2.3 n / workers; most of them are wrong at some point (`symbolic`) and take
milliseconds.
"""

import atexit
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any

from paceline.errors import RewardError
from paceline.processes.pool import WALL_SECONDS, PoolReply, WorkerPool, work
from paceline.rewards.maths.equality import decide, recognises
from paceline.rewards.maths.expressions import EqualityVerdict
from paceline.rewards.maths.symbolic import parses, prove

MIN_WORKERS, MAX_WORKERS = 2, 4
"""Processes of about 100 MB each, one per core within these bounds: with two, others can pass a hostile answer."""
COMMAND = (sys.executable, "-P", "-c", "from paceline.rewards.maths.verdicts import work_on_pairs; work_on_pairs()")
"""A worker; `-P` keeps the working directory, which may have a `math.py`, out of its imports."""
REMEDY = "check that `python -c 'import math_verify'` works and that new processes may be started"

_USUAL = (
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{2}+\frac{\pi}{3}", r"\frac{\pi}{3}+2^{1/2}"),
    (r"\frac{2}{\sqrt{3}}", r"\frac{2\sqrt{3}}{3}"),
    (r"y=2x+3", r"2x-y+3=0"),
    (r"e^{x}\sin 2x", r"2e^x\sin x\cos x"),
    (r"\ln 8", r"3\ln 2"),
)
"""Pairs whose proofs load whatever the algebra loads at first use."""


def _failure(reason: str) -> RewardError:
    return RewardError(f"math answers cannot be compared: {reason}")


def proof_pool(size: int, command: Sequence[str] = COMMAND, wall_seconds: float = WALL_SECONDS) -> WorkerPool:
    """Make a pool that judges `{"gold": ..., "answer": ...}`; `{"gold": ...}` checks a gold answer.

    A reply has `equal` and `rule`. The exception of a request is a RewardError where the grader itself failed.
    """
    return WorkerPool(size, command, failure=_failure, remedy=REMEDY, wall_seconds=wall_seconds)


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def proofs() -> WorkerPool:
    """Return the pool of this process, made when it is first needed."""
    global _pool
    with _pool_lock:
        if _pool is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _pool = proof_pool(min(max(MIN_WORKERS, cores), MAX_WORKERS))
        return _pool


def _close() -> None:
    if _pool is not None:
        _pool.close()


def _after_fork() -> None:
    """In the child: the thread that owns the workers stayed behind in the parent."""
    global _pool, _pool_lock
    if _pool is not None:
        _pool.abandon()
    _pool, _pool_lock = None, threading.Lock()


atexit.register(_close)
os.register_at_fork(after_in_child=_after_fork)


def work_on_pairs() -> None:
    """Run as a worker: judge pairs by the rules, the symbolic one included."""
    work(_load, lambda request: _judge(request), timeout={"equal": False, "rule": "timeout"})


def _load() -> None:
    for gold, answer in _USUAL:
        prove(gold, answer)


def _judge(request: dict[str, Any]) -> dict[str, object]:
    from sympy.core.random import seed

    seed(0)  # sympy tries expressions at random points: the same ones for a pair, whatever was judged before it
    try:
        if "answer" in request:
            verdict = decide(request["gold"], request["answer"], prove)
            return asdict(verdict) if verdict else {"equal": False, "rule": "symbolic"}
        return {"equal": bool(recognises(request["gold"], parses)), "rule": "symbolic"}
    except (MemoryError, RecursionError):  # the answer's own computation took them: it is not shown to be equal
        return {"equal": False, "rule": "symbolic"}


MAX_PAIRS = 65_536
MAX_CHARACTERS = 16 << 20  # Total length of the remembered pairs; the least recently used are dropped

Pair = tuple[str, str]


class VerdictMemory:
    """Memory of verdicts by pair, for any number of threads."""

    def __init__(self, pool: Callable[[], WorkerPool] = proofs) -> None:
        """`pool` returns the pool that proves; it is called when there is something to prove."""
        self._pool = pool
        self._lock = threading.Lock()
        self._known: OrderedDict[Pair, EqualityVerdict] = OrderedDict()
        self._characters = 0
        self._pending: dict[Pair, Future[PoolReply]] = {}

    def begin(self, pair: Pair) -> "EqualityVerdict | Future[PoolReply]":
        """Return the verdict where it is known or cheap, else the pool's future reply, requested once per pair."""
        pair = pair[0].strip(), pair[1].strip()  # what bounds their length, and so a worker's line, looks at this
        with self._lock:
            if pair in self._known:
                self._known.move_to_end(pair)
            known = self._known.get(pair) or self._pending.get(pair)
            if known is not None:
                return known
        verdict = decide(*pair)
        if verdict is not None:
            self._keep(pair, verdict)
            return verdict
        with self._lock:
            known = self._known.get(pair) or self._pending.get(pair)
            if known is not None:
                return known
            future = self._pending[pair] = self._pool().submit({"gold": pair[0], "answer": pair[1]})
        future.add_done_callback(partial(self._land, pair))
        return future

    def _land(self, pair: Pair, future: "Future[PoolReply]") -> None:
        """Remember a verdict, but not a failure: that pair may be tried again."""
        if future.exception() is None:
            self._keep(pair, verdict_of(future.result()))
        with self._lock:
            if self._pending.get(pair) is future:
                del self._pending[pair]

    def _keep(self, pair: Pair, verdict: EqualityVerdict) -> None:
        with self._lock:
            if pair in self._known:
                return
            self._known[pair] = verdict
            self._characters += len(pair[0]) + len(pair[1])
            while len(self._known) > MAX_PAIRS or self._characters > MAX_CHARACTERS:
                (gold, answer), _ = self._known.popitem(last=False)
                self._characters -= len(gold) + len(answer)


def verdict_of(reply: PoolReply) -> EqualityVerdict:
    """Convert a worker's reply to a verdict."""
    return EqualityVerdict(equal=bool(reply["equal"]), rule=str(reply["rule"]))


_memory = VerdictMemory()


def memory() -> VerdictMemory:
    """Return the memory of this process."""
    return _memory


def forget_verdicts() -> None:
    """Start with an empty memory. Proofs that are running are not remembered; in a fork nobody runs them."""
    global _memory
    _memory = VerdictMemory()


os.register_at_fork(after_in_child=forget_verdicts)


def math_equal(gold: str, answer: str) -> bool:
    """Return whether `answer` is `gold`; the table above says by which rule. From any thread of any process.

    >>> math_equal("1000", "1,000"), math_equal("12", "1,2"), math_equal("1/2", "0.5")
    (True, False, True)

    Raises:
        RewardError: see `math_verdicts`.
    """
    return math_verdicts([(gold, answer)])[0].equal


def math_verdicts(pairs: Sequence[Pair]) -> list[EqualityVerdict]:
    """Return the verdicts on (gold, answer) pairs, in order; proofs run in parallel.

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
    """Return the verdicts on pairs, or the failure of the grader for a pair that it failed on."""
    outcomes = list[EqualityVerdict | RewardError]()
    for outcome in [_memory.begin(pair) for pair in pairs]:
        if isinstance(outcome, EqualityVerdict):
            outcomes.append(outcome)
        else:  # waited for: the pool ends every pair at its deadline
            failure = outcome.exception()
            outcomes.append(verdict_of(outcome.result()) if failure is None else RewardError(str(failure)))
    return outcomes


def begin_verdicts(pairs: Sequence[Pair]) -> None:
    """Start working on pairs whose verdicts will be asked for; returns without waiting for a proof."""
    for pair in pairs:
        _memory.begin(pair)


def unverifiable(golds: Sequence[str]) -> list[int]:
    r"""Return the positions of gold answers to which no rule but "same text" applies.

    Those are empty or too long, a placeholder ("See solution"), have unbalanced braces, or LaTeX that math-verify
    cannot read within 2 s.

    >>> unverifiable(["42", "See solution", r"\frac{1}{", r"\text{even}"])
    [1, 2]

    Raises:
        RewardError: see `math_verdicts`.
    """
    known = {gold: recognises(gold) for gold in dict.fromkeys(golds)}
    replies = {gold: proofs().submit({"gold": gold.strip()}) for gold, is_known in known.items() if is_known is None}
    known.update((gold, bool(reply.result()["equal"])) for gold, reply in replies.items())
    return [index for index, gold in enumerate(golds) if not known[gold]]
