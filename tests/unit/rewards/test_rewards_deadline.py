"""Calls of a user's own code that take too long: ended in the main thread and elsewhere, never taken for an answer."""

import asyncio
import contextlib
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.rewards.scoring.calling import RewardTimeout
from paceline.rewards.scoring.scores import score
from paceline.runtime.interrupts import SIGNAL, interrupted_after
from tests.support.scripted import task, trajectory

LONG = 600.0


def spin() -> None:
    while True:
        pass


def test_a_loop_and_a_blocking_call_are_ended_in_the_main_thread():
    for block in (spin, lambda: time.sleep(LONG), lambda: threading.Event().wait()):
        with pytest.raises(RewardTimeout), interrupted_after(0.05, RewardTimeout):
            block()


def test_a_loop_is_ended_in_any_other_thread():
    def call() -> str:
        try:
            with interrupted_after(0.05, RewardTimeout):
                spin()
        except RewardTimeout:
            return "ended"
        return "returned"

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(call).result(timeout=60) == "ended"


def test_a_call_in_time_leaves_the_handlers_of_its_thread_as_they_were():
    before = {number: signal.getsignal(number) for number in signal.valid_signals() if number != SIGNAL}
    with interrupted_after(LONG, RewardTimeout):
        pass
    assert {number: signal.getsignal(number) for number in before} == before
    for watcher in [one for one in threading.enumerate() if one.name == "deadline"]:
        watcher.join(timeout=60)
        assert not watcher.is_alive()


def test_a_function_that_swallows_every_exception_does_not_swallow_its_deadline():
    def stubborn(completions, **columns):
        try:
            spin()
        except Exception:  # noqa: BLE001 - what such a function does
            return [1.0] * len(completions)

    scores = score({"stubborn": stubborn}, [task("a"), task("b")], [trajectory("x")] * 2, timeout=0.05)
    assert scores.values["stubborn"] == (None, None)
    assert scores.failed["stubborn"] == (0, 1)
    assert "the call took more than --reward-timeout 0.05 seconds" in scores.first_failures["stubborn"]


@pytest.mark.long
def test_rows_that_were_cut_short_one_by_one_have_no_score():
    """What graders often do: one `except` around each row, which takes the deadline for a wrong answer."""
    cut = []

    def one_by_one(completions, **columns):
        for completion_ in completions:
            try:
                time.sleep(LONG)
            except:  # noqa: E722
                cut.append(completion_)
        return [0.0] * len(completions)

    def translating(completions, **columns):
        try:
            time.sleep(LONG)
        except BaseException as error:
            raise ValueError("bad row") from error

    functions = {"one_by_one": one_by_one, "translating": translating}
    scores = score(functions, [task("a"), task("b")], [trajectory("x"), trajectory("y")], timeout=0.05)
    assert cut == ["x", "y"]  # interrupted again for the second row, and both called once
    assert set(scores.values.values()) == {(None, None)}
    assert set(scores.failed.values()) == {(0, 1)}


@pytest.mark.long
def test_an_async_function_that_blocks_the_event_loop_is_ended_and_others_keep_their_scores():
    async def prompt(completions, **columns):
        return [1.0] * len(completions)

    async def blocks(completions, **columns):
        time.sleep(LONG)

    async def stubborn(completions, **columns):
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(LONG)

    async def spins(completions, **columns):
        spin()

    for bad in (blocks, stubborn, spins):
        functions = {"before": prompt, "bad": bad, "behind": prompt}
        scores = score(functions, [task("a")], [trajectory("x")], timeout=1.0)
        assert scores.values == {"before": (1.0,), "bad": (None,), "behind": (1.0,)}
        assert "the call took more than --reward-timeout 1 seconds" in scores.notes["bad"][0]


@pytest.mark.long
def test_after_a_failed_batch_the_rows_share_one_deadline():
    calls = []

    def slow_alone(completions, **columns):
        calls.append(list(completions))
        if len(completions) > 1:
            raise ValueError("one at a time")
        spin()

    scores = score({"f": slow_alone}, [task(str(n)) for n in range(50)], [trajectory("x")] * 50, timeout=1.0)
    assert len(calls) == 3  # the batch twice, and the first row: the other 49 are not waited for
    assert scores.failed["f"] == tuple(range(50))


@pytest.mark.long
def test_async_functions_have_the_deadline_together():
    async def never(completions, **columns):
        await asyncio.Event().wait()

    async def prompt(completions, **columns):
        return [1.0] * len(completions)

    scores = score({"never": never, "prompt": prompt}, [task("a")], [trajectory("x")], timeout=1.0)
    assert scores.values == {"never": (None,), "prompt": (1.0,)}
    assert "the call took more than --reward-timeout 1 seconds" in scores.notes["never"][0]
