"""Ranks of a launch that answer what a script says, and remember what they were sent."""

from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any


class ScriptedChannels:
    """Channels to them, from the first rank."""

    def __init__(self, answers: dict[int, list[Any]]) -> None:
        """Answers by rank."""
        self.answers = {rank: deque(script) for rank, script in answers.items()}
        self.sent = defaultdict[int, list[Any]](list)
        self.told = defaultdict[int, list[Any]](list)
        self.messages = 0

    def send(self, ranks: Collection[int], message: Any) -> None:
        self.messages += 1
        for rank in ranks:
            self.sent[rank].append(message)

    def send_event(self, rank: int, message: Any) -> None:
        self.told[rank].append(message)

    def receive(self, rank: int) -> Any:
        found = self.answers[rank].popleft()
        if isinstance(found, Exception):
            raise found
        return found
