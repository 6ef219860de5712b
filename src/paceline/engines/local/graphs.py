"""Decoding steps over storage that never moves: run operation by operation at first, then as one CUDA graph.

A step is hundreds of short kernels, and starting them takes the host longer than running them takes the device. A
recorded graph starts them all at once. S rows, P prompts, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.engines import Sampling
from paceline.engines.local.attention import AttentionLayer, Context, SharedAttention
from paceline.engines.local.decoder import PromptMedia
from paceline.engines.local.fused import FusedDecoder
from paceline.engines.local.static import StaticAttention, room_problem
from paceline.engines.local.weights import planned_layers
from paceline.engines.sampling import draw
from paceline.errors import first_line
from paceline.kernels.cuda.decoding import CudaDecodingKernels
from paceline.kernels.flash_attention import AttentionKernel
from paceline.kernels.logprobs import PLAIN, HeadRule

if TYPE_CHECKING:
    from paceline.models.vision.tower import Vision

EAGER_CALLS = 2
"""Calls before recording, in which libraries initialise. Fewer than the steps in which an engine compares a decoder
with the model, so that a replay is among them."""

LEAST_ROWS = 16
"""Rows below which a step takes a GPU no less time, as it reads the same weights. Each smaller batch would have to be
recorded, which takes as long as ten steps."""

StepRecorder = Callable[[Callable[[], tuple[Tensor, ...]]], tuple[Callable[[], None], tuple[Tensor, ...]]]
"""Records a call; returns its replay and the tensors that each replay fills. The call's effects on other storage happen
in replays only. Raises `RuntimeError` if an operation cannot be recorded."""


def record_cuda_graph(call: Callable[[], tuple[Tensor, ...]]) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Record a call as a CUDA graph. Other threads may use the device meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = call()
    return graph.replay, outputs


class GraphedStep:
    """Calls a function of tensors whose shapes do not change between two `forget`s."""

    def __init__(self, step: Callable[..., tuple[Tensor, ...]], record: StepRecorder | None) -> None:
        """Call `step`, recorded by `record`; None: nothing is recorded."""
        self._step, self._record = step, record
        self.problem: str | None = None
        """Why recording failed, if it did; recording is not tried again."""
        self.forget()

    def forget(self) -> None:
        """Record anew, since storage of the function has moved or a shape has changed."""
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: tuple[Tensor, ...] = ()

    @property
    def recorded(self) -> bool:
        """True if the next call is a replay."""
        return self._replay is not None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the function's result in new tensors."""
        if self._replay is None and self._calls >= EAGER_CALLS and self._record is not None and self.problem is None:
            kept = tuple(tensor.clone() for tensor in inputs)
            try:
                self._replay, self._outputs = self._record(lambda: self._step(*kept))
                self._inputs = kept
            except RuntimeError as error:
                self.problem = f"its step cannot be recorded: {first_line(error)}"
        self._calls += 1
        if self._replay is None:
            return self._step(*inputs)
        for recorded, tensor in zip(self._inputs, inputs, strict=True):
            recorded.copy_(tensor)
        self._replay()
        return tuple(output.clone() for output in self._outputs)


def free_cuda_bytes(device: torch.device) -> int:
    """Return the device's free bytes, and those that torch has reserved and does not use."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


class GraphedDecoder(FusedDecoder):
    """A fused decoder whose attention is static and whose step is recorded.

    A call whose rows would take too much memory laid out for their longest completion is decoded over a cache that
    grows, and not recorded.
    """

    least_rows = LEAST_ROWS

    def __init__(  # noqa: PLR0913 - one decoder's model, and what its device offers
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        *,
        attention: AttentionKernel,
        record: StepRecorder | None,
        free_bytes: Callable[[], int],
        between: CudaDecodingKernels | None = None,
        head: HeadRule = PLAIN,
        float8: bool = False,
        vision: "Vision | None" = None,
    ) -> None:
        """`attention` is the kernel, and `between` computes what it needs before and after; None: torch's operations.

        `free_bytes` reads the device's free memory. `record` None: nothing is recorded.
        """
        super().__init__(model, dtype, None, head=head, float8=float8, vision=vision)
        # a state that has taken a token more cannot be taken back
        self.runs_ahead = all(parts.attends for _, parts in planned_layers(model))
        self._kernel, self._free_bytes, self._between = attention, free_bytes, between
        self._static: StaticAttention | None = None
        self.room_problem: str | None = None
        """Why memory did not suffice to record the last call, if so."""
        self.steps = GraphedStep(lambda tokens: (FusedDecoder.step(self, tokens),), record)
        self.draws = GraphedStep(self._draw_next, record)
        self._sampling = Sampling(max_completion_length=1)

    @override
    def _new_attention(self, num_rows: int, layers: Sequence[AttentionLayer]) -> SharedAttention:
        num_layers, heads, rotation = len(layers), self._heads, layers[0].rotation
        per_token = 2 * num_layers * heads.kv * heads.width * rotation.cosine.itemsize
        length, free = len(rotation.cosine), self._free_bytes()
        self.room_problem = room_problem(num_rows, length, bytes_per_token=per_token, free=free)
        if self.room_problem is not None:
            return super()._new_attention(num_rows, layers)
        self._static = StaticAttention(
            num_rows, num_layers, heads, rotation, kernel=self._kernel, between=self._between
        )
        return self._static

    @override
    @torch.inference_mode()
    def begin(self, num_rows: int, max_length: int) -> None:
        self._forget_steps()
        self._static = None  # of a call that was broken off
        super().begin(num_rows, max_length)

    @override
    @torch.inference_mode()
    def reread(self) -> None:
        # What was recorded reads the old copies.
        self._forget_steps()
        super().reread()

    @override
    def end(self) -> None:
        self._forget_steps()
        self._static = None
        super().end()

    @override
    @torch.inference_mode()
    def admit(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], media: Sequence[PromptMedia] = ()
    ) -> Float[Tensor, "P V"]:
        with self._forgetting_moved():
            return super().admit(prompts, rows, media)

    @override
    @torch.inference_mode()
    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        with self._forgetting_moved():
            super().resume(contexts, rows)

    @contextmanager
    def _forgetting_moved(self) -> Iterator[None]:
        """Record steps anew after the context, but only if storage has moved in it."""
        moves = None if self._static is None else self._static.moves
        yield
        if self._static is not None and self._static.moves != moves:
            self._forget_steps()

    @override
    @torch.inference_mode()
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._forget_steps()
        super().compact(keep, alive)

    @override
    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        return super().step(tokens) if self._static is None else self.steps(tokens)[0]

    @override
    @torch.inference_mode()
    def draw_next(
        self, tokens: Int[Tensor, " S"], uniform: Float[Tensor, " S"], sampling: Sampling
    ) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        # The draw is recorded with the step: logits are needed nowhere else.
        if sampling != self._sampling:
            self.draws.forget()
            self._sampling = sampling
        drawn, logprobs = (self._draw_next if self._static is None else self.draws)(tokens, uniform)
        return drawn, logprobs

    def _draw_next(self, tokens: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return draw(FusedDecoder.step(self, tokens), uniform, self._sampling)

    def _forget_steps(self) -> None:
        self.steps.forget()
        self.draws.forget()
