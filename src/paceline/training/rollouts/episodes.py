"""An episode while it is under way, and the completion that it becomes."""

import queue
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.environments import Environment, EnvironmentSpec
from paceline.environments.harmless import PlainText
from paceline.environments.hosting import Hosted, Hosts, Outcome
from paceline.environments.hosting.results import Method
from paceline.errors import TrainingError
from paceline.types import Completion, Episode, EpisodeEnd, Message, Task, Turn, WeightChange

OnAnswer = Callable[["RunningEpisode", Outcome], None]


class RunningEpisode:
    """A completion under way."""

    def __init__(self, group: "RunningGroup", sample: int, spec: EnvironmentSpec | None) -> None:
        self.group, self.sample, self.spec = group, sample, spec
        self.hosted: Hosted | None = None
        self.environment: Environment | None = None
        """The environment itself, where it lives in this process."""
        self._reserved: Callable[[], Environment] | None = None
        self.attempts = 0
        self.prompt_ids: tuple[int, ...] = group.task.prompt_ids
        self.messages: list[Message] = list(group.task.messages or ())
        """Messages up to now, those of the prompt included."""
        self.held: list[int] = list(self.prompt_ids)
        """Context of the next token: what the model has read and sampled in the present branch."""
        self.turns: list[Turn] = []
        self.sampled: list[tuple[int, ...]] = []
        self.observed: list[tuple[int, ...]] = []
        self.places: list[tuple[int, int]] = []
        """Where the engine has each turn: index of its request, and within it."""
        self.parts: list[Completion] = []
        """What the engine gave for each turn."""
        self.used = 0
        """Tokens of the episode, sampled and observed."""
        self.seconds = 0.0
        self.is_last = False
        self.end: EpisodeEnd | None = None
        self.reward: float | None = None
        self.failure: str | None = None
        self.notes: list[str] = []

    def open(self, hosts: Hosts) -> None:
        """Give the environment to a host, which makes it there."""
        assert self.spec is not None
        make, reserved = self.spec.make, None
        if self.spec.reserve is not None:
            self._reserved = self._reserved or self.spec.reserve()
            reserved = self._reserved()

        def made() -> Environment:
            self.environment = make() if reserved is None else reserved
            return self.environment

        self.environment, self.hosted = None, hosts.open(self.spec, made)

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
            self.messages = [*before, {**last, "content": f"{last['content']}{read(opening)}"}]
        elif opening and not isinstance(opening, str):
            self.messages = [*self.messages, *({**one, "content": read(one["content"])} for one in opening)]

    def own_context(self) -> tuple[int, ...] | None:
        """Context of the turn that was just sampled, where it is not the prompt and the tokens before it."""
        context = tuple(self.held[: len(self.held) - len(self.sampled[-1])])
        if not self.turns:
            return None if self.prompt_ids == self.group.task.prompt_ids else context
        return context if self.observed[-1] == () else None

    def settle(self, outcome: Outcome) -> None:
        """Take what the environment's end gave: the reward of the whole, or a failure."""
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
        self.openings: dict[int, tuple[Message, ...]] = {}
        """By sample, the prompt's messages as its environment has begun them."""
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
            episode.hosted.call(method, *given, then=lambda outcome: then(episode, outcome))
            return
        self._waiting[episode.name] += 1
        episode.hosted.call(method, *given, then=lambda outcome: self._arrived.put((then, episode, outcome)))

    def work_on_all(self) -> None:
        """OnAnswer on the answers that have arrived."""
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


def completion_of(episode: RunningEpisode) -> Completion:
    """One completion of all turns of an episode."""
    if episode.spec is None:
        return episode.parts[0]
    token_ids, changes = list[int](), list[WeightChange]()
    version = episode.parts[0].policy_version if episode.parts else 0
    sampled, newest = 0, version
    for number, part in enumerate(episode.parts):
        if part.policy_version != newest:
            changes.append(WeightChange(token=sampled, policy_version=part.policy_version))
        changes += [replace(change, token=sampled + change.token) for change in part.weight_changes]
        newest = part.tokens_by_version[-1][0]
        token_ids += part.token_ids
        token_ids += episode.observed[number] if number < len(episode.observed) else ()
        sampled += len(part.token_ids)
    assert episode.end is not None
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=tuple(value for part in episode.parts for value in part.logprobs),
        finish_reason="length" if episode.end == "length" else "stop",
        text="\n".join(part.text for part in episode.parts),
        policy_version=version,
        weight_changes=tuple(changes),
        episode=Episode(
            environment=episode.name,
            turns=tuple(episode.turns),
            end=episode.end,
            reward=episode.reward,
            failure=episode.failure,
            notes=tuple(episode.notes),
        ),
    )
