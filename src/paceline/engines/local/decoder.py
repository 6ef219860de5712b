"""The interface between scheduling (which rows are in use, what was sampled) and decoding (tokens in, logits out)."""

from collections.abc import Sequence
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

from paceline.engines import Sampling
from paceline.engines.local.attention import Context
from paceline.engines.sampling import draw


class Decoder(Protocol):
    """Computes next-token logits for rows that share prompts. Knows nothing of sampling, keys or stopping.

    A row is the batch index of one completion. Free rows are computed too, and never read.
    """

    refills: bool
    """True: prompts may be admitted while other rows are in use, and rows parked and resumed. False: prompts enter only
    when all rows are free, and no row is parked."""
    runs_ahead: bool = False
    """True: a step runs on the device, and the next one may start before the host has read what it drew. A row may then
    take one token more than its completion has."""
    least_rows: int = 1
    """Smallest batch; fewer rows would be no faster."""

    def begin(self, num_rows: int, max_length: int) -> None:
        """Make room for `num_rows` rows whose prompt and completion have at most `max_length` tokens together."""

    def admit(self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Float[Tensor, "P V"]:
        """Compute prompts, which `rows[i]` continue; return the logits after each prompt."""

    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        """Append one token to every row; return the logits after it."""

    def draw_next(
        self, tokens: Int[Tensor, " S"], uniform: Float[Tensor, " S"], sampling: Sampling
    ) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        """Append one token to every row, and draw the next ones from the logits after it."""
        return draw(self.step(tokens), uniform, sampling)

    def reread(self) -> None:
        """Use the model's changed weights from now on. The cache stays as it is."""
        return

    def park(self, rows: Sequence[int]) -> list[Context]:
        """Copy the cache of these rows' prompts and own tokens, so that other completions can take the rows."""
        raise TypeError(f"{type(self).__name__} parks no rows")

    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        """Let each of these free rows continue a parked context."""
        raise TypeError(f"{type(self).__name__} parks no rows")

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """Keep these rows, in this order; the first `alive` of them are in use.

        Behind those, `keep` may repeat rows, which makes more free ones.
        """

    def release(self, rows: Sequence[int]) -> None:
        """Free rows whose completions have ended."""
        return

    def end(self) -> None:
        """Free the caches."""


def rounded_up(count: int) -> int:
    """Return the least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... (2^n and 3 * 2^n) that is at least `count`.

    Batches are rounded so that kernels meet few different shapes.

    >>> [rounded_up(count) for count in (1, 5, 13, 100, 129)]
    [1, 6, 16, 128, 192]
    """
    power = 1 << max(0, count - 1).bit_length()
    three_quarters = power // 4 * 3
    return three_quarters if three_quarters >= count else power
