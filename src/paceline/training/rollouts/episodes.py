"""An episode while it is under way, and the completion that it becomes."""

import queue
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.chat.escaping import PlainText
from paceline.environments import Environment, EnvironmentSpec, ModelRequest
from paceline.environments.hosting import Hosted, Hosts, Outcome
from paceline.environments.hosting.results import Method
from paceline.errors import TrainingError
from paceline.types import Completion, Episode, EpisodeEnd, Message, Task, Turn, WeightChange

OnAnswer = Callable[["RunningEpisode", Outcome], None]

NOTHING = Completion(token_ids=(), logprobs=(), finish_reason="stop", text="", policy_version=0)
"""What an episode holds that could not begin."""


class RunningEpisode:
    """A completion under way."""

    def __init__(self, group: "RunningGroup", sample: int, spec: EnvironmentSpec | None) -> None:
        self.group, self.sample, self.spec = group, sample, spec
        self.hosted: Hosted | None = None
        self.environment: Environment | None = None
        """The environment itself, where it lives in this process."""
        self._reserved: Callable[[], Environment] | None = None
        self.attempts = 0
        self.prompt, self.prompt_ids = group.task.prompt, group.task.prompt_ids
        self.messages: tuple[Message, ...] = group.task.messages or ()
        """Messages up to now, those of the prompt included."""
        self.held: tuple[int, ...] = self.prompt_ids
        """Context of the next token: what the model has read and sampled in the present branch."""
        self.turns: tuple[Turn, ...] = ()
        self.sampled: tuple[tuple[int, ...], ...] = ()
        """Tokens of each turn."""
        self.read: tuple[tuple[Message, ...], ...] = ()
        """Messages before each turn."""
        self.request: ModelRequest | None = None
        """What the program asked for that holds the conversation; None: an environment answers turns."""
        self.observed: tuple[tuple[int, ...], ...] = ()
        """Tokens behind each turn that another followed."""
        self.place = (0, 0)
        """Where the engine has the latest turn: index of its request, and within it."""
        self.turn: dict[str, Any] = {}
        """Fields of the latest turn that are known before its answer is."""
        self.parts: tuple[Completion, ...] = ()
        """What the engine gave for each turn."""
        self.used = 0
        """Tokens of the episode, sampled and observed."""
        self.seconds = 0.0
        self.is_last = self.turns_are_used_up = self.is_cut = False
        self.end: EpisodeEnd | None = None
        self.reward: float | None = None
        self.failure: str | None = None
        self.notes: tuple[str, ...] = ()
        self.printed: tuple[str, ...] = ()

    def open(self, hosts: Hosts) -> None:
        """Give the environment to a host, which makes it there."""
        assert self.spec is not None
        reserved: Environment | None = None
        if self.spec.reserve is not None:
            self._reserved = self._reserved or self.spec.reserve()
            reserved = self._reserved()
        self.environment, self.hosted = None, hosts.open(self.spec, partial(self._made, self.spec, reserved))

    def _made(self, spec: EnvironmentSpec, reserved: Environment | None) -> Environment:
        self.environment = spec.make() if reserved is None else reserved
        return self.environment

    @property
    def name(self) -> str:
        """The environment, for a sentence."""
        assert self.spec is not None
        return self.spec.name

    def begin(self, opening: str | Sequence[Message] | None, plain: PlainText) -> None:
        """Add to the prompt what the environment says first: text to its last message, or further messages.

        It is read as text, whatever it holds: no control token comes of it.
        """

        def read(content: object) -> str:
            text, notes, _ = plain.read(content, None)
            self.notes += notes
            return text

        if isinstance(opening, str) and opening:
            *before, last = self.messages
            self.messages = (*before, {**last, "content": f"{last['content']}{read(opening)}"})
        elif opening and not isinstance(opening, str):
            self.messages += tuple({**one, "content": read(one["content"])} for one in opening)

    def own_context(self) -> tuple[int, ...] | None:
        """Context of the turn that was just sampled, where it is not the prompt and the tokens before it."""
        begins_anew = self.observed[-1] == () if self.turns else self.prompt_ids != self.group.task.prompt_ids
        return self.held[: len(self.held) - len(self.sampled[-1])] if begins_anew else None

    def held_after(self, turn: int) -> tuple[int, ...]:
        """Return what the model had read and sampled by the end of a turn: the tokens of its branch."""
        if turn == len(self.sampled) - 1:
            return self.held
        start = max((at for at in range(turn + 1) if self.turns[at].prompt_ids is not None), default=0)
        ids = [*(self.turns[start].prompt_ids or self.prompt_ids)]
        for at in range(start, turn):
            ids += [*self.sampled[at], *self.observed[at]]
        return (*ids, *self.sampled[turn])

    def settle(self, outcome: Outcome) -> None:
        """Take what the environment's end gave: what it has printed, the reward of the whole, or a failure."""
        self.printed = outcome.printed
        if self.failure is not None:
            return
        if outcome.failure is not None:
            self.failure = f"environment {self.name!r} failed at its end: {outcome.failure}"
            self.end = "timed_out" if outcome.timed_out else "failed"
            return
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        self.reward = outcome.value if outcome.value is not None else sum(rewards) if rewards else None


class RunningGroup:
    """A task with its episodes, which begin together: they share a prompt."""

    def __init__(self, number: int, task: Task, occurrence: int) -> None:
        self.number, self.task, self.occurrence = number, task, occurrence
        self.episodes: list[RunningEpisode] = []
        self.row: dict[str, Any] = {}
        self.seed = 0
        """Row and seed that each environment begins with."""
        self.openings: dict[int, tuple[Message, ...]] = {}
        """By sample, the prompt's messages as its environment has begun them, where it has added to them."""
        self.beginning = 0
        """Episodes that have not begun yet."""


class Answers:
    """What environments answer, from any thread, to be worked on in the one that asks. Instant ones answer at once."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds without any answer after which all that is waited for counts as lost."""
        self._patience = patience
        self._arrived = queue.SimpleQueue[tuple[OnAnswer, RunningEpisode, Outcome]]()
        self._waiting = Counter[str]()

    def ask(self, episode: RunningEpisode, method: Method, *given: object, then: OnAnswer) -> None:
        """Call a method of an episode's environment; `then` gets its outcome."""
        assert episode.hosted is not None
        if episode.hosted.is_instant:
            episode.hosted.call(method, *given, then=partial(then, episode))
            return
        self._waiting[episode.name] += 1
        episode.hosted.call(method, *given, then=lambda outcome: self._arrived.put((then, episode, outcome)))

    def work_on_all(self) -> None:
        """Work on the answers that have arrived, without waiting for others."""
        while not self._arrived.empty():
            self.work_on_next()

    def work_on_next(self) -> None:
        """Wait for an answer and work on it.

        Raises:
            TrainingError: none came for too long, not even a failure.
        """
        try:
            then, episode, outcome = self._arrived.get(timeout=self._patience)
        except queue.Empty:
            names = sorted(+self._waiting)
            raise TrainingError(
                f"the sampler waited {self._patience:g} seconds for an answer of {self._waiting.total()} environments "
                f"({', '.join(names)}), and none came, not even a failure",
                remedies=["resume the run"],
            ) from None
        self._waiting[episode.name] -= 1
        then(episode, outcome)


ENDS: Mapping[EpisodeEnd, tuple[str, str]] = {
    "length": ("ended at --max-completion-length {length}", "raise --max-completion-length"),
    "max_turns": ("ended at --max-turns {turns}", "raise --max-turns"),
    "done": ("ended by themselves", "let the environment give a reward at its end"),
    "failed": ("failed", "correct the environment"),
    "timed_out": ("took too long", "raise --environment-timeout"),
}
"""How conversations without a reward ended, in words, and what helps."""


def ends_without_reward(
    completions: Sequence[Completion], *, max_completion_length: int, max_turns: int | None
) -> tuple[str, list[str]] | None:
    """Count how conversations ended of which none has a reward; returns a sentence and remedies, the first for most.

    None: there is no conversation among them.
    """
    ends = Counter(one.episode.end for one in completions if one.episode is not None)
    if not ends:
        return None
    limits = {"length": max_completion_length, "turns": max_turns}
    parts = [f"{count} {ENDS[end][0].format(**limits)}" for end, count in ends.most_common()]
    return f"of {ends.total()} conversations {', '.join(parts)}", [ENDS[end][1] for end, _ in ends.most_common()]


def completion_of(episode: RunningEpisode) -> Completion:
    """One completion of all turns of an episode."""
    if episode.spec is None:
        return episode.parts[0]
    first, *later = episode.parts or (NOTHING,)
    token_ids, logprobs, changes, text = first.token_ids, first.logprobs, first.weight_changes, first.text
    newest = changes[-1].policy_version if changes else first.policy_version
    for observed, part in zip(episode.observed, later, strict=False):
        if part.policy_version != newest:
            changes += (WeightChange(token=len(logprobs), policy_version=part.policy_version),)
        changes += tuple(replace(change, token=len(logprobs) + change.token) for change in part.weight_changes)
        newest = changes[-1].policy_version if changes else newest
        token_ids += observed + part.token_ids
        logprobs += part.logprobs
        text += f"\n{part.text}"
    assert episode.end is not None
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason="length" if episode.end == "length" else "stop",
        text=text,
        policy_version=first.policy_version,
        weight_changes=changes,
        episode=Episode(
            environment=episode.name,
            turns=episode.turns,
            end=episode.end,
            reward=episode.reward,
            failure=episode.failure,
            notes=episode.notes,
            printed=episode.printed,
        ),
    )
