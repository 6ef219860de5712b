"""Law 7: whatever a step waits for has a deadline, and what runs over it is ended and named."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from paceline.config.objective import AdvantageConfig
from paceline.environments import AgentTurn, EnvironmentSpec, ToolCall
from paceline.environments.builtin.calculator import MOST_CHARACTERS
from paceline.environments.hosting import Hosts
from paceline.environments.resolving import specs
from paceline.errors import TrainingError
from paceline.rewards.function import RewardContext
from paceline.rewards.maths.verdicts import math_verdicts
from paceline.rewards.resolving import resolve
from paceline.rewards.scoring.scores import score
from paceline.training.rollouts.rounds import EngineSampler
from paceline.training.rollouts.sampler import Sampler
from tests.support.environments_for_tests import Hanging
from tests.support.scripted import task, trajectory
from tests.unit.training.test_conversations import SAMPLING, DictatedEngine, conversations, said
from tests.unit.training.test_conversations import task as asked

HOSTILE = "9^{9^{9^{9}}}"


def endless(completions, **columns):
    threading.Event().wait()


async def endless_async(completions, **columns):
    await asyncio.Event().wait()


def test_reward_functions_that_never_return_have_failed_and_the_others_keep_their_rewards():
    functions = {"endless": endless, "endless_async": endless_async, "accuracy": resolve("accuracy", RewardContext())}
    scores = score(functions, [task("a")], [trajectory(r"\boxed{2}")], timeout=0.1)
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
    environment.observe(turn)
    environment.close()
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("address", ["python", "search:{folder}", "tests.support.environments_for_tests:Silent"])
def test_every_other_environment_has_a_deadline(address, tmp_path):
    (tmp_path / "one.txt").write_text("one")
    (spec,) = specs([address.format(folder=tmp_path)], sandbox="none").values()
    assert not spec.is_instant


OBSERVATION_SECONDS = 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("method", "attempts"), [("begin", 3), ("observe", 1), ("close", 1)])
@pytest.mark.parametrize("place", ["here", "own process"])
def test_a_step_whose_environments_all_hang_ends_at_the_limit_of_one_with_its_cause(place, method, attempts):
    """However many there are: waited for one after another, the 32 episodes would take 16 seconds and more."""
    spec = EnvironmentSpec(
        name="world",
        make=lambda: Hanging(method),
        address="tests.support.environments_for_tests:Hanging",
        arguments={"method": method},
        own_process=place == "own process",
        has_reward=True,
    )
    held_by = replace(conversations(spec, turns=2), hosts=Hosts(step_seconds=OBSERVATION_SECONDS))
    rounds = EngineSampler(
        engine=DictatedEngine(said),
        functions={},
        sampling=SAMPLING,
        num_generations=8,
        advantage=AdvantageConfig(),
        reward_timeout=1.0,
        seed=0,
        conversations=held_by,
    )
    sampler = Sampler(
        rounds=rounds,
        weights={"world": 1.0},
        advantage=AdvantageConfig(),
        max_completion_length=200,
        max_failure_rate=0.0,
    )
    drawn = [(asked(str(number)), 0) for number in range(4)]
    cause = "environment 'world' failed on 32 of 32 completions .*the first failure: environment 'world' .*"
    began = time.monotonic()
    with held_by.hosts, pytest.raises(TrainingError, match=f"^{cause}it took more than 0.5 seconds"):
        sampler.sample(lambda count: drawn, 4)
    assert attempts * OBSERVATION_SECONDS <= time.monotonic() - began < 12
