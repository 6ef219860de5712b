"""One episode: a loop of turns and observations, as every paper writes it.

`episode` is a coroutine that no event loop runs. It waits for three things, and whoever drives it resumes it with what
it waited for: `GroupBegun`, `NextTurn` and `EnvironmentCall`. An instant environment costs one resumption.

Below the coroutine: what a driver keeps of episodes under way, and the trajectories and tasks that they leave.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.environments import AgentTurn, Environment, EnvironmentSpec, Observation
from paceline.environments.hosting import Hosted
from paceline.episodes.chat import EpisodeChat, EpisodeFailure
from paceline.episodes.conversations import Conversations
from paceline.episodes.waits import EnvironmentCall, GroupBegun, NextTurn, Wait
from paceline.types import (
    UNKNOWN_ROUTE,
    Completion,
    EpisodeEnd,
    Span,
    Task,
    Trajectory,
    WeightChange,
    completed,
)

BEGIN_ATTEMPTS = 3
"""Attempts to begin an episode: nothing of it has been sampled, so another one begins alike."""


Running = Coroutine[Wait, Any, Trajectory]
"""An episode under way."""


async def episode(chat: EpisodeChat, environment: "EpisodeEnvironment | None") -> Trajectory:
    """Hold one conversation and return its trajectory, without what only the engine knows: logprobs, text, versions.

    A failure of the environment ends the episode, and nothing that failed is trained on. Without an environment there
    is one turn, the engine's completion with all that it has.

    Raises:
        ConfigError, ModelError: no episode of the run could be held, with this chat template or these tools.
    """
    if environment is None:
        return completed(chat.prompt_ids, await chat.next_turn(), chat.media)
    try:
        chat.begin(await environment.begin())
        chat.open(adds_to_prompt=await GroupBegun())
        end: EpisodeEnd | None = None
        while end is None:
            turn = chat.read(await chat.next_turn())  # text, thinking, calls
            if not chat.is_cut or chat.request is not None:  # a program learns of a turn that was cut
                chat.observe(*await environment.observe(turn))
                environment.check_seconds()
            end = chat.end or chat.append()  # or a branch, where history is rewritten
    except EpisodeFailure as failure:
        chat.failure = f"environment {environment.name!r} {failure}"
        end = "timed_out" if failure.timed_out else "failed"
    return chat.trajectory(end, await EnvironmentCall(method="close"))


class EpisodeEnvironment:
    """An episode's calls of its environment; raises EpisodeFailure where one fails or all take too long."""

    def __init__(self, spec: EnvironmentSpec, row: Mapping[str, Any], seed: int, most_seconds: float) -> None:
        """Take what the environment begins with, and the wall seconds that all calls may take together."""
        self.name, self.seconds = spec.name, 0.0
        self._row, self._seed, self._most_seconds = row, seed, most_seconds

    async def begin(self) -> Any:
        """Begin, with further attempts after a failure; returns what is added to the prompt, or a request."""
        for attempt in range(1, BEGIN_ATTEMPTS + 1):
            outcome = await EnvironmentCall(method="begin", arguments=(self._row, self._seed))
            self.seconds += outcome.seconds
            if outcome.failure is None:
                break
            if attempt == BEGIN_ATTEMPTS:
                raise EpisodeFailure(f"could not begin: {outcome.failure}", timed_out=outcome.timed_out)
        return outcome.value

    async def observe(self, turn: AgentTurn) -> tuple[Observation, float]:
        """Return what the environment says to a turn, and the wall seconds that it took."""
        outcome = await EnvironmentCall(method="observe", arguments=(turn,))
        self.seconds += outcome.seconds
        if outcome.failure is not None:
            raise EpisodeFailure(f"failed in turn {turn.number + 1}: {outcome.failure}", timed_out=outcome.timed_out)
        return outcome.value, outcome.seconds

    def check_seconds(self) -> None:
        """Refuse more than the seconds of an episode."""
        if self.seconds > self._most_seconds:
            raise EpisodeFailure(
                f"took more than the {self._most_seconds:g} seconds of an episode (--environment-timeout)",
                timed_out=True,
            )


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
