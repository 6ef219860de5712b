"""Completions of conversations, written down turn by turn."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.types import Completion, Episode, FinishReason, Turn

Part = tuple[str | Sequence[int], str | Sequence[int]]
"""Sampled tokens of a turn, and the observed ones behind them; text stands for its characters."""


def ids(part: str | Sequence[int]) -> tuple[int, ...]:
    return tuple(map(ord, part)) if isinstance(part, str) else tuple(part)


def conversation(
    *parts: Part,
    contexts: Mapping[int, str | Sequence[int]] | None = None,
    rewards: Sequence[float | None] | None = None,
    logprobs: Sequence[float] | None = None,
    finish_reason: FinishReason = "stop",
    reward: float | None = None,
    failure: str | None = None,
) -> Completion:
    """A completion of as many turns; `contexts`: by turn, the whole context of one whose history was rewritten."""
    contexts = contexts or {}
    turns = tuple(
        Turn(
            sampled=len(sampled),
            observed=len(observed),
            finish_reason="stop",
            message={},
            prompt_ids=ids(contexts[at]) if at in contexts else None,
            reward=None if rewards is None else rewards[at],
        )
        for at, (sampled, observed) in enumerate(parts)
    )
    count = sum(turn.sampled for turn in turns)
    return Completion(
        token_ids=tuple(token for sampled, observed in parts for token in (*ids(sampled), *ids(observed))),
        logprobs=tuple(logprobs) if logprobs is not None else (-5.0,) * count,
        finish_reason=finish_reason,
        text="",
        policy_version=0,
        episode=Episode(
            environment="world",
            turns=turns,
            end="done" if failure is None else "failed",
            reward=reward,
            failure=failure,
        ),
    )


def branched(completion: Completion, prompt_ids: Sequence[int], turns: Sequence[int]) -> Completion:
    """The same conversation with these turns as branches, each with the context that it has anyway."""
    assert completion.episode is not None
    old, spans = completion.episode.turns, completion.sampled_spans
    token_ids, made = list[int](), list[Turn]()
    for at, (turn, (start, end)) in enumerate(zip(old, spans, strict=True)):
        own = turn.prompt_ids if at not in turns else (*prompt_ids, *completion.token_ids[:start])
        observed = 0 if at + 1 in turns else turn.observed
        made.append(replace(turn, prompt_ids=own, observed=observed))
        token_ids += completion.token_ids[start : end + observed]
    return replace(completion, token_ids=tuple(token_ids), episode=replace(completion.episode, turns=tuple(made)))


def random_conversation(
    chance: random.Random, *, most: int = 4, vocabulary: int = 256, prompt: Sequence[int] = ()
) -> Completion:
    """One to four turns of one to `most` tokens, with up to as many observed ones.

    Some turns are branches, of which most begin with the prompt.
    """

    def some(least: int) -> tuple[int, ...]:
        return tuple(chance.randrange(vocabulary) for _ in range(chance.randint(least, most)))

    count = chance.randint(1, 4)
    branches = [at for at in range(1, count) if chance.random() < 0.3]
    contexts = {at: (*(prompt if chance.random() < 0.7 else ()), *some(1)) for at in branches}
    parts = [(some(1), () if at + 1 in contexts or at + 1 == count else some(0)) for at in range(count)]
    return conversation(*parts, contexts=contexts)
