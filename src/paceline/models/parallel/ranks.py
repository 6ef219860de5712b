"""What processes that train one policy need of each other, and the same for a process that trains alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from paceline.config.layout import Sizes
from paceline.errors import TrainingError
from paceline.kernels.logprobs import LogitPasses
from paceline.models.parallel.stages import Stages
from paceline.models.parallel.tokens import AllTokens, Tokens
from paceline.objective.micro_batches import MicroBatch

RankNumbers = Mapping[str, float]
ReturnT = TypeVar("ReturnT")


class RankLost(TrainingError):
    """The other ranks are gone or silent. One of them failed; this process did not."""


class ParallelLayout(Protocol):
    """How a model lies on the ranks, as a forward and backward pass on this rank sees it."""

    @property
    def stages(self) -> Stages | None:
        """This rank's stages of a pipeline; None if every rank has something of all layers."""

    def tokens(self, batch: MicroBatch) -> Tokens:
        """Return the tokens of a micro-batch that this rank computes."""

    def run(self, model: nn.Module, call: Callable[[], ReturnT]) -> ReturnT:
        """Run a pass that uses the model's weights. Tensors in a returned tuple may receive gradients."""

    def begin_pass(self, model: nn.Module, *, last: bool) -> None:
        """Prepare a pass with a gradient; `last`: gradients are complete after it."""

    def rest(self, model: nn.Module) -> None:
        """Free the weights that passes without a gradient have gathered."""

    def local(self, weight: Tensor) -> Tensor:
        """Return the part of a parameter that this rank computes with."""

    def shared(self, head: Tensor, hidden: Tensor) -> Tensor:
        """Return `hidden`; its gradient is summed over the ranks that hold rows of the head (Megatron's f)."""

    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        """Return passes over logits that are split over the vocabulary; None if this rank has all rows of the head."""


class TextGroup(Protocol):
    """A process group that gathers text from all ranks."""

    rank: int
    """This rank's number, from 0."""

    def all_gather_text(self, text: str) -> Sequence[str]:
        """Return the text of every rank, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class Ranks(Protocol):
    """`size` processes that train one policy, each with a share of every step's samples. All make the same calls.

    Ranks that hold parts of the same copy of the weights, or share the tokens of the same samples, have the same share,
    and one of them reports for all.
    """

    rank: int
    """This rank's number, from 0."""
    size: int
    sizes: Sizes
    """Size of each axis of the mesh."""
    shares: int
    """Number of shares into which samples are divided."""
    share: int
    """This rank's share, from 0."""
    speaks: bool
    """True if this rank's numbers count for its share."""
    parallel_layout: ParallelLayout

    def passes(self, counts: Sequence[int]) -> int:
        """Return the number of passes this rank makes, from the number of micro-batches of each share."""

    def add_up_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over all ranks. Ranks that hold the same parameter get the same bits.

        A gradient stays None if no rank has one.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        """Scale the whole gradient down to a norm of `limit` if it is longer; return the norm before.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def collect(self, numbers: RankNumbers) -> Sequence[RankNumbers]:
        """Return the numbers of every rank, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def all_gather_text(self, text: str) -> Sequence[str]:
        """Return the text of every rank, by rank.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def side_group(self) -> TextGroup:
        """Return a group for another thread, whose messages never mix with those of training.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """

    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        """Send the tensor of rank `source` to all ranks, into the memory of their `tensor`.

        Raises:
            RankLost: another rank is gone, or silent for too long.
        """


class _WholeModel(ParallelLayout):
    """`ParallelLayout` of a rank that has all of every layer."""

    stages: Stages | None = None

    @override
    def tokens(self, batch: MicroBatch) -> Tokens:
        return AllTokens(batch=batch)

    @override
    def run(self, model: nn.Module, call: Callable[[], ReturnT]) -> ReturnT:
        return call()

    @override
    def begin_pass(self, model: nn.Module, *, last: bool) -> None:
        pass

    @override
    def rest(self, model: nn.Module) -> None:
        pass

    @override
    def local(self, weight: Tensor) -> Tensor:
        return weight

    @override
    def shared(self, head: Tensor, hidden: Tensor) -> Tensor:
        return hidden

    @override
    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        return None


WHOLE = _WholeModel()


class _OneRank(Ranks):
    """`Ranks` of a process that trains alone."""

    rank, size = 0, 1
    sizes = Sizes()
    share, shares = 0, 1
    speaks = True
    parallel_layout: ParallelLayout = WHOLE

    @override
    def passes(self, counts: Sequence[int]) -> int:
        return counts[0]

    @override
    def add_up_gradients(self, model: nn.Module) -> None:
        pass

    @override
    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    @override
    def collect(self, numbers: RankNumbers) -> Sequence[RankNumbers]:
        return [numbers]

    @override
    def all_gather_text(self, text: str) -> Sequence[str]:
        return [text]

    @override
    def side_group(self) -> TextGroup:
        return self

    @override
    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        return tensor


ONE_RANK = _OneRank()
