"""How fast this machine multiplies and reads, found in about two seconds with a run's own operations."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.config.sections import ModelConfig
from paceline.training.plan.hardware import Device, Rates
from paceline.training.plan.shape import ModelShape

if TYPE_CHECKING:
    import torch

CALIBRATION_SECONDS = 0.5
"""Duration of each of the measurements."""
PRODUCT_ROWS = {"cpu": 1024, "cuda": 16_384}
"""Rows of the measured product: enough to be limited by arithmetic."""
BYTES_READ = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Bytes to read, more than any cache holds."""

DECODING_SHARE = 0.55
"""Share of a decoding step that its products take on a CPU; the rest are attention, norms and the draw. Found with 135
million parameters on two cores; with half a billion it was 0.56 (docs/performance.md)."""


def calibrated(
    device: Device, shape: ModelShape, number_bytes: int, config: ModelConfig, *, rows: int, tokens: int
) -> Device:
    """The device with measured rates: of products of this model's width, and of reading.

    `rows`: completions that are decoded at a time; `tokens`: those of a micro-batch; `number_bytes`: of a number in the
    precision of the computation.
    """
    import torch

    from paceline.runtime.devices import choose_threads

    if device.kind == "cpu":
        torch.set_num_threads(choose_threads(config, shape.parameters))
    products = _Products(device.kind, shape, torch.bfloat16 if number_bytes < 4 else torch.float32)
    read = torch.ones(BYTES_READ[device.kind] // 4, device=device.kind)
    many = PRODUCT_ROWS[device.kind]
    rates = Rates(
        products=products.forward(many),
        training=products.forward_and_back(min(tokens, many)),
        decoding=products.decode(rows, copies=shape.multiplied // products.weight.numel()),
        reading=read.nbytes / _seconds_of(read.sum, device.kind),
    )
    return replace(device, rates=rates)


class _Products:
    """Products with one weight of a feed-forward layer's size; each method gives operations per second."""

    def __init__(self, kind: str, shape: ModelShape, dtype: "torch.dtype") -> None:
        import torch

        self._kind, self._dtype = kind, dtype
        inner = max(shape.width, shape.layer // (4 * shape.width))
        self._trained = torch.randn(inner, shape.width, device=kind, requires_grad=True)
        self.weight = self._trained.detach().to(dtype)
        self._operations = 2 * self.weight.numel()
        """Floating-point operations for one row."""

    def _random(self, rows: int, width: int) -> "torch.Tensor":
        import torch

        return torch.randn(rows, width, device=self._kind).to(self._dtype)

    def forward(self, rows: int) -> float:
        """A pass without gradient."""
        from paceline.kernels.linear import product

        x = self._random(rows, self.weight.shape[1])
        return rows * self._operations / _seconds_of(lambda: product(x, self.weight), self._kind)

    def forward_and_back(self, rows: int) -> float:
        """A linear layer in training: its weight, in float32, is cast both ways, and so is its gradient."""
        import torch

        from paceline.kernels.linear import best_linear

        x, gradient = self._random(rows, self.weight.shape[1]).requires_grad_(), self._random(rows, len(self.weight))

        def work() -> None:
            with torch.autocast(self._kind, dtype=self._dtype, enabled=self._dtype != torch.float32):
                result = best_linear(x, self._trained, None)
            torch.autograd.grad(result, (x, self._trained), gradient)

        return 3 * rows * self._operations / _seconds_of(work, self._kind)

    def decode(self, rows: int, *, copies: int) -> float:
        """The engine's products with packed weights, less what goes on between them: of `copies` weights, or as many as
        no cache holds, which come from memory as the model's do."""
        import torch

        from paceline.engines.local.operations import choose_kernels

        kernels, x = choose_kernels(torch.device(self._kind), self._dtype), self._random(rows, self.weight.shape[1])
        count = max(1, min(copies, BYTES_READ[self._kind] // self.weight.nbytes))
        # a GPU is asked for all at once; on a CPU a short repetition is the one that is least disturbed
        at_once = count if self._kind == "cuda" else 1
        layers = itertools.cycle([kernels.prepared((self.weight.clone(), None)) for _ in range(count)])

        def work() -> None:
            for layer in itertools.islice(layers, at_once):
                kernels.linear(x, layer)

        share = 1.0 if self._kind == "cuda" else DECODING_SHARE
        return share * rows * at_once * self._operations / _seconds_of(work, self._kind)


def _seconds_of(work: Callable[[], object], kind: str) -> float:
    """Seconds of the fastest repetition: what other programs take of the machine is not the machine's."""
    import torch

    def done() -> None:
        work()
        if kind == "cuda":
            torch.cuda.synchronize()

    done()
    best, until = math.inf, time.perf_counter() + CALIBRATION_SECONDS
    while time.perf_counter() < until:
        begun = time.perf_counter()
        done()
        best = min(best, time.perf_counter() - begun)
    return best
