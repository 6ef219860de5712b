"""What a program hands over in the place of what the configuration names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from paceline.data.tasks import TaskSet
from paceline.rewards.function import RewardFunction
from paceline.types import Task

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """Objects of a program's own, each in the place of what the configuration names; None: as configured."""

    model: Any = None
    """A transformers model, with or without an adapter; it is trained in place."""
    adapter: Any = None
    """A configuration of `peft` for a new adapter."""
    tokenizer: PreTrainedTokenizerBase | None = None
    functions: Mapping[str, RewardFunction] | None = None
    reward_models: Mapping[str, str] | None = None
    """Name to directory or Hub name; loaded after everything that is cheap to refuse."""
    reward_tokenizers: Mapping[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    """Tokenizers of `reward_models` by the same names; where there is none, the model's own is read."""
    tasks: TaskSet | None = None
    held_out: Mapping[str, tuple[Task, ...]] | None = None
    """Sets to measure the training rewards on, by name; with `tasks` None means none."""
    optimizer: "torch.optim.Optimizer | None" = None
    """Over parameters of `model`."""
    make_scheduler: "Callable[[torch.optim.Optimizer, int], Any] | None" = None
    """From the optimiser and the updates of the run to the torch scheduler that sets its rate, `step()` per update."""
