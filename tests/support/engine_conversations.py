"""The other side of conversations that an engine samples in one call: what is asked next, when, and what came of it."""

from collections.abc import Callable, Sequence

import numpy as np

from paceline.engines import Engine, Finished, Request, Sampling, sample_key
from paceline.types import Completion

SAMPLING = Sampling(max_completion_length=80)
TURNS = 3
Place = tuple[int, int]
"""Request and sample, which name a conversation or a turn of it."""


def made_up(length: int, *seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng([length, *seed]).integers(0, 256, length).tolist())


def key(conversation: Place, turn: int) -> int:
    return sample_key(5, "test", str(conversation[0]), 0, conversation[1], turn)


def first_requests(lengths: Sequence[int], samples: int = 1) -> list[Request]:
    return [
        Request(
            prompt_ids=made_up(length, index),
            keys=tuple(key((index, sample), 0) for sample in range(samples)),
            limits=tuple(2 + (5 * index + 3 * sample) % 11 for sample in range(samples)),
        )
        for index, length in enumerate(lengths)
    ]


class Others:
    """The other side of conversations: it answers each turn but the last with as many tokens as it is told.

    `order` decides which of the answers that are ready are given at once: called with those that wait and with whether
    the engine waits. An answer that is held back is offered again.
    """

    def __init__(self, requests: Sequence[Request], *, observed=lambda conversation, turn: 2, turns=TURNS, order=None):
        self.requests, self.turns, self.observed = list(requests), turns, observed
        self.order = order or (lambda ready, wait: ready)
        self.conversation_of: dict[Place, Place] = {
            (index, sample): (index, sample)
            for index, request in enumerate(requests)
            for sample in range(len(request.keys))
        }
        self.places: dict[Place, list[Place]] = {one: [one] for one in self.conversation_of}
        self.ready: list[tuple[Place, Request]] = []
        self.open = len(self.places)

    def finished(self, one: Finished) -> bool:
        place = one.request, one.sample
        conversation = self.conversation_of[place]
        turn = len(self.places[conversation])
        if turn == self.turns:
            self.open -= 1
            return False
        observation = made_up(self.observed(conversation, turn), *conversation, turn)
        prompt = self.requests[one.request].prompt_ids + one.token_ids + observation
        limit = 2 + (conversation[0] + 7 * turn + conversation[1]) % 9
        media = self.requests[one.request].media
        asked = Request(
            prompt_ids=prompt, media=media, keys=(key(conversation, turn),), limits=(limit,), continues=place
        )
        self.ready.append((conversation, asked))
        return True

    def take(self, *, wait: bool) -> list[Request] | None:
        if not self.open:
            return None
        given = self.order(list(self.ready), wait)
        self.ready = [one for one in self.ready if one not in given]
        for conversation, request in given:
            place = (len(self.requests), 0)
            self.requests.append(request)
            self.conversation_of[place] = conversation
            self.places[conversation].append(place)
        assert given or not wait, "the engine would wait for ever"
        return [request for _, request in given]

    def turns_of(self, groups: Sequence[Sequence[Completion]]) -> dict[Place, list[Completion]]:
        return {one: [groups[at][sample] for at, sample in places] for one, places in self.places.items()}


def played(engine: Engine, others: Others, sampling=SAMPLING) -> dict[Place, list[Completion]]:
    first = [request for request in others.requests if request.continues is None]
    return others.turns_of(engine.generate(first, sampling, on_finished=others.finished, further=others))


def apart(engine: Engine, others: Others, sampling=SAMPLING) -> list[Completion]:
    """Each request that was asked, in a call of its own."""
    return [one for request in others.requests for one in engine.generate([request_alone(request)], sampling)[0]]


def request_alone(request: Request) -> Request:
    return Request(prompt_ids=request.prompt_ids, media=request.media, keys=request.keys, limits=request.limits)


def all_of(conversations: dict[Place, list[Completion]]) -> dict[Place, list[tuple[int, ...]]]:
    return {one: [turn.token_ids for turn in turns] for one, turns in conversations.items()}


def all_at_once(ready, wait):
    """Lock-step: nobody answers before everybody waits."""
    return ready if wait else []


def last_first(ready, wait):
    return ready[-1:] if wait else []


def two_in_five_steps() -> Callable:
    """Answers come while others sample, the latest first."""
    steps = iter(range(10**6))
    return lambda ready, wait: ready[-2:] if wait or next(steps) % 5 == 0 else []
