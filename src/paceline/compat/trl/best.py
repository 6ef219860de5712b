"""Check of `metric_for_best_model` before training."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_utils import SaveStrategy

from paceline.compat.trl.history import clip_numbers
from paceline.config.reading import suggest
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig

OF_EVALUATION = (
    "loss",
    "reward",
    "reward_std",
    "entropy",
    "kl",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
    *clip_numbers(0.0, 0.0),
    "num_samples",
    "num_tokens",
    "runtime",
    "samples_per_second",
    "steps_per_second",
)
"""Names in `history.eval_numbers`, without single rewards."""


def evaluation_names(eval_dataset: Any, reward_names: Sequence[str]) -> tuple[str, ...]:
    """Every metric name of an evaluation; several sets have a prefix each, and a mean of their rewards."""
    names = [*OF_EVALUATION, *(f"rewards/{name}/{key}" for name in reward_names for key in ("mean", "std"))]
    if not isinstance(eval_dataset, Mapping):
        return tuple(f"eval_{name}" for name in names)
    return ("eval_reward", *(f"eval_{one}_{name}" for one in eval_dataset for name in names))


def check_best_metric(
    args: "GRPOConfig", eval_dataset: Any, reward_names: Sequence[str], sources: Iterable[Any]
) -> None:
    """Refuse a `metric_for_best_model` that no evaluation reports.

    Names that reward functions log by `log_metric` are unknown before they run. If one takes `log_metric`, any name is
    accepted that is not close to one of evaluation's own.

    Raises:
        ConfigError: the sentence has the nearest right names.
    """
    name = args.metric_for_best_model
    if name is None or not (
        args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST or eval_dataset is not None
    ):
        return
    offered = evaluation_names(eval_dataset, reward_names)
    wanted = name if name.startswith("eval_") else f"eval_{name}"
    if wanted in offered:
        return
    near = suggest(wanted, offered, otherwise="")
    if near or not any(_may_log(source) for source in sources):
        rewards = [one for one in offered if one.endswith("reward")]
        raise ConfigError(
            f"metric_for_best_model must be a number that evaluation gives, got {name!r}; "
            f"{near or 'take ' + ' or '.join(rewards)}"
        )


def _may_log(source: Any) -> bool:
    """True if a reward function takes `log_metric`."""
    if isinstance(source, str | nn.Module) or not callable(source):
        return False
    parameters = inspect.signature(source).parameters.values()
    return any(one.name == "log_metric" or one.kind is one.VAR_KEYWORD for one in parameters)
