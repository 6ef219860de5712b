"""The learning rate where torch's own schedulers set it: a program's, or the options' schedule as one of them."""

import copy
import warnings
from typing import Any

import torch

from paceline.config import OptimConfig
from paceline.schedule import learning_rate


class SteppedRate:
    """A torch scheduler that can be set to any number of updates, so that a resumed run needs no file of it."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._optimizer = optimizer
        self._start = copy.deepcopy(scheduler.state_dict())
        self._rates = [group["lr"] for group in optimizer.param_groups]

    @property
    def current(self) -> float:
        """The rate of the next update; of several groups the first one's."""
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self, updates: int) -> None:
        """Count updates: one call of the scheduler for each."""
        with warnings.catch_warnings():
            # torch wants to see an update before each call; a step without signal or a resumed run makes none
            warnings.simplefilter("ignore")
            for _ in range(updates):
                self.scheduler.step()

    def go_to(self, updates: int) -> None:
        """The rate after this many updates from the start."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self.scheduler.load_state_dict(copy.deepcopy(self._start))
        self.advance(updates)


def as_torch_scheduler(
    optimizer: torch.optim.Optimizer, optim: OptimConfig, *, total_steps: int, updates_per_step: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """The options' schedule over the optimiser's own rates."""

    def share(updates: int) -> float:
        return learning_rate(
            updates // updates_per_step + 1,
            peak=1.0,
            schedule=optim.lr_schedule,
            warmup_steps=optim.warmup_steps,
            total_steps=total_steps,
            min_ratio=optim.min_lr_ratio,
        )

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)
