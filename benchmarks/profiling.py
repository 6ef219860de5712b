"""Where the device's time goes: kernels by name, and the share of the wall clock in which any of them runs.

On a GPU these are its kernels and copies as torch's profiler sees them. On a CPU torch's own innermost operations stand
in for them, so that the same code can be tried anywhere.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from step_work import Group, Shape, decode
from torch.profiler import ProfilerActivity, profile

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine

NAMED = 15
"""Kernels that are listed, those that take longest."""
ROWS = (256, 64, 16, 1)
"""Completions that are decoded at a time."""
SHORT, LONG = 16, 80
"""Tokens of the completions of two calls, whose difference is that of their decoding steps alone."""
PROMPT = 384
"""Tokens of their prompts, one for each `GROUP` completions."""
GROUP = 16

Span = tuple[str, int, int]
"""Name, start and end in nanoseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a device did during a call."""

    wall: float
    """Seconds of the call under the profiler."""
    busy: float
    """Seconds in which at least one kernel ran."""
    seconds: Mapping[str, float]
    """By name of a kernel."""
    calls: Mapping[str, int]

    def told(self, *, wall: float) -> dict[str, object]:
        """As a result holds it; `wall` is the seconds of the same call without the profiler."""
        names = sorted(self.seconds, key=lambda name: -self.seconds[name])[:NAMED]
        kernels = [{"name": name[:100], "seconds": self.seconds[name], "calls": self.calls[name]} for name in names]
        return {
            "seconds": wall,
            "seconds_profiled": self.wall,
            "busy_seconds": self.busy,
            "busy_share": self.busy / wall,
            "launches": sum(self.calls.values()),
            "kernels": kernels,
        }


def busy(spans: Iterable[Span]) -> float:
    """Seconds that spans cover together; those that overlap count once.

    >>> busy([("a", 0, 2_000_000_000), ("b", 1_000_000_000, 3_000_000_000), ("c", 5_000_000_000, 6_000_000_000)])
    4.0
    """
    covered, until = 0, 0
    for _, start, end in sorted(spans, key=lambda span: span[1]):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered / 1e9


def profiled(call: Callable[[], object], device: str) -> Profile:
    """Run a call under torch's profiler."""
    is_cuda = device == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=False) as found:
        started = time.perf_counter()
        call()
        if is_cuda:
            torch.cuda.synchronize()
        wall = time.perf_counter() - started
    spans = _kernels(found) if is_cuda else _operations(found)
    seconds, calls = Counter[str](), Counter[str]()
    for name, start, end in spans:
        seconds[name] += (end - start) / 1e9
        calls[name] += 1
    return Profile(wall=wall, busy=busy(spans), seconds=seconds, calls=calls)


def _kernels(found: profile) -> list[Span]:
    # as they were recorded: a step of a large model has hundreds of thousands, which no tree is made of
    events = found.profiler.kineto_results.events()
    return [
        (one.name(), one.start_ns(), one.start_ns() + one.duration_ns())
        for one in events
        if one.device_type() == torch.autograd.DeviceType.CUDA
    ]


def _operations(found: profile) -> list[Span]:
    return [
        (one.name, round(one.time_range.start * 1e3), round(one.time_range.end * 1e3))
        for one in found.events()
        if not one.cpu_children
    ]


def decoding(engine: LocalEngine, shape: Shape, device: str, *, size: int, rows: int) -> dict[str, object]:
    """A decoding step of so many rows: its seconds, the bytes that it must read, what the device does in it.

    All figures are differences of two calls, over the steps that one has more than the other.
    """
    completions = min(GROUP, rows)
    prompts = [
        tuple(2 + (number + 7 * place) % 1000 for place in range(PROMPT)) for number in range(rows // completions)
    ]

    def call(length: int) -> Callable[[], object]:
        requests = [
            Request(
                prompt_ids=prompt,
                keys=tuple(sample_key(0, "profile", str(number), 0, sample) for sample in range(completions)),
            )
            for number, prompt in enumerate(prompts)
        ]
        return lambda: engine.generate(requests, Sampling(max_completion_length=length))

    def seconds(length: int) -> float:
        started = time.perf_counter()
        call(length)()
        return time.perf_counter() - started

    call(SHORT)()  # compiles and records
    steps = LONG - SHORT
    wall = max(1e-9, min(seconds(LONG) for _ in range(2)) - min(seconds(SHORT) for _ in range(2))) / steps
    short, long = (profiled(call(length), device) for length in (SHORT, LONG))
    groups = [Group(prompt=PROMPT, completions=(LONG,) * completions)] * len(prompts)
    works = decode(shape, groups, size=size)[SHORT - 1 :]
    difference = Profile(
        wall=(long.wall - short.wall) / steps,
        busy=(long.busy - short.busy) / steps,
        seconds={name: (value - short.seconds.get(name, 0.0)) / steps for name, value in long.seconds.items()},
        calls={name: round((count - short.calls.get(name, 0)) / steps) for name, count in long.calls.items()},
    )
    read = sum(work.bytes for work in works) / len(works)
    return {"rows": rows, "bytes": read, "bytes_per_second": read / wall, **difference.told(wall=wall)}
