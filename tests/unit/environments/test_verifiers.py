"""Environments of verifiers: its own rollout asks the endpoint, and what it saw is what is recorded, token by token."""

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1", reason="`make test-adapters` installs verifiers")

from paceline.config.building import build_config, tasks_of
from paceline.data.sources import has_split, load_rows
from paceline.data.tasksets import open_environment
from paceline.engines import Request
from paceline.environments.hosting import Hosts
from paceline.environments.resolving import specs
from paceline.episodes.conversations import Conversations, EpisodeLimits
from paceline.episodes.driver import complete
from paceline.errors import ConfigError, DataError
from paceline.training.learner.samples import rows_of
from paceline.types import Completion, Rollout, RolloutGroup, Task
from tests.support.chat_families import tokenizer_of, turn_tokens
from tests.support.episodes import contexts_of
from tests.unit.training.test_conversations import DRAWS
from tests.unit.training.test_program_requests import SAMPLING, KeepingEngine, trained

TASKSETS = Path(__file__).parents[2] / "tasksets"
FAMILY = "qwen3"
"""Its template takes the thinking out of earlier turns."""
SECRET = 8  # of the game with the index 0, a number from 1 to 20


@pytest.fixture(autouse=True)
def tasksets(monkeypatch):
    """Tasksets as if they were installed, also for the servers that the package starts."""
    monkeypatch.syspath_prepend(TASKSETS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TASKSETS), *filter(None, sys.path)]))


@dataclass
class ThinkingEngine(KeepingEngine):
    """Samples in the vocabulary of the family."""

    def _completion(self, request: Request, at: int, limit: int) -> Completion:
        tokenizer = tokenizer_of(FAMILY)
        ids = tokenizer(self.script(request, at), add_special_tokens=False)["input_ids"]
        tokens = (*ids, tokenizer.eos_token_id)[:limit]
        self.sampled.append((request.prompt_ids, tokens))
        text = tokenizer.decode(list(tokens), skip_special_tokens=True)
        logprobs = (-0.5,) * len(tokens)
        return Completion(
            token_ids=tokens, logprobs=logprobs, finish_reason="stop", text=text, policy_version=0
        )  # fmt: skip


def number_of(request: Request) -> int:
    """Turns of the model that the prompt of a request holds."""
    return (list(request.prompt_ids).count(tokenizer_of(FAMILY).eos_token_id) - 1) // 2


def played(address, engine, *, history="auto", turns=None):
    """Play the taskset's first task, twice, in processes; return the completions and the number of rows of each."""
    (spec,) = specs([address]).values()
    tokens = turn_tokens(FAMILY, has_tools=False, history=history)
    limits = EpisodeLimits(
        turns=turns, turn_tokens=None, message_tokens=None, prompt_tokens=900, episode_seconds=300.0
    )  # fmt: skip
    hosts = Hosts(step_seconds=120)
    conversations = Conversations(specs={spec.name: spec}, tokens={spec.name: tokens}, hosts=hosts, limits=limits)
    asked = ({"role": "user", "content": "Play."},)
    prompt_ids = tokens.whole(asked)
    task = Task(task_id="t", prompt="", prompt_ids=prompt_ids, messages=asked, answer=None, columns={"index": 0})
    with hosts:
        (completed,) = complete(engine, [(task, 0)], SAMPLING, DRAWS, conversations)
    assert trained([(completed.task, completed.trajectories)]) == Counter(engine.sampled)
    rollouts = tuple(Rollout(trajectory=one, rewards={}, reward=1.0, advantage=1.0) for one in completed.trajectories)
    rows = rows_of([RolloutGroup(task=completed.task, rollouts=rollouts)], [rollouts])
    return completed.trajectories, [len(of_rollout) for of_rollout in rows]


def halving(request: Request, at: int) -> str:
    """Think, and guess 10, 5 and then the secret."""
    return f"<think>\nhalf of it\n</think>\n\n{(10, 5, SECRET)[min(number_of(request), 2)]}"


@pytest.mark.parametrize(("history", "rows"), [("append", 1), ("branch", 3)])
def test_the_rollout_saw_the_ids_that_are_recorded(tmp_path, monkeypatch, history, rows):
    # with the thinking of earlier turns kept the episode is one training sequence, without it one for each turn
    seen, engine = tmp_path / "seen", ThinkingEngine(halving)
    monkeypatch.setenv("PACELINE_TEST_SEEN", str(seen))
    completions, counts = played("verifiers:guess_game", engine, history=history)
    pairs = [tuple(map(tuple, json.loads(line))) for line in seen.read_text().splitlines()]
    assert Counter(pairs) == Counter(engine.sampled)
    assert len(pairs) == 2 * 3
    assert counts == [rows, rows]
    for one in completions:
        assert (one.failure, one.end, one.reward) == (None, "done", 1.0)
        assert [context is not None for context in contexts_of(one)] == [False, *[history == "branch"] * 2]
    read = [tokenizer_of(FAMILY).decode(list(context)) for context, _ in engine.sampled]
    assert all("Guess a number from 1 to 20." in text for text in read)
    assert any("half of it" in text for text in read) == (history == "append")


def test_at_the_runs_limit_a_program_that_ends_is_rewarded_for_what_there_is():
    completions, _ = played("verifiers:guess_game", ThinkingEngine(lambda request, at: "10"), turns=2)
    assert [(one.end, one.reward) for one in completions] == [("max_turns", 0.0)] * 2


def test_at_the_runs_limit_a_program_that_dies_has_no_reward():
    address = "verifiers:guess_game(agent.harness.id=guess_game, agent.harness.dies=true)"
    completions, _ = played(address, ThinkingEngine(lambda request, at: "10"), turns=2)
    found = [(one.end, one.reward, one.failure) for one in completions]
    assert found == [("max_turns", None, None)] * 2


def test_the_packages_own_limit_ends_the_rollout_and_its_rubric_judges():
    address = "verifiers:guess_game(agent.max_turns=1)"
    completions, _ = played(address, ThinkingEngine(lambda request, at: "10"))
    assert [(len(one.turns), one.end, one.reward) for one in completions] == [(1, "done", 0.0)] * 2


def test_the_packages_own_program_calls_the_taskset_s_tools():
    def calling(request: Request, at: int) -> str:
        call = '<tool_call>\n{"name": "doubling_double", "arguments": {"number": 21}}\n</tool_call>'
        return "It is 42." if "tool_response" in tokenizer_of(FAMILY).decode(list(request.prompt_ids[-60:])) else call

    engine = ThinkingEngine(calling)
    completions, _ = played("verifiers:doubling", engine)
    for one in completions:
        assert (one.failure, len(one.turns), one.reward) == (None, 2, 2.0)
        assert one.turns[0].calls == 1
    first, *_, last = sorted((tokenizer_of(FAMILY).decode(list(context)) for context, _ in engine.sampled), key=len)
    assert "Use the tool." in first
    assert "Double a number." in first
    assert "<tool_response>\n42\n</tool_response>" in last


def test_a_rollout_that_fails_names_the_error():
    # the row's task is not there
    engine = ThinkingEngine(lambda request, at: "10")
    completions, _ = played("verifiers:guess_game(games=0)", engine)
    for one in completions:
        assert one.failure == (
            "environment 'guess_game' could not begin: the taskset has no task 0, which the row's column 'index' names"
        )


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("guess_gam", "it cannot be loaded (ModuleNotFoundError: taskset 'guess_gam' not found"),
        ("guess_game(levels=3)", "levels"),
        ("guess_game(agent.max_turns=many)", "max_turns"),
        ("doubling(agent.harness.id=bash)", "the program `bash` would run the model's commands on this machine"),
        ("doubling(agent.harness.id=codex)", "needs a container runtime"),
        ("debating", "it has the seats one, other, and one model is trained"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_the_run_begins(address, refusal):
    (spec,) = specs([f"verifiers:{address}"]).values()
    with pytest.raises(ConfigError) as caught:
        spec.check()
    assert str(caught.value).startswith(f"--environment verifiers:{address}: ")
    assert refusal in str(caught.value)
    with pytest.raises(DataError, match=r"--dataset verifiers:"):
        load_rows(f"verifiers:{address}", split="train", size=1)


def test_options_are_the_tasksets_own_or_with_dots_the_environments():
    options = {"games": 3, "agent.max_turns": 2, "timeout.episode": 60}
    environment = open_environment("guess_game", options)
    config = environment.config
    assert (config.taskset.games, config.agent.max_turns, config.timeout.episode) == (3, 2, 60.0)
    assert config.agent.runtime.type == "subprocess"
    assert config.agent_harnesses()["agent"].id == "guess_game"  # that of the taskset
    assert open_environment("doubling", {}).config.agent.harness.id == "null"


def test_every_task_is_a_row_of_one_split():
    train, test = (load_rows("verifiers:guess_game", split=split, size=None) for split in ("train", "test"))
    indexes = [row.columns["index"] for row in (*train, *test)]
    assert sorted(indexes) == list(range(40))
    assert min(len(train), len(test)) >= 10
    for row in (*train, *test):
        low = row.columns["index"] + 1
        assert row.columns["question"] == f"Guess a number from {low} to {low + 19}."
    assert [row.columns for row in load_rows("verifiers:guess_game", split="train", size=2)] == [
        row.columns for row in train[:2]
    ]
    assert has_split("verifiers:guess_game", "test")


def test_the_environment_brings_its_dataset():
    given = {"model": "m", "max_steps": 1, "output_dir": "o", "environment": ["verifiers:guess_game(games=9)"]}
    assert build_config(given).data.dataset == "verifiers:guess_game(games=9)"
    assert tasks_of("verifiers") is None
