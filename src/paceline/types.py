"""Frozen records that cross the borders between rooms. No tensors, no behaviour beyond small derived facts.

Task -> Completion -> Rollout -> RolloutGroup
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

FinishReason = Literal["stop", "length"]

RowCheck = Callable[[Mapping[str, object], str], None]
"""What reward functions ask of a row: called with its columns and its name; raises DataError to refuse it."""


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
    """Index of the first token that they sampled, at least 1."""
    policy_version: int
    """How many optimiser updates they had seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One sampled continuation of a prompt."""

    token_ids: tuple[int, ...]
    """Sampled tokens; the end token is kept when it was sampled."""
    logprobs: tuple[float, ...]
    """Nats, of each sampled token, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    """`stop`: end token or stop string; `length`: cut at `max_completion_length`."""
    text: str
    """Decoded tokens, special tokens left out, other stop strings kept."""
    policy_version: int
    """How many optimiser updates the weights had seen that sampled the first token; no token is of older ones."""
    weight_changes: tuple[WeightChange, ...] = ()
    """In the order of the tokens; none where all are of the same weights."""

    @property
    def tokens_by_version(self) -> tuple[tuple[int, int], ...]:
        """How many optimiser updates the weights had seen, and how many tokens they sampled then, in order."""
        starts = (0, *(change.token for change in self.weight_changes), len(self.token_ids))
        versions = (self.policy_version, *(change.policy_version for change in self.weight_changes))
        return tuple((version, end - first) for version, (first, end) in zip(versions, pairwise(starts), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A completion with what it earned."""

    completion: Completion
    rewards: Mapping[str, float | None]
    """By reward function; None: not this function's task, or it failed (counted in the metrics)."""
    reward: float | None
    """Weighted sum of `rewards`; None when no function gave a number, or one failed: the rollout is not trained on."""
    advantage: float
    """Weight of this completion in the policy gradient; 0.0 for a rollout without signal."""
    dropped: str | None = None
    """Why this completion is not trained on (`no_reward`, `reward_failed`, `truncated`), None when it is."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By reward function that has something to say: the verdicts behind its number, or why it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """All rollouts of one task in one step: the set that advantages are relative to."""

    task: Task
    rollouts: tuple[Rollout, ...]
    dropped: str | None = None
    """Why the group is not trained on (`filtered`, `zero_deviation`, `no_reward`, `truncated`), None when it is."""
