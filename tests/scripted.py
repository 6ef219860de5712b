"""Scripted stand-ins at the borders: an engine that says what it is told, tasks made of plain text."""

from collections.abc import Sequence

from paceline.engines import Request, Sampling
from paceline.types import Completion, Task


def task(task_id: str, *, prompt: str = "1 + 1 =", answer: str | None = "2") -> Task:
    return Task(task_id=task_id, prompt=prompt, prompt_ids=tuple(prompt.encode()), answer=answer)


def completion(text: str, *, finish_reason: str = "stop") -> Completion:
    token_ids = tuple(text.encode()) or (0,)
    return Completion(
        token_ids=token_ids,
        logprobs=(-1.0,) * len(token_ids),
        finish_reason=finish_reason,
        text=text,
        policy_version=0,
    )


class ScriptedEngine:
    """Gives each prompt, in order, the completions written for it, and remembers what it was asked."""

    def __init__(self, script: Sequence[Sequence[Completion]]) -> None:
        self._script = [tuple(group) for group in script]
        self.requests: list[Request] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        self.requests.extend(requests)
        return self._script[: len(requests)]
