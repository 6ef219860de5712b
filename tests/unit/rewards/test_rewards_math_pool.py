"""The pool that compares answers gives each pair its own verdict, however its workers die."""

import asyncio
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.errors import RewardError
from paceline.processes.pool import WorkerPool
from paceline.rewards.maths.equality import EqualityVerdict, decide
from paceline.rewards.maths.verdicts import (
    VerdictMemory,
    begin_verdicts,
    forget_verdicts,
    math_equal,
    math_verdicts,
    proof_pool,
    proofs,
    unverifiable,
    verdict_of,
)
from tests.support.math_cases import mixed

PAIR = {"gold": "x+1", "answer": "1+x"}
SERVE = "print('{\"ready\": true}', flush=True)\nfor line in sys.stdin:\n    "
ONCE_RIGHT = 'seen.append(1); print(\'{"equal": %s, "rule": "symbolic"}\' % str(len(seen) == 1).lower(), flush=True)'
ANSWER = 'print(\'{"equal": true, "rule": "symbolic"}\', flush=True)'


@pytest.fixture
def pool_of():
    """A pool whose worker is the given Python code."""
    pools = []

    def make(code: str, wall_seconds: float = 60) -> WorkerPool:
        pools.append(proof_pool(1, (sys.executable, "-c", f"import os, signal, sys\n{code}"), wall_seconds))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.long
def test_ten_thousand_answers_from_four_threads_and_an_event_loop_are_judged_as_one_at_a_time():
    rows = mixed(10_000)
    alone = {row[:2]: math_equal(*row[:2]) for row in rows}
    wanted = [alone[row[:2]] for row in rows]
    assert wanted == [row[2] for row in rows]
    forget_verdicts()
    parts = [rows[start::4] for start in range(4)]
    judged: list[list[bool]] = [[], [], [], []]

    def judge(place: int) -> None:
        judged[place] = [math_equal(*row[:2]) for row in parts[place]]

    threads = [threading.Thread(target=judge, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert judged == [[alone[row[:2]] for row in part] for part in parts]
    forget_verdicts()

    async def batches() -> list[bool]:
        chunks = [[row[:2] for row in rows[start : start + 500]] for start in range(0, len(rows), 500)]
        verdicts = await asyncio.gather(*(asyncio.to_thread(math_verdicts, chunk) for chunk in chunks))
        return [verdict.equal for chunk in verdicts for verdict in chunk]

    assert asyncio.run(batches()) == wanted


def test_a_pair_that_many_threads_ask_for_at_once_is_computed_once(pool_of):
    pool = pool_of(f"seen = []\n{SERVE}{ONCE_RIGHT}")
    verdicts, results = VerdictMemory(lambda: pool), []
    threads = [threading.Thread(target=lambda: results.append(verdicts.begin(("x+1", "1+x")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [one if isinstance(one, EqualityVerdict) else verdict_of(one.result(timeout=60)) for one in results]
    assert told == [EqualityVerdict(equal=True, rule="symbolic")] * 8


@pytest.mark.long
def test_a_worker_that_is_killed_at_work_is_replaced_and_the_pair_judged():
    forget_verdicts()
    pairs = [(f"x^{power}+1", f"1+x^{power}") for power in range(2, 40)]
    begin_verdicts(pairs)
    math_equal(*pairs[0])
    for worker in proofs().process_ids():
        os.kill(worker, signal.SIGKILL)
    assert all(verdict.equal for verdict in math_verdicts(pairs))


def test_a_pair_over_which_one_worker_dies_is_given_to_another(pool_of, tmp_path):
    once = f"path = {str(tmp_path / 'died')!r}\n    if not os.path.exists(path): open(path, 'w').close(); os._exit(7)"
    assert pool_of(SERVE + once + "\n    " + ANSWER).submit(PAIR).result(timeout=60)["equal"] is True


def test_a_pair_over_which_every_worker_dies_is_a_failure_of_the_grader(pool_of):
    failure = pool_of(SERVE + "os._exit(7)").submit(PAIR).exception(timeout=60)
    assert isinstance(failure, RewardError)
    assert "3 worker processes died over" in str(failure)
    assert "status 7" in str(failure)


@pytest.mark.long
def test_a_reply_of_a_worker_is_never_taken_for_that_to_another_pair(tmp_path):
    """The child of a worker is killed between two pairs: whether it had read the second one is not known."""
    pool = proof_pool(1)
    try:
        for number in (2, 3):
            right, wrong = f"x^{number}+1", f"x^{number}+2"
            assert pool.submit({"gold": right, "answer": f"1+x^{number}"}).result(timeout=60)["equal"] is True
            for child in [child for worker in pool.process_ids() for child in _children(worker)]:
                os.kill(child, signal.SIGKILL)
            replies = [pool.submit({"gold": right, "answer": one}) for one in (wrong, f"1+x^{number}", wrong)]
            assert [reply.result(timeout=60)["equal"] for reply in replies] == [False, True, False]
    finally:
        pool.close()


@pytest.mark.long
def test_what_makes_no_sense_to_the_algebra_is_different_at_once_and_no_failure():
    nonsense = r"((1,x)\cup ((f(x)+\ln x)\cap (n-|x|)))"
    pool = proof_pool(1, wall_seconds=20)
    try:
        reply = pool.submit({"gold": nonsense, "answer": nonsense.replace("x", "y", 1)})
        assert reply.result(timeout=60) == {"equal": False, "rule": "symbolic"}
    finally:
        pool.close()


def test_space_around_an_answer_does_not_count_towards_its_length():
    padding = " " * 100_000
    assert math_equal(f"x+9{padding}", f"{padding}9+x")
    assert not unverifiable([f"x+9{padding}"])


def test_a_worker_whose_child_dies_of_something_unforeseen_ends_too(pool_of):
    """Its silence would hold up the pair for a minute, three times."""
    started = pool_of(
        "from paceline.rewards.maths import verdicts\n"
        "def judge(request): raise KeyError('unforeseen')\n"
        "verdicts._judge, verdicts._USUAL = judge, ()\nverdicts.work_on_pairs()"
    ).submit(PAIR)
    assert "3 worker processes died over" in str(started.exception(timeout=50))


@pytest.mark.long
def test_a_worker_that_is_stopped_is_given_up_and_replaced(pool_of, tmp_path):
    once = f"path = {str(tmp_path / 'stopped')!r}\n    if not os.path.exists(path): open(path, 'w').close(); "
    code = SERVE + once + "signal.raise_signal(signal.SIGSTOP)\n    " + ANSWER
    assert pool_of(code, wall_seconds=2).submit(PAIR).result(timeout=60)["equal"] is True


def test_a_worker_that_cannot_start_is_a_failure_with_a_remedy(pool_of):
    missing = pool_of('print(\'{"failed": "No module named math_verify"}\', flush=True)').submit(PAIR)
    with pytest.raises(
        RewardError, match=r"No module named math_verify\); check that `python -c 'import math_verify'`"
    ):
        missing.result(timeout=60)
    with pytest.raises(RewardError, match="ended at its start with status 3"):
        pool_of("os._exit(3)").submit(PAIR).result(timeout=60)


def test_a_pool_that_is_closed_judges_nothing_and_leaves_nobody_waiting(pool_of):
    pool = pool_of(SERVE + "pass")
    waiting = pool.submit(PAIR)
    pool.close()
    with pytest.raises(RewardError, match="the workers were ended"):
        waiting.result(timeout=60)
    with pytest.raises(RewardError, match="the workers were ended"):
        pool.submit(PAIR).result(timeout=60)
    assert pool.process_ids() == []


def test_a_failure_is_not_remembered_and_does_not_touch_other_pairs(pool_of):
    pools = [pool_of("os._exit(3)"), pool_of(SERVE + ANSWER)]
    verdicts = VerdictMemory(lambda: pools[0])
    assert isinstance(verdicts.begin(("x+1", "1+x")).exception(timeout=60), RewardError)
    assert verdicts.begin(("42", "42.0")) == EqualityVerdict(equal=True, rule="quantities")
    pools.pop(0)
    assert verdicts.begin(("x+1", "1+x")).result(timeout=60)["equal"] is True


@pytest.mark.long
def test_a_process_that_was_forked_has_a_pool_of_its_own():
    assert math_equal("x+6", "6+x")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def judge() -> None:
        sender.send((math_equal("x+7", "7+x"), math_equal("x+7", "8+x"), proofs().process_ids()))

    child = context.Process(target=judge)
    child.start()
    assert receiver.poll(60)
    right, wrong, workers = receiver.recv()
    child.join()
    assert (right, wrong, child.exitcode) == (True, False, 0)
    assert not set(workers) & set(proofs().process_ids())
    assert math_equal("x+8", "8+x")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the end of a process is an event on Linux")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_no_worker_is_left_when_its_parent_is_gone(end):
    cells = r"\\".join("&".join(f"x_{{{i}{j}}}" for i in range(9)) for j in range(9))
    pair = (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}x", rf"\det\begin{{pmatrix}}{cells}\end{{pmatrix}}")
    assert decide(*pair) is None
    code = (
        "import sys, threading\nfrom paceline.rewards.maths.verdicts import *\n"
        "from paceline.rewards.maths.verdicts import proofs\n"
        f"math_equal('x+1', '1+x'); thread = threading.Thread(target=begin_verdicts, args=([{pair!r}],))\n"
        "thread.start(); thread.join(); print(*proofs().process_ids(), flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers = [int(word) for word in parent.stdout.readline().split()]
    family = workers + [child for worker in workers for child in _children(worker)]
    ends = [os.pidfd_open(process) for process in family]
    assert len(family) >= 2
    if end:
        parent.send_signal(end)
    parent.communicate(timeout=60)
    for process_end in ends:
        assert select.select([process_end], [], [], 30)[0]
        os.close(process_end)


def _children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
