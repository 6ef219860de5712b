"""Conversations over images: those of the row's prompt stay where they are, and nothing may write that prompt anew."""

from dataclasses import replace

import pytest

from paceline.chat.turns import TurnTokens
from paceline.episodes.conversations import Conversations
from paceline.errors import ConfigError
from paceline.training.learner.samples import samples_of
from paceline.types import Media, RolloutGroup, Span
from tests.support.episodes import conversation
from tests.support.scripted import completion
from tests.support.scripted import task as plain_task
from tests.unit.training.test_conversations import (
    END,
    TOKENIZER,
    DictatedEngine,
    conversations,
    counting,
    held,
    said,
    task,
)

IMAGE = Media(sha256="ab" * 32, start=1, length=2)


def seen_task():
    return replace(task(), media=(IMAGE,))


def test_every_turn_is_asked_with_the_images_of_the_rows_prompt():
    engine = DictatedEngine(said)
    ((_, group),) = held(engine, conversations(counting()), seen_task())
    assert len(engine.requests) == 1 + 2 * 2
    assert {request.media for request in engine.requests} == {(IMAGE,)}
    for trajectory in group:
        assert [span.media for span in trajectory.spans] == [(IMAGE,), *[()] * (len(trajectory.spans) - 1)]


def test_an_environment_that_adds_to_a_prompt_with_images_is_refused():
    with pytest.raises(ConfigError, match="'counting' adds to the prompt of a row that has images"):
        held(DictatedEngine(said), conversations(counting(opening="seed {seed}")), seen_task())


def test_a_history_that_is_written_anew_is_refused_where_the_prompt_has_images():
    spec = counting()
    tokens = TurnTokens(TOKENIZER, stop_ids=frozenset({END}), history="branch")
    tokens.rewritten = lambda context, observed, messages: tokens.whole(messages)[1:]
    plain = conversations(spec)
    branching = Conversations(specs=plain.specs, tokens={spec.name: tokens}, hosts=plain.hosts, limits=plain.limits)
    with pytest.raises(
        ConfigError, match=r"'counting' and the chat template write earlier turns anew.*--history append"
    ):
        held(DictatedEngine(said), branching, seen_task())


def test_a_row_of_an_episode_that_ended_before_its_first_turn_keeps_the_groups_images():
    # rows of one prompt share what the first of them says of it
    silent = replace(conversation(("ab", "")), spans=(Span(by="prompt", tokens=(1, 2, 3), media=(IMAGE,)),))
    with_image = replace(plain_task("0"), prompt_ids=(1, 2, 3), media=(IMAGE,))
    from paceline.types import Rollout, completed

    spoke = completed((1, 2, 3), completion("x"), (IMAGE,))
    rollouts = tuple(Rollout(trajectory=one, rewards={}, reward=1.0, advantage=1.0) for one in (silent, spoke))
    samples = samples_of([RolloutGroup(task=with_image, rollouts=rollouts)])
    assert [sample.prompt_media for sample in samples] == [(IMAGE,), (IMAGE,)]
