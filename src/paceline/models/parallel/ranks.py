"""The interface between processes that train one policy. The classes here implement it for a single process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from paceline.config.layout import Sizes
from paceline.kernels.logprobs import LogitPasses
from paceline.models.parallel.context import Tokens
from paceline.models.parallel.stages import Stages
from paceline.objective.micro_batches import MicroBatch

RankNumbers = Mapping[str, float]
ReturnT = TypeVar("ReturnT")


class ParallelLayout:
    """Layout of a model on the ranks, as a pass on this rank sees it. This class: every rank has the whole model."""

    @property
    def stages(self) -> Stages | None:
        """The stages of a pipeline; None if every rank has something of all layers."""
        return None

    def tokens(self, batch: MicroBatch) -> Tokens:
        """Return the tokens of a micro-batch that this rank computes."""
        return Tokens(batch=batch)

    def run(self, model: nn.Module, call: Callable[[], ReturnT]) -> ReturnT:
        """Run a pass that uses the model's weights. Tensors in a returned tuple may receive gradients."""
        return call()

    def begin_pass(self, model: nn.Module, *, last: bool) -> None:
        """Prepare a pass with a gradient; `last`: gradients are complete after it."""

    def rest(self, model: nn.Module) -> None:
        """Free the weights that passes without a gradient have gathered."""

    def local(self, weight: Tensor) -> Tensor:
        """Return the part of a parameter that this rank computes with."""
        return weight

    def shared(self, head: Tensor, hidden: Tensor) -> Tensor:
        """Return `hidden`; its gradient is summed over the ranks that hold rows of the head (Megatron's f)."""
        return hidden

    def logit_passes(self, head: Tensor) -> LogitPasses | None:
        """Return passes over logits that are split over the vocabulary; None if this rank has all rows of the head."""
        return None


WHOLE = ParallelLayout()


class TextGroup(Protocol):
    """A process group that gathers text from all ranks."""

    rank: int
    """This rank's number, from 0."""

    def all_gather_text(self, text: str) -> Sequence[str]:
        """Return the text of every rank, by rank."""


class Ranks:
    """`size` processes that train one policy, each with a share of every step's samples. This class: a single one.

    All make the same calls. Ranks that hold parts of the same copy of the weights, or share the tokens of the same
    samples, have the same share, and one of them reports for all.

    Raises:
        RankLost: another rank is gone, or silent for too long; any call that waits for the others.
    """

    rank: int = 0
    """This rank's number, from 0."""
    size: int = 1
    sizes: Sizes = Sizes()
    """Size of each axis of the mesh."""
    shares: int = 1
    """Number of shares into which samples are divided."""
    share: int = 0
    """This rank's share, from 0."""
    speaks: bool = True
    """True if this rank's numbers count for its share."""
    parallel_layout: ParallelLayout = WHOLE

    def passes(self, counts: Sequence[int]) -> int:
        """Return the number of passes this rank makes, from the number of micro-batches of each share."""
        return counts[0]

    def add_up_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over all ranks. Ranks that hold the same parameter get the same bits.

        A gradient stays None if no rank has one."""

    def clip_gradients(self, parameters: Sequence[nn.Parameter], *, limit: float) -> Tensor:
        """Scale the whole gradient down to a norm of `limit` if it is longer; return the norm before."""
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    def collect(self, numbers: RankNumbers) -> Sequence[RankNumbers]:
        """Return the numbers of every rank, by rank."""
        return [numbers]

    def all_gather_text(self, text: str) -> Sequence[str]:
        """Return the text of every rank, by rank."""
        return [text]

    def side_group(self) -> TextGroup:
        """Return a group for another thread, whose messages never mix with those of training."""
        return self

    def broadcast(self, tensor: Tensor, *, source: int) -> Tensor:
        """Send the tensor of rank `source` to all ranks, into the memory of their `tensor`."""
        return tensor


ONE_RANK = Ranks()
