"""The cluster forecast of `paceline plan`, from a run's measured times, or how to get them."""

import os
from pathlib import Path

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.configuration import read_run_configuration
from paceline.config.reading import find_option
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.workers.ray.describing import describe_forecast
from paceline.workers.ray.forecast import make_forecast
from paceline.workers.ray.timings import read_measured

UNKNOWN = (
    "Whether a cluster pays hangs on times that were not measured yet: run 20 steps (--max-steps 20), in one process "
    "or with --cluster, and give their run directory as --timings RUN."
)
DECIDING = (
    "model",
    "dataset",
    "device",
    "dtype",
    "engine",
    "prompts_per_step",
    "num_generations",
    "max_completion_length",
    "reward_funcs",
    "num_iterations",
    "beta",
    "lora_rank",
)
"""Options that change the duration of a phase in a way that no forecast could follow."""


def forecast(config: Config, timings: Path) -> str:
    """Forecast of a configuration from the run at `timings`, as text.

    Raises:
        ConfigError: the run did other work than the configuration, or is too short.
        CheckpointError: it is no run directory, or damaged.
    """
    measured_config = read_run_configuration(timings, flag="--timings")
    _refuse_other_work(config, measured_config, timings)
    measured = read_measured(RunDir(timings), measured_config)
    producers = counts_to_try(most_producers(config), measured.num_producers)
    consumers = counts_to_try(config.cluster.num_consumers, measured.num_consumers)
    return describe_forecast(make_forecast(measured, producers=producers, consumers=consumers), measured)


def most_producers(config: Config) -> int:
    """Number of producers to try: `--num-producers`, and at least the number of devices that the consumers leave
    free.

    On a cluster elsewhere nothing is known of devices. More producers than prompts would have nothing to do.
    """
    asked, prompts = config.cluster.num_producers, config.loop.prompts_per_step
    here = _devices(config.model.device) - config.cluster.num_consumers if config.cluster.ray_address is None else 1
    return min(prompts, max(asked, here))


def counts_to_try(most: int, measured: int) -> list[int]:
    """Powers of two up to the most, the most itself, and the measured number.

    >>> counts_to_try(7, 3)
    [1, 2, 3, 4, 7]
    """
    doubled = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return sorted({*doubled, most, measured})


def _devices(device: str) -> int:
    """Number of CUDA devices if they train, else of cores; without importing torch, which takes seconds."""
    cards = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return cards if device != "cpu" and cards else os.cpu_count() or 1


def _refuse_other_work(config: Config, measured: Config, timings: Path) -> None:
    for name in DECIDING:
        option = find_option(name)
        planned, found = (getattr(getattr(one, option.section), name) for one in (config, measured))
        if planned != found:
            raise ConfigError(
                f"--timings {timings} must be a run of the same work, and has {option.flag} {_written(found)} where "
                f"the plan has {_written(planned)}; plan with --config {timings / 'config.yaml'}, or measure again"
            )


def _written(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
