"""Micro-batches through a model whose layers are stages of a pipeline, by torch's schedule 1F1B.

After a warm-up a rank alternates between the forward pass of one micro-batch and the backward pass of an earlier one.
Source: PipeDream-Flush, arXiv:2006.09503.

Hidden states [M, H] travel, padded to the longest micro-batch of a call: every rank of a pipeline has all of them, so
that no shape has to be sent.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import pad
from typing_extensions import override

from paceline.errors import first_line
from paceline.models.activations import is_recomputing
from paceline.models.forward import PolicyForward
from paceline.models.loaded import Loaded
from paceline.models.parallel.context import Tokens
from paceline.models.parallel.process_group import RankLost
from paceline.models.parallel.ranks import ParallelLayout
from paceline.models.parallel.stages import Stages
from paceline.models.rows import take_rows
from paceline.objective.micro_batches import MicroBatch
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import is_out_of_memory, return_free_memory
from paceline.training.learner.forward_backward import ForwardBackward, Loss, head_values


@dataclass(kw_only=True, slots=True)
class Pipelined(ForwardBackward):
    """`ForwardBackward` over a pipeline: each rank is given all `Stages.passes` micro-batches of its share.

    Both calls raise RankLost where another rank of the pipeline is gone, or silent for too long.
    """

    forward: PolicyForward
    temperature: float
    """Sampling temperature of the engine, so that logprobs are of the same distribution."""
    parallel_layout: ParallelLayout
    stages: Stages

    @override
    def values(self, loaded: Loaded, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor] | None]:
        computed = list[tuple[Tensor, Tensor] | None]([None] * len(batches))

        def note(number: int, logprobs: Tensor, entropy: Tensor) -> Tensor:
            computed[number] = logprobs, entropy
            return logprobs.new_zeros(())

        if batches:
            numbers = torch.arange(len(batches))
            with torch.no_grad():
                stage = self._stage(loaded, batches, note)
                with _lost_or_own():
                    schedule = ScheduleGPipe(stage, len(batches), scale_grads=False)
                    schedule.step(numbers, return_outputs=False, number=numbers)
        self.parallel_layout.rest(loaded.model)
        return computed

    @override
    def backward(self, loaded: Loaded, batches: Sequence[MicroBatch], loss: Loss) -> None:
        if batches:
            numbers = torch.arange(len(batches))
            stage = self._stage(loaded, batches, loss)
            with _lost_or_own():
                schedule = Schedule1F1B(stage, len(batches), loss_fn=lambda value, _: value, scale_grads=False)
                schedule.step(numbers, target=numbers, return_outputs=False, number=numbers)

    def _stage(self, loaded: Loaded, batches: Sequence[MicroBatch], loss: Loss) -> PipelineStage:
        model, tokens = loaded.model, [self.parallel_layout.tokens(batch) for batch in batches]
        longest = max(len(part.batch.input_ids) for part in tokens)
        width = model.config.get_text_config().hidden_size
        # of what travels only the shape is read; a loss and a micro-batch's number are what the ends have instead
        states = torch.empty(longest, width, dtype=model.dtype, device="meta", requires_grad=torch.is_grad_enabled())
        number = torch.zeros(1, dtype=torch.int64, device="meta")
        value = torch.zeros((), dtype=model.dtype, device="meta")
        return PipelineStage(
            _StagePasses(self, loaded, tokens, loss, longest),
            self.stages.rank,
            self.stages.ranks,
            model.device,
            input_args=number if self.stages.is_first else states,
            output_args=value if self.stages.is_last else states,
            group=self.stages.group,
        )


class _StagePasses(nn.Module):
    """Passes of a call's micro-batches through this rank's stage: a module without weights, as torch would take ZeRO's
    slices into its own hands."""

    def __init__(self, how: Pipelined, loaded: Loaded, tokens: Sequence[Tokens], loss: Loss, longest: int) -> None:
        super().__init__()
        self.how, self.loaded, self.tokens, self.loss, self.longest = how, loaded, tokens, loss, longest
        self.gone_back = 0

    def forward(self, entering: Tensor, *, number: Tensor) -> Tensor:
        """Output of the stage: hidden states [longest, H], or the loss after the last stage."""
        ACTIVITY.beat("learner", f"micro-batch {int(number) + 1} of {len(self.tokens)} in a stage")
        tokens, parallel_layout, model = self.tokens[int(number)], self.how.parallel_layout, self.loaded.model
        before = None if self.how.stages.is_first else entering[: len(tokens.batch.input_ids)]
        if self.how.stages.is_last:
            values = parallel_layout.run(model, lambda: self._head(tokens.batch, self._through(tokens, before)))
            result = self.loss(int(number), *tokens.join(*values))
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
            return self.how.forward.through(model, tokens, before)

    def _padded(self, states: Tensor) -> Tensor:
        return pad(states.to(self.loaded.model.dtype), (0, 0, 0, self.longest - len(states)))

    def _head(self, batch: MicroBatch, states: Tensor) -> tuple[Tensor, Tensor]:
        loaded, hidden = self.loaded, take_rows(states, batch.sources)
        hidden = hidden.to(loaded.compute_dtype) if loaded.compute_dtype != loaded.model.dtype else hidden
        return head_values(
            loaded.model,
            hidden,
            batch.targets,
            temperature=self.how.temperature,
            rule=self.how.forward.head,
            parallel_layout=self.how.parallel_layout,
        )

    def _before_backward(self, gradient: Tensor) -> None:
        self.gone_back += 1
        if is_recomputing(self.loaded.model):  # then memory is short
            return_free_memory(gradient.device)
        self.how.parallel_layout.begin_pass(self.loaded.model, last=self.gone_back == len(self.tokens))


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
