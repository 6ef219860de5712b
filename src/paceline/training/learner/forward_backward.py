"""Micro-batches through a model, forward and back: where all of its layers are in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.kernels.cpu import logits as on_cpu
from paceline.kernels.cuda import logits as on_cuda
from paceline.kernels.logprobs import HeadRule, token_logprobs
from paceline.models.activations import is_recomputing
from paceline.models.forward import PolicyForward
from paceline.models.loaded import Loaded
from paceline.models.parallel.ranks import WHOLE, ParallelLayout
from paceline.models.routing import rest_routers
from paceline.objective.micro_batches import MicroBatch
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.devices import return_free_memory

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
        tokens, is_half = layout.tokens(batch), dtype != model.dtype

        def run() -> tuple[Tensor, Tensor]:
            with torch.autocast(tokens.batch.input_ids.device.type, dtype=dtype, enabled=is_half):
                hidden = self.forward.of(model, tokens)
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
