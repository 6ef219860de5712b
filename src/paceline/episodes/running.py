"""Episodes under way, and the trajectories and tasks that they leave."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from paceline.environments import Environment, EnvironmentSpec
from paceline.environments.hosting import Hosted
from paceline.episodes.chat import EpisodeChat
from paceline.episodes.conversations import Conversations
from paceline.episodes.episode import Running
from paceline.episodes.waits import NextTurn
from paceline.types import UNKNOWN_ROUTE, Completion, Span, Task, Trajectory, WeightChange


class RunningEpisode:
    """An episode under way: its coroutine, its environment, and where the engine has its latest turn."""

    def __init__(self, group: "RunningGroup", sample: int, chat: EpisodeChat, running: Running) -> None:
        self.group, self.sample, self.chat, self.running = group, sample, chat, running
        self.spec = group.spec
        self.hosted: Hosted | None = None
        self.environment: Environment | None = None
        """The environment itself, where it lives in this process."""
        self._reserved: Callable[[], Environment] | None = None
        self.is_beginning, self.is_open = True, True
        """True until it has begun, and until it has ended; its environment may be closed later."""
        self.turn_at = (0, 0)
        """Index of the engine's request of the latest turn, and of the completion within it."""
        self.completions: list[Completion] = []
        """What the engine sampled for each turn; empty without an environment, where the trajectory has it."""
        self.trajectory: Trajectory | None = None

    def host(self, spec: EnvironmentSpec, conversations: Conversations) -> None:
        """Give the environment to a host, which makes it there, anew for each attempt to begin."""
        reserved: Environment | None = None
        if spec.reserve is not None:
            self._reserved = self._reserved or spec.reserve()
            reserved = self._reserved()
        self.environment, self.hosted = None, conversations.hosts.open(spec, partial(self._made, spec, reserved))

    def _made(self, spec: EnvironmentSpec, reserved: Environment | None) -> Environment:
        self.environment = spec.make() if reserved is None else reserved
        return self.environment


class RunningGroup:
    """A task with its episodes, which begin together: they share a prompt where they begin alike."""

    def __init__(self, number: int, task: Task, occurrence: int, spec: EnvironmentSpec | None) -> None:
        self.number, self.task, self.occurrence, self.spec = number, task, occurrence, spec
        self.episodes: list[RunningEpisode] = []
        self.beginning = 0
        """Episodes that have not begun yet."""
        self.begun: list[RunningEpisode] = []
        """Episodes that wait for these."""
        self.first_turns: list[tuple[RunningEpisode, NextTurn]] = []


def task_of(running: RunningEpisode) -> Task:
    """Return the task as an episode began it: siblings may begin in different ways."""
    task, chat = running.group.task, running.chat
    if chat.opening is None or chat.opening == task.messages:
        return task
    return replace(task, prompt=chat.prompt, prompt_ids=chat.prompt_ids, messages=chat.opening)


def _with_routes(spans: list[Span], completions: Sequence[Completion]) -> list[Span]:
    """Return the spans with what their turns' engine noted of routes.

    A token keeps the routes that it was sampled or first read with; a later request's prompt gives those that are not
    known yet.
    """
    width = next((len(c.routes) // len(c.token_ids) for c in completions if c.routes), 0)
    if not width:
        return spans
    routes, row, turns = list[bytearray](), list[int](), iter(completions)
    for number, span in enumerate(spans):
        row = [number] if span.by == "prompt" else [*row, number]
        routes.append(bytearray(UNKNOWN_ROUTE * (width * len(span.tokens))))
        if span.by != "policy":
            continue
        turn, start = next(turns), 0
        routes[number][:] = turn.routes or routes[number]
        for earlier in row[:-1]:  # the turn's prompt
            known = routes[earlier]
            read = turn.prompt_routes[start : start + len(known)]
            start += len(known)
            for at in range(0, len(read), width):
                if not known[at : at + width].strip(UNKNOWN_ROUTE):
                    known[at : at + width] = read[at : at + width]
    return [replace(span, routes=bytes(of_span)) for span, of_span in zip(spans, routes, strict=True)]


def with_samples(running: RunningEpisode) -> Trajectory:
    """Return an episode's trajectory with what the engine sampled for each of its turns."""
    trajectory, completions = running.trajectory, running.completions
    assert trajectory is not None
    if not completions:
        return trajectory  # whole already, or it failed before the model had a turn
    first, changes, length = completions[0], list[WeightChange](), 0
    version = first.policy_version
    for completion in completions:
        if completion.policy_version != version:
            changes.append(WeightChange(token=length, policy_version=completion.policy_version))
        changes += [replace(change, token=length + change.token) for change in completion.weight_changes]
        version = (
            completion.weight_changes[-1].policy_version if completion.weight_changes else completion.policy_version
        )
        length += len(completion.token_ids)
    sampled = iter(completions)
    spans = [
        replace(span, logprobs=next(sampled).logprobs) if span.by == "policy" else span for span in trajectory.spans
    ]
    return replace(
        trajectory,
        spans=tuple(_with_routes(spans, completions)),
        text="\n".join(completion.text for completion in completions),
        policy_version=first.policy_version,
        weight_changes=tuple(changes),
    )
