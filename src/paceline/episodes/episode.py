"""One episode: a loop of turns and observations, as every paper writes it.

`episode` is a coroutine that no event loop runs. It waits for three things, and whoever drives it resumes it with what
it waited for: `GroupBegun`, `NextTurn` and `EnvironmentCall`. An instant environment costs one resumption.
"""

from collections.abc import Coroutine, Mapping
from typing import Any

from paceline.environments import AgentTurn, EnvironmentSpec, Observation
from paceline.episodes.chat import EpisodeChat, EpisodeFailure
from paceline.episodes.waits import EnvironmentCall, GroupBegun, Wait
from paceline.types import EpisodeEnd, Trajectory, completed

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
        return completed(chat.prompt_ids, await chat.next_turn())
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
