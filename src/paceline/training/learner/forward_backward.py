"""Micro-batches through a model, forward and back, in this process or along a pipeline; smaller where memory runs out.

In a pipeline the layers are stages on several ranks, run by torch's schedule 1F1B. After a warm-up a rank alternates
between the forward pass of one micro-batch and the backward pass of an earlier one. Source: PipeDream-Flush,
arXiv:2006.09503. Hidden states [M, H] travel, padded to the longest micro-batch of a call: every rank of a pipeline has
all of them, so that no shape has to be sent.

What ran out of memory is done again in micro-batches of half the tokens. Weights are those before it and the gradient
is the sum over the same samples, so the update is the same to rounding (law 1).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import pad
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.errors import TrainingError, first_line
from paceline.kernels.cpu import logits as on_cpu
from paceline.kernels.cuda import logits as on_cuda
from paceline.kernels.logprobs import HeadRule, token_logprobs
from paceline.models.activations import is_recomputing
from paceline.models.forward import PolicyForward
from paceline.models.loaded import Loaded
from paceline.models.parallel.context import Tokens
from paceline.models.parallel.process_group import RankLost
from paceline.models.parallel.ranks import WHOLE, ParallelLayout, Ranks
from paceline.models.parallel.stages import Stages
from paceline.models.routing import rest_routers
from paceline.models.rows import take_rows
from paceline.objective.micro_batches import MicroBatch
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import is_out_of_memory, release_memory, return_free_memory

Loss = Callable[[int, Tensor, Tensor], Tensor]
"""The loss of a micro-batch, given its number and the logprobs and entropies of its N target tokens, in nats."""


class ForwardBackward(Protocol):
    """Runs micro-batches through a model. Ranks that hold parts of one model make the same calls."""

    forward: PolicyForward
    """Computes hidden states."""

    def values(self, loaded: Loaded, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor] | None]:
        """Return logprobs and entropies [N] of each micro-batch's targets in nats, without a gradient; None where
        another rank has the model's head."""

    def backward(self, loaded: Loaded, batches: Sequence[MicroBatch], loss: Loss) -> None:
        """Add the gradient of the sum of all losses; a rank without the model's head is not asked for the loss."""


@dataclass(kw_only=True)
class WholeModel(ForwardBackward):
    """`ForwardBackward` of a model whose layers are all here, one micro-batch after the other."""

    forward: PolicyForward
    temperature: float
    """Sampling temperature of the engine, so that logprobs are of the same distribution."""
    parallel_layout: ParallelLayout = WHOLE

    @override
    def values(self, loaded: Loaded, batches: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor] | None]:
        with torch.no_grad():
            computed = list[tuple[Tensor, Tensor] | None]()
            for number, batch in enumerate(batches):
                ACTIVITY.beat("learner", f"pass {number + 1} of {len(batches)}, without gradient")
                computed.append(self._values(loaded, batch))
        rest_routers(loaded.model)
        self.parallel_layout.rest(loaded.model)
        return computed

    @override
    def backward(self, loaded: Loaded, batches: Sequence[MicroBatch], loss: Loss) -> None:
        is_short = is_recomputing(loaded.model) or self.parallel_layout is not WHOLE  # of memory
        for number, batch in enumerate(batches):
            if is_short:
                return_free_memory(loaded.model.device)
            self.parallel_layout.begin_pass(loaded.model, last=number == len(batches) - 1)
            value = loss(number, *self._values(loaded, batch))
            if is_short:
                return_free_memory(value.device)
            value.backward()
            rest_routers(loaded.model)  # not earlier, as layers may be recomputed

    def _values(self, loaded: Loaded, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        layout, model, dtype = self.parallel_layout, loaded.model, loaded.compute_dtype
        tokens, is_half, forward = layout.tokens(batch), dtype != model.dtype, self.forward
        if forward.vision is not loaded.vision:  # of a reference, whose encoder may have other weights
            forward = replace(forward, vision=loaded.vision)

        def run() -> tuple[Tensor, Tensor]:
            with torch.autocast(tokens.batch.input_ids.device.type, dtype=dtype, enabled=is_half):
                hidden = forward.of(model, tokens)
            hidden = hidden.to(dtype) if is_half else hidden
            targets = tokens.batch.targets
            temperature, rule = self.temperature, self.forward.head
            return head_values(model, hidden, targets, temperature=temperature, rule=rule, parallel_layout=layout)

        return tokens.join(*layout.run(model, run))


def head_values(
    model: PreTrainedModel,
    hidden: Float[Tensor, "N H"],
    targets: Int[Tensor, " N"],
    *,
    temperature: float,
    rule: HeadRule,
    parallel_layout: ParallelLayout,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Logprobs of the targets and entropies, from the hidden states that predict them, through the model's head."""
    head = model.get_output_embeddings()
    matrix = parallel_layout.local(head.weight)
    if head.bias is not None:  # the bias is one more column, read by a constant 1
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
        matrix = torch.cat([matrix, parallel_layout.local(head.bias)[:, None]], dim=1)
    kernels = on_cuda if hidden.device.type == "cuda" else on_cpu
    passes = parallel_layout.logit_passes(head.weight) or kernels.logit_passes(hidden.device, hidden.dtype)
    hidden = parallel_layout.shared(head.weight, hidden)
    return token_logprobs(hidden, matrix, targets, temperature=temperature, passes=passes, rule=rule)


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
