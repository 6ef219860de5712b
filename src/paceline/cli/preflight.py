"""Checks that take a second, before the libraries that take many are loaded."""

from collections.abc import Iterable
from pathlib import Path

from paceline.config.sections import Config
from paceline.data.rows import SAMPLE, WHOLE, spread
from paceline.data.screening import screen
from paceline.data.sources import has_split, is_file, load_rows
from paceline.data.system_message import system_prompt
from paceline.engines.vllm.window import check_vllm
from paceline.models.places import (
    ADAPTER_WEIGHTS,
    check_completion_fits,
    model_place,
    positions_of,
    read_model_config,
)
from paceline.models.weight_headers import check_quantised, check_weights, read_whole
from paceline.reports.trackers.opening import check_trackers
from paceline.rewards.context import reward_context
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.model_files import check_reward_model
from paceline.rewards.prompts import default_system_prompt
from paceline.rewards.resolving import resolve
from paceline.rewards.rows import row_check
from paceline.types import RowCheck


def preflight(config: Config, *, needs_weights: bool = True) -> None:
    """Check that everything named by training's options exists, and the rows: all of a file, else the first.

    Without `needs_weights` a model may be a config.json alone.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    positions = _look_at_model(config, needs_weights=needs_weights)
    context = reward_context(config.rewards, config.sampling)
    functions = {name: resolve(name, context) for name in config.rewards.functions}
    for name in config.rewards.reward_models:
        check_reward_model(name)
    check_trackers(config.loop.report_to)
    _look_at_engine(config)
    data, measure = config.data, _measure(config)
    check = row_check(functions)
    for dataset in data.datasets:
        _look_at_rows(config, dataset, split=data.dataset_split, size=data.dataset_size, check=check)
    if data.eval_dataset is not None:
        _look_at_held_out_rows(config, row_check(measure))
    system_prompt(data, default_system_prompt(config.rewards.functions))
    _look_at_what_they_need((*functions.values(), *measure.values()))
    check_completion_fits(config.sampling.max_completion_length, limit=positions)


def preflight_held_out(config: Config) -> None:
    """Check what evaluation's options name, and the first row of each held-out set.

    Raises:
        PacelineError: something is not there or cannot be read.
    """
    _look_at_model(config, needs_weights=True)
    measure = _measure(config)
    _look_at_engine(config)
    _look_at_held_out_rows(config, row_check(measure))
    system_prompt(config.data, default_system_prompt(config.rewards.functions))
    _look_at_what_they_need(measure.values())


def _look_at_model(config: Config, *, needs_weights: bool) -> int | None:
    """Check the files of a local model and the positions in its config.json; the Hub is not asked."""
    label = f"--model {config.model.model}"
    place = model_place(config.model.model, needs_weights=needs_weights)
    if needs_weights and place.adapter is not None:
        read_whole(place.adapter / ADAPTER_WEIGHTS, label)
    base = Path(place.base)
    if not base.is_dir():
        return None
    described = read_model_config(base, label)
    is_adapter_new = config.lora.lora_rank > 0 and place.adapter is None
    check_quantised(described, label, has_adapter=is_adapter_new or place.adapter is not None)
    if needs_weights:
        check_weights(base, described, label, targets=config.lora.lora_targets if is_adapter_new else ())
    return positions_of(described)


def _measure(config: Config) -> dict[str, RewardFunction]:
    name = config.evaluation.eval_reward_func
    return {name: resolve(name, reward_context(config.rewards, config.sampling))}


def _look_at_engine(config: Config) -> None:
    if config.engine.engine == "vllm":
        check_vllm(None)


def _look_at_what_they_need(functions: Iterable[RewardFunction]) -> None:
    """Refuse a host that cannot isolate programs if a function needs it; the sandbox stays open for the run."""
    for one in functions:
        if isinstance(one, BuiltIn) and one.describe is not None:
            one.describe()


def _look_at_held_out_rows(config: Config, check: RowCheck | None) -> None:
    data = config.data
    for _, dataset in data.held_out:
        split = data.eval_split if has_split(dataset, data.eval_split) else data.dataset_split
        _look_at_rows(config, dataset, split=split, size=config.evaluation.eval_size, check=check)


def _look_at_rows(config: Config, dataset: str, *, split: str, size: int | None, check: RowCheck | None) -> None:
    """Check all rows of a file, a sample of a large one, and the first row of generated or remote data."""
    looks_whole, data = is_file(dataset), config.data
    rows = load_rows(dataset, split=split, size=size if looks_whole else 1, seed=config.loop.seed)
    # One row says nothing of the others, which may be all that is needed where bad ones are skipped.
    if looks_whole or data.on_bad_row == "stop":
        screen(rows if len(rows) <= WHOLE else spread(rows, SAMPLE), data, check)
