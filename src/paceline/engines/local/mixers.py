"""What mixes a layer's tokens in place of attention: mixers that keep a state of fixed size for each row.

S rows, P prompts, L prompt length, W width of the model.
"""

from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

MixerStates = tuple[Tensor, ...]
"""What a mixer keeps of the tokens so far, each [rows, ...]: such as a convolution's last inputs, a recurrent state."""


class StateMixer(Protocol):
    """A recurrent layer's mixer, input and output products included. Knows nothing of prompts, rows or residuals."""

    def new_states(self, rows: int) -> MixerStates:
        """Return the states before the first token: zeros."""

    def of_prompts(
        self, normed: Float[Tensor, "P L W"], lengths: Int[Tensor, " P"], states: MixerStates
    ) -> tuple[Float[Tensor, "P L W"], MixerStates]:
        """Mix right-padded tokens that continue `states`, which stay as they are.

        Returns what each token gives, and the states behind the real end of each row, in new tensors. `lengths` are
        at least 1, on the host.
        """

    def of_step(self, normed: Float[Tensor, "S W"], states: MixerStates) -> Float[Tensor, "S W"]:
        """Mix one more token of each row; changes the states in place."""
