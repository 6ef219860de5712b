"""Verdicts that were given before, and those that are being worked on: no pair is judged twice."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from paceline.rewards.maths.equality import EqualityVerdict, decide
from paceline.rewards.maths.proving import ProofPool, ProverReply, proofs

MAX_PAIRS = 65_536
MAX_CHARACTERS = 16 << 20
"""Total length of the remembered pairs; the least recently used are dropped."""

Pair = tuple[str, str]


class VerdictMemory:
    """Verdicts by pair, for any number of threads."""

    def __init__(self, pool: Callable[[], ProofPool] = proofs) -> None:
        """`pool` gives the pool that proves; it is asked for when there is something to prove."""
        self._pool = pool
        self._lock = threading.Lock()
        self._known: OrderedDict[Pair, EqualityVerdict] = OrderedDict()
        self._characters = 0
        self._pending: dict[Pair, Future[ProverReply]] = {}

    def begin(self, pair: Pair) -> "EqualityVerdict | Future[ProverReply]":
        """The verdict where it is known or cheap, else the reply that the pool will give, asked for once."""
        pair = pair[0].strip(), pair[1].strip()  # what bounds their length, and so a worker's line, looks at this
        with self._lock:
            if pair in self._known:
                self._known.move_to_end(pair)
                return self._known[pair]
            if pair in self._pending:
                return self._pending[pair]
        verdict = decide(*pair)
        if verdict is not None:
            self._keep(pair, verdict)
            return verdict
        with self._lock:
            if pair in self._known:
                return self._known[pair]
            if pair in self._pending:
                return self._pending[pair]
            future = self._pending[pair] = self._pool().submit({"gold": pair[0], "answer": pair[1]})
        future.add_done_callback(partial(self._land, pair))
        return future

    def forget(self) -> None:
        """Start anew; what is being worked on is not remembered when it is done."""
        with self._lock:
            self._known.clear()
            self._pending = {}
            self._characters = 0

    def _land(self, pair: Pair, future: "Future[ProverReply]") -> None:
        """A failure is not remembered: the pair may be tried again."""
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


def verdict_of(reply: ProverReply) -> EqualityVerdict:
    """What a worker said, as a verdict."""
    return EqualityVerdict(equal=bool(reply["equal"]), rule=str(reply["rule"]))


_memory = VerdictMemory()


def memory() -> VerdictMemory:
    """The one of this process."""
    return _memory


def _after_fork() -> None:
    """In the child nobody works on what was pending, and a lock may have been held by a thread that is gone."""
    global _memory
    _memory = VerdictMemory()


os.register_at_fork(after_in_child=_after_fork)
