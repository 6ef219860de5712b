"""Size of micro-batches: by the options, and smaller after memory has run out.

What ran out of memory is done again in micro-batches of half the tokens. Weights are those before it and the gradient
is the sum over the same samples, so the update is the same to rounding (law 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from paceline.errors import TrainingError
from paceline.models.parallel.ranks import WHOLE, Ranks
from paceline.runtime.devices import is_out_of_memory, release_memory

Value = TypeVar("Value")


@dataclass(kw_only=True, slots=True)
class Budget:
    """Tokens that a pass forwards at most, padding included, unless one sample alone has more."""

    tokens: int
    ranks: Ranks
    device: torch.device
    halved: int = 0
    """Number of times that memory ran out since this was set to 0."""

    def fit(self, work: Callable[[], Value], sizes: Callable[[], Sequence[tuple[int, int]]]) -> Value:
        """Return the result of `work`, called again with fewer `tokens` each time memory runs out on any rank.

        `sizes`: parts that can be cut from each other and forwarded tokens of each micro-batch of all ranks, at the
        budget as it is. Every rank knows them, so all come to the same number.

        Raises:
            TrainingError: memory ran out with one sample in each micro-batch; or where ranks that hold parts of one
                model wait for each other within a pass, which one of them cannot leave.
        """
        while True:
            reason = ""
            try:
                result = work()
            except (MemoryError, RuntimeError) as error:  # of torch on a GPU it is a kind of the second
                if not is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0] or type(error).__name__
            if reason and self.ranks.parallel_layout is not WHOLE:
                raise TrainingError(
                    f"memory ran out in a micro-batch of at most {self.tokens} tokens, and ranks that share a model "
                    "cannot do a pass again which the others are in; lower --micro-batch-tokens, or give "
                    f"--gradient-checkpointing true, then resume ({reason})"
                )
            if self.ranks.parallel_layout is not WHOLE:
                return result
            if not any(
                report["out_of_memory"] for report in self.ranks.collect({"out_of_memory": float(bool(reason))})
            ):
                return result
            release_memory(self.device)
            # half of the largest that can be cut: half of a budget that none of them fills would change nothing
            now = sizes()
            largest = max((size for samples, size in now if samples > 1), default=0)
            if largest == 0:
                raise TrainingError(
                    f"memory ran out with one completion of at most {max(size for _, size in now)} tokens in each "
                    "micro-batch; give --gradient-checkpointing true, or lower --max-completion-length, then resume "
                    f"({reason or 'on another rank'})"
                )
            self.tokens = max(1, min(self.tokens, largest) // 2)
            self.halved += 1
