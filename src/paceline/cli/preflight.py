"""What can be refused in a second, before the libraries that take many are loaded."""

from paceline.config import Config
from paceline.data import has_split, load_rows, system_prompt
from paceline.rewards import default_system_prompt, resolve


def preflight(config: Config) -> None:
    """Look for everything that training's options name, and at the first row of each dataset; the run reads all.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    for name in config.rewards.reward_funcs:
        resolve(name)
    load_rows(config.data.dataset, split=config.data.dataset_split, size=1)
    if config.data.eval_dataset is not None:
        _look_at_held_out_row(config)
    resolve(config.evaluation.eval_reward_func)
    system_prompt(config.data, default_system_prompt(config.rewards.reward_funcs))


def preflight_held_out(config: Config) -> None:
    """Look for what evaluation's options name, and at the first held-out row.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    _look_at_held_out_row(config)
    resolve(config.evaluation.eval_reward_func)
    system_prompt(config.data, default_system_prompt(config.rewards.reward_funcs))


def _look_at_held_out_row(config: Config) -> None:
    data = config.data
    dataset = data.eval_dataset or data.dataset
    split = data.eval_split if has_split(dataset, data.eval_split) else data.dataset_split
    load_rows(dataset, split=split, size=1)
