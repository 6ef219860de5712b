"""Law 7: whatever a step waits for has a deadline, and what runs over it is ended and named."""

import asyncio
import threading
import time

import pytest

from paceline.environments import AgentTurn, ToolCall
from paceline.environments.builtin.calculator import MOST_CHARACTERS
from paceline.environments.resolving import specs
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


LONG = "9" * 2000 + " -" * 200_000 + "1 2 " * 200_000
"""More than a conversation has room for: its numbers and signs are what the games look for."""


@pytest.mark.parametrize("address", ["calculator", "guess", "nim"])
def test_environments_without_a_deadline_answer_whatever_is_said_within_bounds(address):
    """They run in the engine's thread, which nothing but the watchdog could free."""
    (spec,) = specs([address]).values()
    assert spec.is_instant
    environment = spec.make()
    environment.begin({"messages": ({"role": "user", "content": LONG},)}, 2**31 - 1)
    calls = [
        ToolCall(name="calculator", arguments={"expression": text})
        for text in (LONG, LONG[-MOST_CHARACTERS:], "(" * MOST_CHARACTERS, HOSTILE.replace("{", "(").replace("}", ")"))
    ]
    turn = AgentTurn(number=0, text=LONG, content=LONG, calls=tuple(calls), finish_reason="length", is_last=False)
    began = time.process_time()
    environment.answer(turn)
    environment.close()
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("address", ["python", "search:{folder}", "tests.environments_for_tests:Silent"])
def test_every_other_environment_has_a_deadline(address, tmp_path):
    (tmp_path / "one.txt").write_text("one")
    (spec,) = specs([address.format(folder=tmp_path)], sandbox="none").values()
    assert not spec.is_instant
