"""Law 7: whatever a step waits for has a deadline, and what runs over it is ended and named."""

import asyncio
import threading

from paceline.rewards.function import RewardContext
from paceline.rewards.maths.verdicts import math_verdicts
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring.scores import score
from tests.scripted import completion, task

HOSTILE = "9^{9^{9^{9}}}"


def endless(completions, **columns):
    threading.Event().wait()


async def endless_async(completions, **columns):
    await asyncio.Event().wait()


def test_reward_functions_that_never_return_have_failed_and_the_others_keep_their_rewards():
    functions = {"endless": endless, "endless_async": endless_async, "accuracy": resolve("accuracy", RewardContext())}
    scores = score(functions, [task("a")], [completion(r"\boxed{2}")], timeout=0.1)
    assert scores.values == {"endless": (None,), "endless_async": (None,), "accuracy": (1.0,)}
    assert all("--reward-timeout 0.1" in scores.first_failures[name] for name in ("endless", "endless_async"))


def test_answers_that_cannot_be_compared_in_time_are_wrong_and_do_not_hold_up_the_others():
    verdicts = math_verdicts([(HOSTILE, "9^{9^{9^{8}}}"), ("2(x+1)", "2x+2")])
    assert [verdict.equal for verdict in verdicts] == [False, True]
