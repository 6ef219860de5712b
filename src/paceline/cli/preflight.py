"""What can be refused in a second, before the libraries that take many are loaded."""

from pathlib import Path

from paceline.config import Config
from paceline.config.sections import DataConfig
from paceline.data import has_split, load_rows, problem, system_prompt
from paceline.rewards import check_reward_model, default_system_prompt, resolve
from paceline.trackers import check_trackers


def preflight(config: Config) -> None:
    """Look for everything that training's options name, at a file's rows, and at the first of any other dataset.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    for name in config.rewards.functions:
        resolve(name)
    for name in config.rewards.reward_models:
        check_reward_model(name)
    check_trackers(config.loop.report_to)
    _look_at_rows(config.data, config.data.dataset, split=config.data.dataset_split, size=config.data.dataset_size)
    if config.data.eval_dataset is not None:
        _look_at_held_out_row(config)
    resolve(config.evaluation.eval_reward_func)
    system_prompt(config.data, default_system_prompt(config.rewards.functions))


def preflight_held_out(config: Config) -> None:
    """Look for what evaluation's options name, and at the first held-out row.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    _look_at_held_out_row(config)
    resolve(config.evaluation.eval_reward_func)
    system_prompt(config.data, default_system_prompt(config.rewards.functions))


def _look_at_held_out_row(config: Config) -> None:
    data = config.data
    dataset = data.eval_dataset or data.dataset
    split = data.eval_split if has_split(dataset, data.eval_split) else data.dataset_split
    _look_at_rows(data, dataset, split=split, size=config.evaluation.eval_size)


def _look_at_rows(data: DataConfig, dataset: str, *, split: str, size: int | None) -> None:
    """A file is read whole, which takes a second per 100,000 lines; what has to be generated or fetched is not."""
    for row in load_rows(dataset, split=split, size=size if Path(dataset).is_file() else 1):
        problem(row, data)
