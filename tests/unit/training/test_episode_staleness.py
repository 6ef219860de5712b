"""Newer weights in a conversation: the record names the first token of theirs, and no cache is used behind its back."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from paceline.chat.turns import TurnTokens
from paceline.engines import Request, Sampling
from paceline.engines.local.engine import LocalEngine
from paceline.environments import AgentTurn, EnvironmentSpec, Observation
from paceline.environments.hosting import Hosts
from paceline.episodes.conversations import Conversations, Draws, EpisodeLimits
from paceline.episodes.driver import complete
from paceline.training.rollouts.records import staleness_metrics
from paceline.types import Completion, Rollout, RolloutGroup, Task, Trajectory, WeightChange
from tests.support.episodes import conversation
from tests.support.tiny import tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
OLD, NEW = 4, 7
"""Versions."""
TURNS, LENGTH = 3, 6
"""Turns of a conversation, and sampled tokens of each."""
QUESTION = ({"role": "user", "content": "A long question, that it pays to keep what was read of it. " * 3},)
PROMPT = TOKENIZER.apply_chat_template(list(QUESTION), tokenize=False, add_generation_prompt=True)
TASK = Task(
    task_id="t",
    prompt=PROMPT,
    prompt_ids=tuple(TOKENIZER(PROMPT, add_special_tokens=False)["input_ids"]),
    messages=QUESTION,
    answer=None,
)


@dataclass
class Publishing:
    """An environment whose first answer takes so long that newer weights arrive."""

    published: list[int]

    def begin(self, task: Mapping[str, Any], seed: int) -> None:
        return None

    def observe(self, turn: AgentTurn) -> Observation:
        if turn.number == 0:
            self.published.append(NEW)
        return Observation(messages=({"role": "user", "content": "on"},))

    def close(self) -> None:
        return None


def held(engine: Any, published: list[int]) -> Trajectory:
    """One conversation by an engine."""
    spec = EnvironmentSpec(name="publishing", make=lambda: Publishing(published), is_instant=True)
    conversations = Conversations(
        specs={"publishing": spec},
        tokens={"publishing": TurnTokens(TOKENIZER, stop_ids=frozenset({258}))},
        hosts=Hosts(step_seconds=5.0),
        limits=EpisodeLimits(
            turns=TURNS, turn_tokens=LENGTH, message_tokens=None, prompt_tokens=400, episode_seconds=50.0
        ),
    )
    draws = Draws(seed=7, purpose="train", num_generations=1)
    with conversations.hosts:
        (found,) = complete(engine, [(TASK, 0)], Sampling(max_completion_length=300), draws, conversations)
    return found.trajectories[0]


def staleness(trajectory: Trajectory, policy_version: int) -> dict[str, float | int]:
    rollout = Rollout(trajectory=trajectory, rewards={}, reward=1.0, advantage=1.0)
    return staleness_metrics([RolloutGroup(task=TASK, rollouts=(rollout,))], policy_version=policy_version)


@dataclass
class VersionedEngine:
    """Samples six tokens a turn by weights of the scripted versions."""

    script: Sequence[tuple[int, tuple[WeightChange, ...]]]
    takes_further: bool = False
    asked: list[Request] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], sampling: Sampling, **others: Any) -> list[tuple[Completion, ...]]:
        version, changes = self.script[len(self.asked)]
        self.asked += requests
        one = Completion(
            token_ids=tuple(b"answer"),
            logprobs=(-1.0,) * LENGTH,
            finish_reason="length",
            text="answer",
            policy_version=version,
            weight_changes=changes,
        )
        return [(one,) for _ in requests]


@pytest.mark.parametrize(
    ("script", "changes", "mean"),
    [
        # all of one version, which training is 10 - 4 updates beyond
        ([(4, ()), (4, ()), (4, ())], (), 6.0),
        # between turns: the first token of the second one is number 6; ages 6, 3 and 3
        ([(4, ()), (7, ()), (7, ())], (WeightChange(token=6, policy_version=7),), 4.0),
        # within the first turn, before the second, before the third and within it: ages 6, 5, 3, 2 and 1
        (
            [
                (4, (WeightChange(token=2, policy_version=5),)),
                (7, ()),
                (8, (WeightChange(token=1, policy_version=9),)),
            ],
            (
                WeightChange(token=2, policy_version=5),
                WeightChange(token=6, policy_version=7),
                WeightChange(token=12, policy_version=8),
                WeightChange(token=13, policy_version=9),
            ),
            (2 * 6 + 4 * 5 + 6 * 3 + 1 * 2 + 5 * 1) / 18,
        ),
    ],
)
def test_weights_between_and_within_turns_show_at_the_right_token(script, changes, mean):
    completion = held(VersionedEngine(script), [])
    assert (completion.policy_version, completion.weight_changes) == (4, changes)
    # the age of a conversation is that of its oldest token, however new its last ones are
    assert staleness(completion, 10) == {"staleness_mean": pytest.approx(mean), "staleness_max": 6}


def local_engine(model: Any, published: list[int], new: Any, **more: Any) -> LocalEngine:
    """An engine on `model` that takes the weights of `new` once they are published."""

    def take_newer() -> int | None:
        if not published:
            return None
        model.load_state_dict(new.state_dict())
        return published.pop()

    engine = LocalEngine(
        model,
        TOKENIZER,
        concurrent_sequences=4,
        compute_dtype=torch.float32,
        eos_token_ids=frozenset(),
        take_newer=take_newer,
        **more,
    )
    engine.take_weights(OLD)
    return engine


@torch.no_grad()
def logprobs_of_turn(model: Any, trajectory: Trajectory, number: int) -> list[float]:
    """Logprobs of a turn's tokens where all that stands before them was read by the same weights."""
    turns = [at for at, span in enumerate(trajectory.spans) if span.by == "policy"]
    spans = trajectory.spans[: turns[number] + 1]
    every = [token for span in spans for token in span.tokens]
    logits = model(torch.tensor([every])).logits[0].log_softmax(-1)
    first = len(every) - len(spans[-1].tokens)
    return [float(logits[at - 1, every[at]]) for at in range(first, len(every))]


@pytest.mark.parametrize("kept", [True, False], ids=["the cache is kept", "there is no room for it"])
def test_a_turn_behind_newer_weights_is_theirs_and_an_older_cache_shows_in_the_record(kept):
    old, new, published = tiny_model(), tiny_model(seed=1), list[int]()
    engine = local_engine(copy.deepcopy(old), published, new, **({} if kept else {"parked_bytes": 0}))
    completion = held(engine, published)
    assert completion.weight_changes == (WeightChange(token=LENGTH, policy_version=NEW),)
    by_turn = [completion.logprobs[LENGTH * turn : LENGTH * (turn + 1)] for turn in range(TURNS)]
    assert by_turn[0] == pytest.approx(logprobs_of_turn(old, completion, 0), abs=2e-5)
    for turn in (1, 2):
        anew = logprobs_of_turn(new, completion, turn)
        assert (by_turn[turn] == pytest.approx(anew, abs=2e-5)) is not kept


def test_a_conversation_that_could_not_begin_is_not_stale():
    nothing = conversation(failure="environment 'world' could not begin: no room")
    sampled = replace(conversation(("one", "")), policy_version=9)
    for completions, expected in (((nothing, sampled), 1), ((nothing,), 0)):
        rollouts = tuple(Rollout(trajectory=one, rewards={}, reward=None, advantage=0.0) for one in completions)
        found = staleness_metrics([RolloutGroup(task=TASK, rollouts=rollouts)], policy_version=10)
        assert found == {"staleness_mean": expected, "staleness_max": expected}


def test_no_cache_outlives_its_call():
    old, new = tiny_model(), tiny_model(seed=1)
    sampled = copy.deepcopy(old)
    engine = local_engine(sampled, [], new)
    held(engine, [])
    sampled.load_state_dict(new.state_dict())
    engine.take_weights(NEW)
    completion = held(engine, [])
    assert (completion.policy_version, completion.weight_changes) == (NEW, ())
    for turn in range(TURNS):
        own = completion.logprobs[LENGTH * turn : LENGTH * (turn + 1)]
        assert own == pytest.approx(logprobs_of_turn(new, completion, turn), abs=2e-5)
