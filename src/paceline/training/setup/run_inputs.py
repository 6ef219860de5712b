"""A run before any weight of the policy is read."""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from paceline.data.tasks import TaskSet
from paceline.rewards.function import RewardFunction
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.training.plan.batches import BatchPlan
from paceline.training.setup.evaluators import Evaluator


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSize:
    """What the trainer must know of the data before it sees any."""

    total_steps: int
    longest_prompt: int
    """Tokens; of a large dataset an estimate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInputs:
    """What a run works on, checked, before any weight of the policy is read."""

    tokenizer: PreTrainedTokenizerBase
    functions: Mapping[str, RewardFunction]
    tasks: TaskSet
    unverified: tuple[str, ...]
    """Sampled tasks whose gold answer a reward function does not give full marks: too few to refuse the dataset."""
    unmet: tuple[str, ...]
    """What tasks lack that a reward function needs, a sentence each: it gives them no number."""
    evaluators: tuple[Evaluator, ...]
    """One per held-out set; none when there are no held-out tasks."""
    plan: BatchPlan
    total_steps: int
    progress: Progress = NULL_PROGRESS
    """Who is told how far the work at hand has come."""

    @property
    def run_size(self) -> RunSize:
        """What the trainer must know of all this."""
        return RunSize(total_steps=self.total_steps, longest_prompt=self.tasks.longest_prompt)
