"""Frozen records that packages exchange, without tensors or behaviour.

Task -> Completion -> Rollout -> RolloutGroup
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

FinishReason = Literal["stop", "length"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightChange:
    """Newer weights that an engine took while it sampled a completion."""

    token: int
    """Index of the first token sampled from them, at least 1."""
    policy_version: int
    """Optimiser updates that they had seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One sampled continuation of a prompt."""

    token_ids: tuple[int, ...]
    """Sampled tokens; the end token is kept when it was sampled."""
    logprobs: tuple[float, ...]
    """Log probability of each sampled token in nats, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    """`stop`: end token or stop string; `length`: cut at `max_completion_length`."""
    text: str
    """Decoded tokens, special tokens left out, other stop strings kept."""
    policy_version: int
    """Optimiser updates of the weights that sampled the first token; later tokens are never of older weights."""
    weight_changes: tuple[WeightChange, ...] = ()
    """Weight changes in the order of the tokens; empty if all tokens are of the same weights."""

    @property
    def tokens_by_version(self) -> tuple[tuple[int, int], ...]:
        """Return pairs of optimiser updates and the number of tokens sampled after them, in order."""
        starts = (0, *(change.token for change in self.weight_changes), len(self.token_ids))
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
    dropped: str | None = None
    """Reason why this completion is not trained on (`no_reward`, `reward_failed`, `truncated`), or None."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes by reward function: the verdicts behind its number, or why it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """All rollouts of one task in one step: the group that advantages are relative to."""

    task: Task
    rollouts: tuple[Rollout, ...]
    dropped: str | None = None
    """Reason why the group is not trained on (`filtered`, `zero_deviation`, `no_reward`, `truncated`), or None."""
