"""What this machine can do: rates of matrix products, bandwidth of memory, the cost of one call.

    python benchmarks/machine.py [--device cpu|cuda] [--threads 2] [--output FILE]

| part      | what is measured                                                                                         |
|-----------|----------------------------------------------------------------------------------------------------------|
| matrix    | x @ weight.T in float32 and bfloat16 by each library that torch has and by ours, at the sizes of a step  |
| bandwidth | reading (sum, inner product) and copying (bytes read plus bytes written), by the size of what is touched |
| calls     | one small operation of torch; one call of a compiled kernel, a tensor's address taken                    |

Every measurement is repeated until its share of time is spent. The best repetition is the machine undisturbed, and is
what floors are made of; the median beside it says how disturbed it was. Needs half a minute and a quiet machine.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from measuring import machine
from torch import Tensor

from paceline.kernels.cpu.compiling import address, declared, library
from paceline.kernels.linear import has_onednn

RESULTS = Path(__file__).parent / "results"
SECONDS = 0.25
"""Spent on each measurement, at least three repetitions whatever they take."""
LEAST_SECONDS = 2e-3
"""Of a repetition: shorter calls are repeated within it, so that the clock's own cost does not show."""
PRODUCTS = {
    "square": (2048, 2048, 2048),
    "micro-batch": (4096, 896, 4864),
    "decode 64": (64, 896, 4864),
    "decode 16": (16, 896, 4864),
    "head": (64, 896, 151_936),
    "small": (256, 64, 64),
}
"""Rows, inputs, outputs. The widths of Qwen2.5-0.5B, and those of the model that ships with Paceline."""
ONLY_ON_CUDA = {"square": (8192, 8192, 8192)}
SIZES = (1 << 20, 1 << 23, 1 << 26, 1 << 29)
"""Bytes touched: a core's own cache, the cores' together, beyond them, memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds per call."""

    best: float
    median: float
    repetitions: int


def timed(call: Callable[[], object], *, device: str, seconds: float = SECONDS) -> Timing:
    """Repeat a call for about `seconds`, after a warm-up."""
    clock = _cuda_clock if device == "cuda" else _cpu_clock
    clock(call, 2)
    inner = max(1, round(LEAST_SECONDS / max(clock(call, 1), 1e-7)))
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < until:
        taken.append(clock(call, inner) / inner)
    return Timing(best=min(taken), median=median(taken), repetitions=len(taken))


def _cpu_clock(call: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - started


def _cuda_clock(call: Callable[[], object], times: int) -> float:
    """By events of the device: what the host does meanwhile is not in it unless the device waits for it."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(times):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1000


def products(device: str) -> Iterator[dict[str, object]]:
    """Operations per second of every product by every library."""
    shapes = PRODUCTS | ONLY_ON_CUDA if device == "cuda" else PRODUCTS
    for name, (rows, inputs, outputs) in shapes.items():
        for dtype in (torch.float32, torch.bfloat16):
            # random numbers: a processor that saves power on zeros would look faster than it is
            x = torch.randn(rows, inputs, device=device).to(dtype)
            weight = torch.randn(outputs, inputs, device=device).to(dtype)
            for by, call in _libraries(x, weight).items():
                timing = timed(call, device=device)
                yield {
                    "name": name,
                    "rows": rows,
                    "inputs": inputs,
                    "outputs": outputs,
                    "dtype": str(dtype).removeprefix("torch."),
                    "library": by,
                    "rate": 2 * rows * inputs * outputs / timing.best,
                    **asdict(timing),
                }


def _libraries(x: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The ways to compute x @ weight.T; `packed`: the weight laid out beforehand as oneDNN likes it."""
    calls: dict[str, Callable[[], Tensor]] = {"torch": partial(F.linear, x, weight)}
    if x.device.type == "cpu" and has_onednn():
        onednn = torch.ops.mkldnn._linear_pointwise
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
        calls["oneDNN"] = partial(onednn, x, weight, None, "none", [], "")
        calls["oneDNN, packed"] = partial(onednn, x, packed, None, "none", [], "")
    return calls


def bandwidths(device: str) -> Iterator[dict[str, object]]:
    """Bytes per second that are read, and that are copied, by the bytes of what is touched."""
    for size in SIZES:
        whole = torch.rand(size // 4, device=device)
        one, other = whole.chunk(2)
        # either may be limited by its additions: the faster one is nearer to what the memory gives
        readings = (timed(call, device=device) for call in (whole.sum, partial(torch.dot, one, other)))
        reading = min(readings, key=lambda timing: timing.best)
        copying = timed(partial(one.copy_, other), device=device)
        for kind, timing in (("read", reading), ("copy", copying)):
            yield {"kind": kind, "bytes": size, "rate": size / timing.best, **asdict(timing)}


def calls(device: str) -> Iterator[dict[str, object]]:
    """Seconds of the smallest things that can be asked for."""
    x = torch.rand(16, device=device)
    yield {"name": "torch.mul, 16 elements", **asdict(timed(partial(torch.mul, x, x, out=x), device=device))}
    functions = library().functions
    if device == "cpu" and functions is not None:
        width = torch.zeros(1, dtype=torch.int64)
        call = declared(functions, "vector_width", "p")
        timing = timed(lambda: call(address(width)), device=device)
        yield {"name": "a compiled kernel that does nothing", **asdict(timing)}


def result_file(device: str) -> Path:
    """Where the result of a device lies unless told otherwise."""
    return RESULTS / ("machine.json" if device == "cpu" else "gpu-machine.json")


def described(device: str, threads: int) -> dict[str, object]:
    """The machine, with the GPU where that is what was measured."""
    told = machine(threads, packages=("torch",)) | {"device": device}
    return told if device == "cpu" else told | {"gpu": torch.cuda.get_device_name()}


def table(result: dict) -> list[str]:
    """The measurements as lines of text."""
    lines = [
        f"{'product':<13}{'rows':>6}{'inputs':>8}{'outputs':>9}  {'dtype':<9} {'library':<15}{'GFLOP/s':>9}"
        f"{'median':>9}"
    ]
    for one in result["matrix"]:
        lines.append(
            f"{one['name']:<13}{one['rows']:>6}{one['inputs']:>8}{one['outputs']:>9}  {one['dtype']:<9} "
            f"{one['library']:<15}{one['rate'] / 1e9:>9.0f}{one['rate'] * one['best'] / one['median'] / 1e9:>9.0f}"
        )
    for one in result["bandwidth"]:
        seen = one["rate"] * one["best"] / one["median"] / 1e9
        lines.append(f"{one['kind']} {one['bytes'] / 2**20:.0f} MiB: {one['rate'] / 1e9:.1f} GB/s (median {seen:.1f})")
    for one in result["calls"]:
        lines.append(f"{one['name']}: {one['best'] * 1e6:.2f} us (median {one['median'] * 1e6:.2f})")
    return lines


def measure(device: str, threads: int) -> dict[str, object]:
    """Everything, in the order of the table."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        return {
            "benchmark": "machine",
            "machine": described(device, threads),
            "matrix": list(products(device)),
            "bandwidth": list(bandwidths(device)),
            "calls": list(calls(device)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of torch on the CPU (default 2)")
    parser.add_argument("--output", type=Path, help="JSON file (default benchmarks/results/machine.json)")
    given = parser.parse_args()
    result = measure(given.device, given.threads)
    file = given.output or result_file(given.device)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(table(result)))
    print(file)


if __name__ == "__main__":
    main()
