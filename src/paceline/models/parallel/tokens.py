"""What of a micro-batch's tokens a rank computes: all of them, or some of them between attentions."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from paceline.objective.micro_batches import MicroBatch


class HeadExchange(Protocol):
    """From some tokens and all heads to all tokens and some heads, and back.

    m of M tokens, H heads of queries, K of keys and values, of widths D and E; n ranks, h = H / n.

    All ranks that share the tokens make the same calls.
    """

    def to_heads(
        self, query: Float[Tensor, "m H D"], key: Float[Tensor, "m K D"], value: Float[Tensor, "m K E"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All tokens' queries [M, h, D], keys and values of the heads that are this rank's.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def to_tokens(self, states: Float[Tensor, "M h D"]) -> Float[Tensor, "m n_h D"]:
        """What this rank's heads found for all tokens, to what all heads found for this rank's tokens.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class Tokens(Protocol):
    """The tokens of a micro-batch that a rank computes."""

    @property
    def batch(self) -> MicroBatch:
        """The micro-batch, of whose input tokens and targets those are here that this rank computes; what is said of
        its sequences is of all tokens."""

    @property
    def exchange(self) -> HeadExchange | None:
        """How attention comes to all tokens; None: they are here."""

    def join(self, logprobs: Float[Tensor, " N_here"], entropy: Float[Tensor, " N_here"]) -> tuple[Tensor, Tensor]:
        """Gather the values of all N targets from all ranks, so that every rank computes the same loss.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class AllTokens(Tokens):
    """`Tokens` of a rank that computes all of them."""

    batch: MicroBatch
    exchange: HeadExchange | None = None

    @override
    def join(self, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs, entropy
