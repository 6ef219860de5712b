"""Micro-batches through a model whose layers are stages of a pipeline, by the schedules of torch.

    1f1b         stages alternate between the forward pass of one micro-batch and the backward pass of an earlier one
    interleaved  two stages on every rank, so that a rank waits for half as long until the first tokens come
    zero_bubble  a weight's gradient is left for when a rank would wait

Sources: PipeDream-Flush, arXiv:2006.09503; interleaved stages, arXiv:2104.04473, section 2.2; ZB-H1, arXiv:2401.10241.

Hidden states [M, H] travel, padded to the longest micro-batch of a call: every rank of a pipeline has all of them, so
that none has to be told of a shape.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.nn.functional import pad

from paceline.errors import ConfigError, first_line
from paceline.models.activations import is_recomputing
from paceline.models.forward import PolicyForward
from paceline.models.loaded import Loaded
from paceline.models.parallel.ranks import ParallelLayout, RankLost
from paceline.models.parallel.stages import Stages, stage_of
from paceline.models.parallel.tokens import Tokens
from paceline.models.rows import take_rows
from paceline.objective.micro_batches import MicroBatch
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.memory import is_out_of_memory, return_free_memory
from paceline.training.learner.forward_backward import ForwardBackward, Loss, TokenValues, WholeModel, head_values

_SEVERAL = (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleLoopedBFS)
SCHEDULES = {
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
}


def make_runner(forward: PolicyForward, *, temperature: float, parallel_layout: ParallelLayout) -> ForwardBackward:
    """How micro-batches go through a model that lies on the ranks as `parallel_layout` says."""
    stages = parallel_layout.stages
    if stages is None:
        return WholeModel(forward=forward, temperature=temperature, parallel_layout=parallel_layout)
    return Pipelined(forward=forward, temperature=temperature, parallel_layout=parallel_layout, stages=stages)


@dataclass(kw_only=True, slots=True)
class Pipelined(ForwardBackward):
    """`ForwardBackward` over a pipeline: each rank is given all `Stages.passes` micro-batches of its share."""

    forward: PolicyForward
    temperature: float
    """The engine's: logprobs are of the distribution that was sampled from."""
    parallel_layout: ParallelLayout
    stages: Stages

    def values(self, loaded: Loaded, batches: Sequence[MicroBatch]) -> list[TokenValues | None]:
        """Run all micro-batches forward, through the stages of every rank.

        Raises:
            RankLost: another rank of the pipeline is gone, or silent for too long.
        """
        found = list[TokenValues | None]([None] * len(batches))

        def note(number: int, values: TokenValues) -> Tensor:
            found[number] = values
            return values.logprobs.new_zeros(())

        if batches:
            with torch.no_grad():
                parts = self._parts(loaded, batches, note)
                _run(ScheduleGPipe if len(parts) == 1 else ScheduleLoopedBFS, parts, len(batches))
        self.parallel_layout.rest(loaded.model)
        return found

    def backward(self, loaded: Loaded, batches: Sequence[MicroBatch], loss: Loss) -> None:
        """Add the gradient of all micro-batches, one stage after the other on the ranks that hold them.

        Raises:
            ConfigError: layers are computed again, once for each weight whose gradient waits.
            RankLost: another rank of the pipeline is gone, or silent for too long.
        """
        if self.stages.schedule == "zero_bubble" and is_recomputing(loaded.model):
            raise ConfigError(
                "the schedule zero_bubble would compute a layer again for each of its weights; take the schedule 1f1b "
                "or interleaved, or --gradient-checkpointing false"
            )
        if batches:
            _run(SCHEDULES[self.stages.schedule], self._parts(loaded, batches, loss), len(batches), loss_fn=_itself)

    def _parts(self, loaded: Loaded, batches: Sequence[MicroBatch], loss: Loss) -> list[PipelineStage]:
        """This rank's stages as torch's schedules take them."""
        model, tokens = loaded.model, [self.parallel_layout.tokens(batch) for batch in batches]
        longest = max(len(one.batch.input_ids) for one in tokens)
        width = model.config.get_text_config().hidden_size
        # of what travels only the shape is read; a loss and a micro-batch's number are what the ends have instead
        states = torch.empty(longest, width, dtype=model.dtype, device="meta", requires_grad=torch.is_grad_enabled())
        number, value = (
            torch.zeros(1, dtype=torch.int64, device="meta"),
            torch.zeros((), dtype=model.dtype, device="meta"),
        )
        return [
            PipelineStage(
                _Calls(_StagePass(self, loaded, tokens, loss, stage, longest)),
                stage,
                self.stages.number,
                model.device,
                input_args=number if stage == 0 else states,
                output_args=value if stage == self.stages.number - 1 else states,
                group=self.stages.group,
            )
            for stage in self.stages.own
        ]


class _Calls(nn.Module):
    """A stage to torch: a module whose weights are those that gradients are split off for. It owns none of them, as
    torch would take ZeRO's slices into its own hands."""

    def __init__(self, run: "_StagePass") -> None:
        super().__init__()
        self.run = run

    def forward(self, entering: Tensor, *, number: Tensor) -> Tensor:
        return self.run(int(number), entering)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.run.loaded.model.parameters(recurse)


class _StagePass:
    """Passes of a call's micro-batches through one stage."""

    def __init__(
        self, how: Pipelined, loaded: Loaded, tokens: Sequence[Tokens], loss: Loss, stage: int, longest: int
    ) -> None:
        self.how, self.loaded, self.tokens, self.loss, self.longest = how, loaded, tokens, loss, longest
        self.is_first, self.is_last = stage == 0, stage == how.stages.number - 1
        self.layers = stage_of(loaded.model, how.stages, stage)
        self.gone_back = 0

    def __call__(self, number: int, entering: Tensor) -> Tensor:
        """What leaves the stage: hidden states [longest, H], behind the last one the loss."""
        HEARTBEAT.beat("learner", f"micro-batch {number + 1} of {len(self.tokens)} in a stage")
        tokens, parallel_layout, model = self.tokens[number], self.how.parallel_layout, self.loaded.model
        before = None if self.is_first else entering[: len(tokens.batch.input_ids)]
        if self.is_last:
            result = self._value(number, tokens, before)
        else:
            result = parallel_layout.run(model, lambda: self._padded(self._through(tokens, before)))
            if torch.is_grad_enabled() and not result.requires_grad:
                result.requires_grad_()  # nothing is trained so far, but the next stage's gradient comes all the same
        if result.requires_grad:
            result.register_hook(self._before_backward)
        return result

    def _through(self, tokens: Tokens, before: Tensor | None) -> Tensor:
        dtype, model = self.loaded.compute_dtype, self.loaded.model
        with torch.autocast(model.device.type, dtype=dtype, enabled=dtype != model.dtype):
            return self.how.forward.through(model, self.layers, tokens, before)

    def _padded(self, states: Tensor) -> Tensor:
        return pad(states.to(self.loaded.model.dtype), (0, 0, 0, self.longest - len(states)))

    def _value(self, number: int, tokens: Tokens, before: Tensor | None) -> Tensor:
        parallel_layout, model = self.how.parallel_layout, self.loaded.model
        if not (self.how.stages.schedule == "zero_bubble" and torch.is_grad_enabled()):
            values = parallel_layout.run(model, lambda: self._head(tokens.batch, self._through(tokens, before)))
            return self.loss(number, TokenValues(*tokens.join(*values)))
        # the head's two gradients come from one pass over its logits, which must not be made once for each of them
        states = parallel_layout.run(model, lambda: self._through(tokens, before))
        cut = states.detach().requires_grad_()
        self.loss(number, TokenValues(*tokens.join(*self._head(tokens.batch, cut)))).backward()
        assert cut.grad is not None
        return (states * cut.grad).sum()

    def _head(self, batch: MicroBatch, states: Tensor) -> tuple[Tensor, Tensor]:
        loaded, hidden = self.loaded, take_rows(states, batch.sources)
        hidden = hidden.to(loaded.compute_dtype) if loaded.compute_dtype != loaded.model.dtype else hidden
        temperature = self.how.temperature
        return head_values(
            loaded.model, hidden, batch.targets, temperature=temperature, parallel_layout=self.how.parallel_layout
        )

    def _before_backward(self, gradient: Tensor) -> None:
        self.gone_back += 1
        if is_recomputing(self.loaded.model):  # then memory is short
            return_free_memory(gradient.device)
        self.how.parallel_layout.begin_pass(self.loaded.model, last=self.gone_back == len(self.tokens))


def _run(
    kind: type, parts: list[PipelineStage], count: int, loss_fn: Callable[[Tensor, Tensor], Tensor] | None = None
) -> None:
    """All of a call's micro-batches, by one of torch's schedules."""
    given = parts if issubclass(kind, _SEVERAL) else parts[0]
    numbers = torch.arange(count)
    with _lost_or_own():
        schedule = kind(given, count, loss_fn=loss_fn, scale_grads=False)
        schedule.step(numbers, target=None if loss_fn is None else numbers, return_outputs=False, number=numbers)


def _itself(value: Tensor, number: Tensor) -> Tensor:
    """A loss that was computed in the last stage."""
    return value


@contextmanager
def _lost_or_own() -> Iterator[None]:
    """torch tells of a lost neighbour by a RuntimeError; into another one it wraps what a stage itself raises."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        if is_out_of_memory(error):
            raise
        raise RankLost(
            f"a pipeline's stage waited when another rank went away or was late ({first_line(error)})"
        ) from None
