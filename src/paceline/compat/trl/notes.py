"""Sentences for the user before the first step: the learning rate as transformers schedules it, threads that spin."""

import os

import torch
from transformers.trainer_utils import SchedulerType

from paceline import OPENMP_SPINS, SPIN_VARIABLES
from paceline.compat.trl.arguments import TrainerArguments
from paceline.compat.trl.batches import scheduler_words, warmup_field
from paceline.compat.trl.fields import Fields, keywords_of
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.objective.schedule import warmup_updates
from paceline.runtime.devices import choose_device
from paceline.training.trainer import make_scheduler


def notes_of_threads(config: Config) -> tuple[str, ...]:
    """Remedy for several CPU threads that spin instead of sleeping: see `OPENMP_SPINS`."""
    threads = config.model.threads or torch.get_num_threads()
    if threads == 1 or choose_device(config.model).type != "cpu" or not set(SPIN_VARIABLES).isdisjoint(os.environ):
        return ()
    return (
        f"import paceline before torch, or set {SPIN_VARIABLES[0]}={OPENMP_SPINS}: otherwise waiting threads spin, "
        "which is many times slower beside other processes",
    )


def note_of_rate(arguments: TrainerArguments, total: int) -> str:
    """Note on the source of the learning rate; the check needs the run's length."""
    if arguments.optimizers[1] is not None:
        return (
            f"learning rate: set by the program's own {type(arguments.optimizers[1]).__name__}, which config.yaml's "
            "learning_rate, lr_schedule and warmup_steps do not describe: only this program goes on with the run"
        )
    check_schedule(arguments.args, total=total)
    return describe_rate(arguments.args, total=total)


def check_schedule(args: Fields, *, total: int) -> None:
    """Refuse values that the schedule cannot take, in transformers' words, before an optimiser exists (ConfigError)."""
    trial = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    try:
        make_scheduler(scheduler_words(args), trial, total=total)
    except ConfigError as error:
        kind, cause = SchedulerType(args.lr_scheduler_type).value, error.__cause__
        keywords = keywords_of(args, "lr_scheduler_kwargs")
        raise ConfigError(
            f"lr_scheduler_kwargs must be such that {kind!r} can be made, got {keywords!r}: {cause}"
        ) from error


def describe_rate(args: Fields, *, total: int) -> str:
    """One line on the schedule."""
    kind, rising = SchedulerType(args.lr_scheduler_type).value, warmup_updates(getattr(args, warmup_field(args)), total)
    return (
        f"learning rate: transformers' schedule {kind!r} over {total} updates, {rising} of them warm-up, set anew for "
        "every update"
    )
