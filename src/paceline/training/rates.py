"""The learning rate where a scheduler of torch sets it, update by update."""

import copy
import warnings
from typing import Any

import torch


class SteppedRate:
    """A torch scheduler that can be set to any number of updates, so that a resumed run needs no file of it."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._optimizer = optimizer
        self._start = copy.deepcopy(scheduler.state_dict())
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self.last = self.current
        """The rate of the last update that was counted; before the first, of that one."""

    @property
    def current(self) -> float:
        """The rate of the next update; of several groups the first one's."""
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self, updates: int = 1) -> None:
        """Count updates: one call of the scheduler for each."""
        with warnings.catch_warnings():
            # torch wants to see an update before each call; a step without signal or a resumed run makes none
            warnings.simplefilter("ignore")
            for _ in range(updates):
                self.last = self.current
                self.scheduler.step()

    def go_to(self, updates: int) -> None:
        """The rate after this many updates from the start."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self.scheduler.load_state_dict(copy.deepcopy(self._start))
        self.advance(updates)
