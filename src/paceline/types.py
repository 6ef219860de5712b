"""Frozen records that packages exchange, without tensors or behaviour.

Task -> Trajectory -> Rollout -> RolloutGroup
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
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
    media: tuple["Media", ...] = ()
    """Images of the prompt, in order: `start` counts tokens of `prompt_ids`."""
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
class Completion:
    """What an engine sampled for one request: one turn of the model, whatever came before it."""

    token_ids: tuple[int, ...]
    """Sampled tokens. A sampled end token is kept."""
    logprobs: tuple[float, ...]
    """Log probability of each token in nats, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    """`stop`: end token or stop string; `length`: cut at the request's limit."""
    text: str
    """Decoded tokens, special tokens left out, other stop strings kept."""
    policy_version: int
    """Optimiser updates of the weights that sampled the first token; later tokens are never of older weights."""
    weight_changes: tuple[WeightChange, ...] = ()
    """Weight changes in the order of the tokens; empty if all tokens are of the same weights."""
    routes: bytes = b""
    """Routes of the sampled tokens, as `Span.routes`; that of the last one is unknown, as the model did not read it."""
    prompt_routes: bytes = b""
    """Routes of the tokens of the request's prompt, as far as this request computed them."""


UNKNOWN_ROUTE = b"\xff"
"""Byte of a route that is not known."""

SpanWriter = Literal["prompt", "policy", "environment", "demonstration"]
"""Who wrote a token: the prompt of a row, the model that is trained, what stands between two of its turns, or a given
completion that is imitated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """An image among tokens: those of a span, of a prompt, or of the inputs of a micro-batch."""

    sha256: str
    """Hash of the decoded pixels, with their width and height."""
    start: int
    """Index of the first token that stands for the image, marks around and between its rows included."""
    length: int
    """Number of tokens from there to the last one. Those among them that equal the model's image token take the
    image's features; the same token elsewhere is an ordinary one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A run of tokens by one writer."""

    by: SpanWriter
    tokens: tuple[int, ...]
    media: tuple[Media, ...] = ()
    """Images among the tokens."""
    logprobs: tuple[float, ...] = ()
    """Log probability of each token in nats, as the engine reported it; of policy spans alone."""
    kept: tuple[tuple[int, ...], ...] = ()
    """For each token, the ids that truncated sampling kept; empty: sampling was not truncated."""
    teacher_logprobs: tuple[float, ...] = ()
    """Log probability of each token in nats under a teacher; empty: there is no teacher."""
    routes: bytes = b""
    """Experts that the engine's routers chose for each token, layer by layer: a byte for each number, or two (the lower
    one first) from 256 experts on, all bits set where it is unknown. Empty: none is known."""


def routes_of(spans: Sequence[Span], count: int | None = None) -> bytes:
    """Return the routes of spans end to end, of their first `count` tokens if that is given; empty: none is known.

    >>> routes_of([Span(by="prompt", tokens=(5, 6)), Span(by="policy", tokens=(7,), routes=bytes([1, 0]))]).hex()
    'ffffffff0100'
    """
    width = next((len(span.routes) // len(span.tokens) for span in spans if span.routes), 0)
    routes = b"".join(span.routes or UNKNOWN_ROUTE * (width * len(span.tokens)) for span in spans)
    return routes if count is None else routes[: count * width]


def tokens_of(spans: Sequence[Span]) -> tuple[int, ...]:
    """Return the tokens of spans, end to end."""
    return spans[0].tokens if len(spans) == 1 else tuple(chain.from_iterable(span.tokens for span in spans))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of the model within an episode as a reader sees it, with the environment's observation behind it."""

    message: Message
    """The assistant's message as it was read: `content`, and `tool_calls` where calls were found."""
    observation: tuple[Message, ...] = ()
    """Messages of the environment behind the turn."""
    finish_reason: FinishReason
    reward: float | None = None
    """What the environment gave for this turn; None: nothing."""
    malformed: str | None = None
    """What is wrong with a tool call that could not be read; None: there is no such call."""
    calls: int = 0
    """Tool calls that the environment has dealt with, one that cannot be read included."""
    failed_calls: int = 0
    """Tool calls among `calls` whose result was an error."""
    seconds: float = 0.0
    """Wall seconds that the environment took for its observation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One sample of a task, from its prompt to its end: a completion of one turn, or an episode with an environment.

    Its spans say who wrote which token. They begin with a prompt. A policy span follows for each turn of the model,
    and an environment span between two turns. Where the history was rewritten another prompt takes its place, the whole
    context of the turn behind it: there another row to train on begins.

        prompt policy environment policy | prompt policy
    """

    spans: tuple[Span, ...]
    finish_reason: FinishReason
    """`stop`: end token, stop string or end of the episode; `length`: cut at `max_completion_length`."""
    text: str
    """Decoded tokens of the policy, special tokens left out, other stop strings kept; turns are joined by a newline."""
    policy_version: int
    """Optimiser updates of the weights that sampled the first token; later tokens are never of older weights."""
    weight_changes: tuple[WeightChange, ...] = ()
    """Weight changes, counted in tokens of the policy; empty if all tokens are of the same weights."""
    environment: str | None = None
    """Name of the environment; None: there is one turn and no environment."""
    turns: tuple[Turn, ...] = ()
    """Turns of the model in order, one for each policy span; empty without an environment."""
    end: EpisodeEnd | None = None
    """Why the episode ended; None: there is no environment."""
    reward: float | None = None
    """The environment's own reward of the whole episode; None: it has none, or it failed."""
    failure: str | None = None
    """What failed, with the environment's name and the turn; None: nothing. A failed episode is not trained on."""
    notes: tuple[str, ...] = ()
    """What a reader should know: control tokens in an observation that were escaped, a message that was cut."""
    printed: tuple[str, ...] = ()
    """Last lines that the environment has printed, where it has a process of its own."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Tokens of the prompt that the trajectory begins with."""
        return self.spans[0].tokens

    @property
    def sampled(self) -> tuple[Span, ...]:
        """Spans of the policy, one for each turn."""
        return tuple(span for span in self.spans if span.by == "policy")

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """Tokens of the policy."""
        return tokens_of(self.sampled)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Log probability of each token of the policy in nats, as the engine reported it."""
        return tuple(chain.from_iterable(span.logprobs for span in self.sampled))

    @property
    def num_sampled(self) -> int:
        """Number of tokens of the policy: the length, in which nothing else counts."""
        return sum(len(span.tokens) for span in self.spans if span.by == "policy")

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Tokens of the policy and, between its turns, those of the environment; prompts are left out."""
        return tokens_of([span for span in self.spans if span.by != "prompt"])

    @property
    def rows(self) -> tuple[tuple[Span, ...], ...]:
        """Spans of each row to train on: a prompt and what follows up to the next one."""
        starts = [index for index, span in enumerate(self.spans) if span.by == "prompt"]
        if len(starts) == 1:
            return (self.spans,)
        return tuple(self.spans[start:end] for start, end in pairwise([*starts, len(self.spans)]))

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages of the conversation behind the prompt, the model's and its environment's."""
        if self.environment is None:
            return ({"role": "assistant", "content": self.text},)
        return tuple(message for turn in self.turns for message in (turn.message, *turn.observation))

    @property
    def tokens_by_version(self) -> tuple[tuple[int, int], ...]:
        """Pairs of optimiser updates and the number of tokens sampled after them, in order."""
        starts = (0, *(change.token for change in self.weight_changes), self.num_sampled)
        versions = (self.policy_version, *(change.policy_version for change in self.weight_changes))
        return tuple((version, end - first) for version, (first, end) in zip(versions, pairwise(starts), strict=True))


def completed(prompt_ids: tuple[int, ...], completion: Completion, media: tuple[Media, ...] = ()) -> Trajectory:
    """Return the trajectory of one turn behind a prompt with these images, without an environment."""
    return Trajectory(
        spans=(
            Span(by="prompt", tokens=prompt_ids, media=media, routes=completion.prompt_routes),
            Span(by="policy", tokens=completion.token_ids, logprobs=completion.logprobs, routes=completion.routes),
        ),
        finish_reason=completion.finish_reason,
        text=completion.text,
        policy_version=completion.policy_version,
        weight_changes=completion.weight_changes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A trajectory with what it earned."""

    trajectory: Trajectory
    rewards: Mapping[str, float | None]
    """Reward by function; None: the task is not the function's, or it failed (counted in the metrics)."""
    reward: float | None
    """Weighted sum of `rewards`; None if no function returned a number or one failed: the rollout is not trained on."""
    advantage: float
    """Weight of this trajectory in the policy gradient; 0.0 for a rollout without signal."""
    turn_advantages: tuple[float, ...] | None = None
    """Weight of each turn's tokens, in the place of `advantage`, where turns are credited with their own rewards."""
    dropped: str | None = None
    """Reason why this trajectory is not trained on (`no_reward`, `reward_failed`, `environment_failed`, `truncated`),
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
