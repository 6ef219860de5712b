"""What setup is given in the place of options, and what it gives: a run before any weight of the policy is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from paceline.data.tasks import TaskSet
from paceline.environments import EnvironmentSpec
from paceline.episodes.conversations import Completer, Conversations
from paceline.objective.advantages import GroupAdvantage
from paceline.rewards.function import RewardFunction
from paceline.training.plan.batches import BatchPlan
from paceline.training.setup.evaluators import Evaluator
from paceline.types import Task

if TYPE_CHECKING:
    import torch

    from paceline.objective.own_loss import PolicyLoss


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
    model_digests: Mapping[str, str]
    """By name, digests of the model and its tokenizer: a resumed run has the same (see `identity.model_digests`)."""
    plan: BatchPlan
    total_steps: int
    conversations: Conversations | None = None
    """How conversations are held; None: every completion has one turn."""
    completer: Completer | None = None
    """What completes tasks in the place of the engine; None: the engine does."""
    advantage: GroupAdvantage | None = None
    """The function that `--advantage` names, if it is one of the user's own."""
    policy_loss: "PolicyLoss | None" = None
    """The function that `--bound` names, if it is one of the user's own."""
    needs_reward: bool = True
    """Stop at a step whose completions all lack a reward; False: it is told, and trains on none."""

    @property
    def run_size(self) -> RunSize:
        """What the trainer must know of all this."""
        return RunSize(total_steps=self.total_steps, longest_prompt=self.tasks.longest_prompt)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """Objects of a program's own, each in the place of what the configuration names; None: as configured."""

    model: Any = None
    """A transformers model, with or without an adapter; it is trained in place."""
    adapter: Any = None
    """A configuration of `peft` for a new adapter."""
    tokenizer: PreTrainedTokenizerBase | None = None
    functions: Mapping[str, RewardFunction] | None = None
    environments: Mapping[str, EnvironmentSpec] | None = None
    """Environments by name; `--environment` then holds the names."""
    completer: Completer | None = None
    """A function that completes tasks in the place of the engine."""
    reward_models: Mapping[str, str] | None = None
    """Name to directory or Hub name; loaded after everything that is cheap to refuse."""
    reward_tokenizers: Mapping[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    """Tokenizers of `reward_models` by the same names; where there is none, the model's own is read."""
    tasks: TaskSet | None = None
    held_out: Mapping[str, tuple[Task, ...]] | None = None
    """Sets to measure the training rewards on, by name; with `tasks` None means none."""
    needs_reward: bool = True
    """As that of `RunInputs`."""
    advantage: GroupAdvantage | None = None
    """A function of one group's rewards; `--advantage` then holds its name."""
    policy_loss: "PolicyLoss | None" = None
    """A loss of each token; `--bound` then holds its name."""
    optimizer: "torch.optim.Optimizer | None" = None
    """Over parameters of `model`."""
    make_scheduler: "Callable[[torch.optim.Optimizer, int], Any] | None" = None
    """From the optimiser and the updates of the run to the torch scheduler that sets its rate, `step()` per update."""
