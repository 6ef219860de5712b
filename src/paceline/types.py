"""Frozen records that packages exchange, without tensors or behaviour.

Task -> Completion -> Rollout -> RolloutGroup
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

FinishReason = Literal["stop", "length"]

EpisodeEnd = Literal["done", "max_turns", "length", "failed", "timed_out"]
"""Why a conversation ended: by its environment, by a limit on turns or tokens, or because its environment failed or
took too long."""

Message = Mapping[str, object]
"""One message of a conversation, as chat templates read it: `role`, `content`, `tool_calls` where there are some."""

RowCheck = Callable[[Mapping[str, object], str], None]
"""Check of a row by reward functions: called with its columns and its name, raises DataError to refuse it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One problem, tokenised and ready for an engine."""

    task_id: str
    """Stable name of the row within its dataset, for example `train.jsonl:17`."""
    prompt: str
    """The prompt as the model reads it: chat template applied."""
    prompt_ids: tuple[int, ...]
    messages: tuple[Mapping[str, object], ...] | None = None
    """What went into the chat template, the system message included; None: the prompt is plain text."""
    answer: str | None
    """The gold answer, where the dataset has one."""
    columns: Mapping[str, object] = field(default_factory=dict)
    """All columns of the dataset, None where the row has none, given to reward functions by name."""
    tokens_cut: int = 0
    """Tokens of the prompt that were left out as it was too long."""
    row_prompt_ids: tuple[int, ...] | None = None
    """Prompt of the dataset's row, where an environment has added to it; None: `prompt_ids` is that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightChange:
    """Newer weights that an engine took while it sampled a completion."""

    token: int
    """Index of the first token sampled from them, among the sampled tokens, at least 1."""
    policy_version: int
    """Optimiser updates that they had seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One call of the engine within an episode, and what the environment answered."""

    sampled: int
    """Tokens that the engine sampled, the end token included."""
    finish_reason: FinishReason
    prompt_ids: tuple[int, ...] | None = None
    """Whole context of the turn where it does not begin with the tokens before it: the history was rewritten, or an
    agent went on from an earlier turn. None: it does."""
    observed: int = 0
    """Tokens between this turn and the next, written by environment and chat template; 0 behind the last turn."""
    message: Message
    """The assistant's message as it was read: `content`, and `tool_calls` where calls were found."""
    answer: tuple[Message, ...] = ()
    """Messages of the environment."""
    reward: float | None = None
    """What the environment gave for this turn; None: nothing."""
    malformed: str | None = None
    """What is wrong with a tool call that could not be read; None: there is no such call."""
    calls: int = 0
    """Tool calls that the environment has dealt with, one that cannot be read included."""
    failed_calls: int = 0
    """Those among them that it answered by an error."""
    seconds: float = 0.0
    """Wall seconds that the environment took to answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """A conversation of a model with an environment, beside its tokens."""

    environment: str
    """Name of the environment."""
    turns: tuple[Turn, ...]
    """Turns of the model in order."""
    end: EpisodeEnd
    reward: float | None = None
    """The environment's own reward of the whole episode; None: it has none, or it failed."""
    failure: str | None = None
    """What failed, with the environment's name and the turn; None: nothing. A failed episode is not trained on."""
    notes: tuple[str, ...] = ()
    """What a reader should know: control tokens in an answer made harmless, an answer that was cut."""
    printed: tuple[str, ...] = ()
    """Last lines that the environment has printed, where it has a process of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One sampled continuation of a prompt: in one turn, or in a conversation with an environment.

    The tokens of a conversation are sampled_0 + observed_0 + sampled_1 + ... + sampled_last. Where a turn has a context
    of its own (`Turn.prompt_ids`), the model read that in the place of all that stands before the turn.
    """

    token_ids: tuple[int, ...]
    """Sampled tokens and, between the turns of an episode, observed ones. A sampled end token is kept."""
    logprobs: tuple[float, ...]
    """Log probability of each sampled token in nats, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    """`stop`: end token, stop string or end of the episode; `length`: cut at `max_completion_length`."""
    text: str
    """Decoded sampled tokens, special tokens left out, other stop strings kept; turns are joined by a newline."""
    policy_version: int
    """Optimiser updates of the weights that sampled the first token; later tokens are never of older weights."""
    weight_changes: tuple[WeightChange, ...] = ()
    """Weight changes in the order of the tokens; empty if all tokens are of the same weights."""
    episode: Episode | None = None
    """The conversation that the tokens are of; None: there is one turn and no environment."""

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the model sampled: its length, where observed tokens do not count."""
        return len(self.token_ids) if self.episode is None else len(self.logprobs)

    @property
    def has_failed(self) -> bool:
        """True if its environment failed: nothing is known of what it is worth."""
        return self.episode is not None and self.episode.failure is not None

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """Tokens that the model sampled."""
        if self.num_sampled == len(self.token_ids):
            return self.token_ids
        return tuple(token for start, end in self.sampled_spans for token in self.token_ids[start:end])

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages of the conversation behind the prompt, the model's and its environment's."""
        if self.episode is None:
            return ({"role": "assistant", "content": self.text},)
        return tuple(message for turn in self.episode.turns for message in (turn.message, *turn.answer))

    @property
    def sampled_spans(self) -> tuple[tuple[int, int], ...]:
        """Start and end in `token_ids` of each turn's sampled tokens."""
        if self.episode is None:
            return ((0, len(self.token_ids)),)
        spans, start = [], 0
        for turn in self.episode.turns:
            spans.append((start, start + turn.sampled))
            start += turn.sampled + turn.observed
        return tuple(spans)

    @property
    def tokens_by_version(self) -> tuple[tuple[int, int], ...]:
        """Return pairs of optimiser updates and the number of tokens sampled after them, in order."""
        starts = (0, *(change.token for change in self.weight_changes), self.num_sampled)
        versions = (self.policy_version, *(change.policy_version for change in self.weight_changes))
        return tuple((version, end - first) for version, (first, end) in zip(versions, pairwise(starts), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A completion with what it earned."""

    completion: Completion
    rewards: Mapping[str, float | None]
    """Reward by function; None: the task is not the function's, or it failed (counted in the metrics)."""
    reward: float | None
    """Weighted sum of `rewards`; None if no function returned a number or one failed: the rollout is not trained on."""
    advantage: float
    """Weight of this completion in the policy gradient; 0.0 for a rollout without signal."""
    turn_advantages: tuple[float, ...] | None = None
    """Weight of each turn's tokens, in the place of `advantage`, where turns are credited with their own rewards."""
    dropped: str | None = None
    """Reason why this completion is not trained on (`no_reward`, `reward_failed`, `environment_failed`, `truncated`),
    or None."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes by reward function: the verdicts behind its number, or why it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """All rollouts of one task in one step: the group that advantages are relative to."""

    task: Task
    rollouts: tuple[Rollout, ...]
    dropped: str | None = None
    """Reason why the group is not trained on (`filtered`, `zero_deviation`, `no_reward`, `truncated`), or None."""
