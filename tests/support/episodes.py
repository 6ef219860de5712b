"""Trajectories and rows to train on, written down turn by turn."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from paceline.objective.micro_batches import Sample
from paceline.types import FinishReason, Span, Trajectory, Turn

Part = tuple[str | Sequence[int], str | Sequence[int]]
"""Sampled tokens of a turn, and the observed ones behind them; text stands for its characters."""
PROMPT = "ask"


def ids(part: str | Sequence[int]) -> tuple[int, ...]:
    return tuple(map(ord, part)) if isinstance(part, str) else tuple(part)


def conversation(
    *parts: Part,
    prompt: str | Sequence[int] = PROMPT,
    contexts: Mapping[int, str | Sequence[int]] | None = None,
    rewards: Sequence[float | None] | None = None,
    logprobs: Sequence[float] | None = None,
    finish_reason: FinishReason = "stop",
    reward: float | None = None,
    failure: str | None = None,
) -> Trajectory:
    """An episode of as many turns; `contexts`: by turn, the whole context of one whose history was rewritten."""
    contexts = contexts or {}
    values = list(logprobs) if logprobs is not None else [-5.0] * sum(len(sampled) for sampled, _ in parts)
    spans = [Span(by="prompt", tokens=ids(contexts.get(0, prompt)))]
    for turn, (sampled, observed) in enumerate(parts):
        if turn and turn in contexts:
            spans.append(Span(by="prompt", tokens=ids(contexts[turn])))
        own, values = values[: len(sampled)], values[len(sampled) :]
        spans.append(Span(by="policy", tokens=ids(sampled), logprobs=tuple(own)))
        if observed:
            spans.append(Span(by="environment", tokens=ids(observed)))
    given = rewards or [None] * len(parts)
    return Trajectory(
        spans=tuple(spans),
        finish_reason=finish_reason,
        text="",
        policy_version=0,
        environment="world",
        turns=tuple(Turn(finish_reason="stop", message={}, reward=value) for value in given),
        end="done" if failure is None else "failed",
        reward=reward,
        failure=failure,
    )


def branched(trajectory: Trajectory, turns: Sequence[int]) -> Trajectory:
    """The same conversation with these turns as branches, each with the context that it has anyway."""
    spans, context, turn = list[Span](), list[int](), 0
    for span in trajectory.spans:
        if span.by == "prompt":
            context = []
        elif span.by == "policy":
            if turn in turns:
                if spans[-1].by == "environment":
                    spans.pop()
                spans.append(Span(by="prompt", tokens=tuple(context)))
            turn += 1
        spans.append(span)
        context += span.tokens
    return replace(trajectory, spans=tuple(spans))


def contexts_of(trajectory: Trajectory) -> list[tuple[int, ...] | None]:
    """By turn, the whole context where the history was rewritten before it; None: it goes on from the turn before."""
    before = [span for span in trajectory.spans if span.by != "environment"]
    return [
        first.tokens if first.by == "prompt" and at else None
        for at, (first, second) in enumerate(pairwise(before))
        if second.by == "policy"
    ]


def random_conversation(
    chance: random.Random, *, most: int = 4, vocabulary: int = 256, prompt: Sequence[int] = ()
) -> Trajectory:
    """One to four turns of one to `most` tokens, with up to as many observed ones.

    Some turns are branches, of which most begin with the prompt.
    """

    def some(least: int) -> tuple[int, ...]:
        return tuple(chance.randrange(vocabulary) for _ in range(chance.randint(least, most)))

    count = chance.randint(1, 4)
    branches = [at for at in range(1, count) if chance.random() < 0.3]
    contexts = {at: (*(prompt if chance.random() < 0.7 else ()), *some(1)) for at in branches}
    parts = [(some(1), () if at + 1 in contexts or at + 1 == count else some(0)) for at in range(count)]
    return conversation(*parts, prompt=prompt, contexts=contexts)


def sample(
    *,
    prompt_ids: str | Sequence[int],
    completion_ids: str | Sequence[int],
    group: int = 0,
    logprobs: Sequence[float] | None = None,
    advantage: float = 1.0,
    runs: Sequence[tuple[int, int]] | None = None,
    advantages: Sequence[float] | None = None,
    prompt: int = 0,
    completion: int | None = None,
    turns: tuple[int, ...] | None = None,
) -> Sample:
    """A row; `runs`: start and end of what was sampled behind the prompt, by default all of it."""
    tokens, runs = ids(completion_ids), [(0, len(completion_ids))] if runs is None else runs
    values = list(logprobs) if logprobs is not None else [0.0] * sum(end - start for start, end in runs)
    spans, last = list[Span](), 0
    for start, end in runs:
        if start > last:
            spans.append(Span(by="environment", tokens=tokens[last:start]))
        own, values = values[: end - start], values[end - start :]
        spans.append(Span(by="policy", tokens=tokens[start:end], logprobs=tuple(own)))
        last = end
    return Sample(
        group=group,
        prompt=prompt,
        prompt_ids=ids(prompt_ids),
        spans=tuple(spans),
        advantages=tuple(advantages) if advantages is not None else (advantage,) * len(runs),
        completion=completion,
        turns=turns,
    )
