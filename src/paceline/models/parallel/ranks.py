"""What the processes that train one policy need of each other, and a process that is alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from paceline.config.layout import Sizes
from paceline.errors import TrainingError
from paceline.kernels.logprobs import LogitPasses
from paceline.models.parallel.stages import Stages
from paceline.models.parallel.tokens import AllTokens, Tokens
from paceline.objective.micro_batches import MicroBatch

Numbers = Mapping[str, float]
Found = TypeVar("Found")


class RankLost(TrainingError):
    """The others cannot be reached, or do not answer: one of them is the culprit, this process is not."""


class Split(Protocol):
    """What of a model's layers lies on a rank, while micro-batches go through them."""

    @property
    def stages(self) -> Stages | None:
        """Which of a pipeline's stages are this rank's; None where every rank has something of all layers."""

    def tokens(self, batch: MicroBatch) -> Tokens:
        """What of a micro-batch this rank computes."""

    def run(self, model: nn.Module, call: Callable[[], Found]) -> Found:
        """A pass: whatever is done with the model's weights. Tensors in a tuple are what a gradient may come to."""

    def begin_pass(self, model: nn.Module, *, last: bool) -> None:
        """Before each pass with a gradient; `last`: gradients are complete behind it."""

    def rest(self, model: nn.Module) -> None:
        """After passes without a gradient: what was fetched for them is given back."""

    def local(self, weight: Tensor) -> Tensor:
        """What this rank computes with of a parameter that its module has at hand."""

    def shared(self, head: Tensor, hidden: Tensor) -> Tensor:
        """Hidden states, whose gradient all ranks that hold rows of this output embedding contribute to."""

    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        """The passes over logits of which each rank has those of its rows of the output embedding; None: it has all."""


class Words(Protocol):
    """What all ranks say to each other, whatever else they do meanwhile."""

    rank: int
    """Which of them this is, from 0."""

    def exchange(self, text: str) -> Sequence[str]:
        """What each rank said, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class Ranks(Protocol):
    """`size` processes that train one policy, each with a share of every step's samples. All make the same calls.

    Ranks that hold parts of the same copy of the weights, or share the tokens of the same samples, have the same share,
    and one of them speaks for all.
    """

    rank: int
    """Which of them this is, from 0."""
    size: int
    sizes: Sizes
    """Of the grid that they stand in."""
    shares: int
    """In how many parts the samples are shared out."""
    share: int
    """Which of them is this rank's."""
    speaks: bool
    """Whether this rank's numbers count for its share."""
    split: Split

    def passes(self, counts: Sequence[int]) -> int:
        """How many passes this rank makes where the shares have so many micro-batches."""

    def add_up_gradients(self, model: nn.Module) -> None:
        """Give every rank the sum of all ranks' gradients of what it holds, the same bits wherever the same is held;
        None stays where no rank has one.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        """The norm of the whole gradient, which is scaled down to `limit` where it is longer.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def collect(self, numbers: Numbers) -> Sequence[Numbers]:
        """What each rank gave, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def exchange(self, text: str) -> Sequence[str]:
        """What each rank said, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def aside(self) -> Words:
        """A way to exchange words from another thread, that nothing of the training comes into.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        """A rank's tensor on all ranks: there it is `tensor`; elsewhere the same comes back in the memory of `tensor`.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class _Whole:
    """`Split` of a rank that has all of every layer, always."""

    stages: Stages | None = None

    def tokens(self, batch: MicroBatch) -> Tokens:
        """See `Split`."""
        return AllTokens(batch=batch)

    def run(self, model: nn.Module, call: Callable[[], Found]) -> Found:
        """See `Split`."""
        return call()

    def begin_pass(self, model: nn.Module, *, last: bool) -> None:
        """See `Split`."""

    def rest(self, model: nn.Module) -> None:
        """See `Split`."""

    def local(self, weight: Tensor) -> Tensor:
        """See `Split`."""
        return weight

    def shared(self, head: Tensor, hidden: Tensor) -> Tensor:
        """See `Split`."""
        return hidden

    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        """See `Split`."""
        return None


WHOLE = _Whole()


class _OneRank:
    """`Ranks` of a process that trains alone."""

    rank, size = 0, 1
    sizes = Sizes()
    share, shares = 0, 1
    speaks = True
    split: Split = WHOLE

    def passes(self, counts: Sequence[int]) -> int:
        """See `Ranks`."""
        return counts[0]

    def add_up_gradients(self, model: nn.Module) -> None:
        """See `Ranks`."""

    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        """See `Ranks`."""
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    def collect(self, numbers: Numbers) -> Sequence[Numbers]:
        """See `Ranks`."""
        return [numbers]

    def exchange(self, text: str) -> Sequence[str]:
        """See `Ranks`."""
        return [text]

    def aside(self) -> Words:
        """See `Ranks`."""
        return self

    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        """See `Ranks`."""
        return tensor


ONE_RANK = _OneRank()
