"""What one GPU is predicted to give, from the cost model alone: python benchmarks/predictions.py

Every figure has its formula, so that it can be computed again where the code or the workload changes. Rates are the
data sheets' (`paceline.training.plan.hardware`) but for products, of which an H100 gave 790 TFLOP/s in the best one and
638 in those of a micro-batch. What no formula gives is an assumption, a constant below.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from floors import Rates, Work, floor
from materials import SHAPES, config_of, random_prompts
from step_work import Group, Shape, Training, backward, conversion, decode, forward, optimiser, prefill
from update_work import ROWS, Row
from workloads import GENERATE, STEP, Workload, completion_limits

from paceline.training.plan.hardware import GPUS, Device

RESULTS = Path(__file__).parent / "results"
BYTES = 2
"""Of a number in bfloat16."""
PRODUCTS = 638e12
"""Operations per second of a micro-batch's products on an H100; an H200 has the same cores."""
READING = 0.8
"""Share of the data sheet's bandwidth that kernels reach: an H100's copy of 512 MiB reached 0.89."""
LAUNCHES_PER_LAYER, LAUNCHES_PER_STEP = 12, 20
"""Kernels of a decoding step in a recorded graph, of a layer and around the layers."""
LAUNCH = 2e-6
"""Seconds that a kernel of a recorded graph takes at least."""
VLLM_STEP, VLLM_ROW = 2.0e-3, 6e-6
"""Seconds of vLLM's host for a step and for each row in it, in addition to the device's."""
PASSES = 8
"""Times that each number which the backward pass needs is moved between products, there and back."""
SYNC = 0.3
"""Seconds of TRL for giving vLLM the weights of half a billion, and for waking it."""
TRL_UPDATE = 16.67
"""Seconds of TRL's update at 0.5B on an H100: a step of 85.82 less 69.15 of generation; 8 rows a micro-batch, every
layer computed again."""
FULL_ROWS = 256
"""Rows at which the share of the bandwidth is wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One figure."""

    what: str
    formula: str
    values: tuple[str, str]
    """On an H100 and on an H200."""
    measured: str = "not yet"
    """On an H100 80GB."""


def groups_of(workload: Workload, repetition: int = 1) -> list[Group]:
    """Prompts and completions of a repetition, as every contender is given them."""
    made = random_prompts(workload, repetition + 1)[repetition * workload.prompts :]
    limits = completion_limits(workload, repetition)
    return [Group(prompt=len(ids), completions=each or ()) for (_, _, ids, _), each in zip(made, limits, strict=False)]


def rates_of(device: Device, share: float = 1.0) -> Rates:
    """Products as measured, memory by the data sheet, of which `share` is reached."""
    assert device.rates is not None
    return Rates(matrix=PRODUCTS, bandwidth=((1.0, device.rates.reading * share),))


def sampling_seconds(shape: Shape, groups: Sequence[Group], device: Device) -> float:
    """prefill's floor + for each step of decoding: launches x LAUNCH + bytes / (READING x bandwidth)."""
    rates = rates_of(device, READING)
    started = (LAUNCHES_PER_LAYER * shape.layers + LAUNCHES_PER_STEP) * LAUNCH
    steps = decode(shape, groups, size=BYTES)
    return floor(prefill(shape, groups, size=BYTES), rates) + sum(started + floor(one, rates) for one in steps)


def vllm_seconds(shape: Shape, groups: Sequence[Group], device: Device) -> float:
    """The same device's work, and VLLM_STEP + VLLM_ROW x rows of each step."""
    lengths = [length for group in groups for length in group.completions]
    rows = sum(lengths) - len(lengths)
    return sampling_seconds(shape, groups, device) + (max(lengths) - 1) * VLLM_STEP + rows * VLLM_ROW


def update_seconds(
    shape: Shape, groups: Sequence[Group], device: Device, *, adapter: bool = False, again: bool = False
) -> float:
    """Operations / PRODUCTS + PASSES x what is kept / (READING x bandwidth) + the optimiser's bytes."""
    rates, training = rates_of(device, READING), Training.of(shape, groups)
    ahead = forward(shape, training, size=BYTES, micro_batches=1).operations
    back = backward(shape, training, size=BYTES, micro_batches=1).operations
    operations = ahead * (2 if again else 1) + (back - (training.products + training.head) * adapter)
    kept = training.tokens * shape.layers * shape.saved_per_token * BYTES
    moved = floor(optimiser(shape), rates) * (not adapter) + floor(conversion(shape, size=BYTES), rates)
    return operations / PRODUCTS + floor(Work(bytes=PASSES * kept * (1.3 if again else 1)), rates) + moved


def all_predictions() -> list[Prediction]:
    """The table, in the order in which it is measured."""
    devices = (GPUS["h100"], GPUS["h200"])
    known = json.loads((RESULTS / "gpu-step-qwen-0.5b-long.json").read_text())["workloads"]["qwen-0.5b-long"]
    ours = known["contenders"]["paceline"]
    theirs = known["contenders"]["trl-generate-bfloat16-8-checkpointing"]
    found = list[Prediction]()

    def add(what: str, formula: str, value, form: str, measured: str = "not yet") -> None:
        values = tuple(form.format(value(device)) for device in devices)
        found.append(Prediction(what=what, formula=formula, values=values, measured=measured))

    half = STEP["qwen-0.5b-long"]
    for name in ("qwen-0.5b-long", "qwen-1.5b-long", "qwen-7b-long"):
        workload = GENERATE[name]
        shape, groups = Shape.of(config_of(SHAPES[workload.size])), groups_of(workload)
        tokens = sum(sum(group.completions) for group in groups)
        seen = name == "qwen-0.5b-long"
        works = decode(shape, groups, size=BYTES)
        add(
            f"{name}: bytes of decoding over the bandwidth",
            "sum over steps of weights + cache + logits, / data sheet",
            lambda device, works=works: sum(one.bytes for one in works) / device.rates.reading,
            "{:.2f} s",
            "a floor",
        )
        add(
            f"{name}: time of the slowest completion",
            f"prefill + steps x (launches x {LAUNCH * 1e6:.0f} us + bytes / {READING} of bandwidth)",
            lambda device, shape=shape, groups=groups: sampling_seconds(shape, groups, device),
            "{:.2f} s",
            f"{ours['generate_seconds']:.1f} s" if seen else "not yet",
        )
        add(
            f"{name}: tokens/s",
            "tokens / that",
            lambda device, shape=shape, groups=groups, tokens=tokens: tokens / sampling_seconds(shape, groups, device),
            "{:,.0f}",
            f"{ours['tokens_per_step'] / ours['generate_seconds']:,.0f}" if seen else "not yet",
        )
        add(
            f"{name}: over vLLM's",
            f"vLLM: the same and {VLLM_STEP * 1e3:.0f} ms a step, {VLLM_ROW * 1e6:.0f} us a row",
            lambda device, shape=shape, groups=groups: (
                vllm_seconds(shape, groups, device) / sampling_seconds(shape, groups, device)
            ),
            "{:.2f}",
        )
        add(
            f"{name}: share of the bandwidth, {FULL_ROWS} rows",
            "bytes of the first step / its seconds / data sheet",
            lambda device, shape=shape, works=works: _share(shape, works[0], device),
            "{:.0%}",
        )
    for size in ("qwen-1.5b", "qwen-7b"):
        for row in ROWS[size]:
            add_row(row, devices, found)
    shape, groups = Shape.of(config_of(SHAPES[half.size])), groups_of(half)
    for size in ("qwen-0.5b", "qwen-1.5b"):
        workload = replace(half, size=size)
        shape, groups = Shape.of(config_of(SHAPES[size])), groups_of(workload)
        seen = size == "qwen-0.5b"
        scale = shape.multiplied / Shape.of(config_of(SHAPES["qwen-0.5b"])).multiplied

        def mine(device: Device, shape=shape, groups=groups) -> float:
            return sampling_seconds(shape, groups, device) + update_seconds(shape, groups, device)

        def trl(device: Device, shape=shape, groups=groups, scale=scale) -> float:
            return vllm_seconds(shape, groups, device) + scale * (TRL_UPDATE + SYNC)

        seconds = f"{ours['step_seconds']:.1f} s" if seen else "not yet"
        add(f"{size}: a step", "sampling + update", mine, "{:.2f} s", seconds)
        add(
            f"{size}: of it the update",
            f"operations / 638 TFLOP/s + {PASSES} x kept bytes + optimiser",
            lambda device, shape=shape, groups=groups: update_seconds(shape, groups, device),
            "{:.2f} s",
            f"{ours['step_seconds'] - ours['generate_seconds']:.1f} s" if seen else "not yet",
        )
        formula = f"(vLLM's sampling + weights' ratio x ({TRL_UPDATE} s measured + {SYNC} s)) / a step"
        add(
            f"{size}: TRL with vLLM over Paceline",
            formula,
            lambda device, mine=mine, trl=trl: trl(device) / mine(device),
            "{:.1f}",
        )
        if seen:
            slow = theirs["step_seconds"]
            add(
                f"{size}: TRL with its own generation over Paceline",
                f"{slow:.1f} s measured / a step",
                lambda device, mine=mine, slow=slow: slow / mine(device),
                "{:.1f}",
                f"{slow / ours['step_seconds']:.1f}",
            )
    long = STEP["qwen-0.5b-32k"]
    shape, groups = Shape.of(config_of(SHAPES[long.size])), groups_of(long)
    add(
        "qwen-0.5b-32k: a step",
        f"sampling + update, longest {max(max(group.completions) for group in groups):,} tokens",
        lambda device, shape=shape, groups=groups: (
            sampling_seconds(shape, groups, device) + update_seconds(shape, groups, device)
        ),
        "{:.0f} s",
    )
    return found


def _share(shape: Shape, first: Work, device: Device) -> float:
    started = (LAUNCHES_PER_LAYER * shape.layers + LAUNCHES_PER_STEP) * LAUNCH
    return first.bytes / (started + floor(first, rates_of(device, READING))) / device.rates.reading


def add_row(row: Row, devices: Sequence[Device], found: list[Prediction]) -> None:
    """An update's MFU, where nothing waits in main memory, and its planned memory."""
    if not row.offload:

        def mfu(device: Device) -> float:
            again = row.checkpointing
            seconds = update_seconds(row.shape, row.work, device, adapter=row.lora, again=again)
            return row.operations / seconds / device.rates.products

        found.append(
            Prediction(
                what=f"{row.name}: MFU",
                formula="operations / seconds of the update / 989 TFLOP/s",
                values=tuple(f"{mfu(device):.0%}" for device in devices),
            )
        )
    planned = [row.planned(device) for device in devices]
    fits = ["" if peak <= 0.95 * device.memory else ", too much" for peak, device in zip(planned, devices, strict=True)]
    found.append(
        Prediction(
            what=f"{row.name}: peak",
            formula="`paceline plan`, the update without libraries",
            values=tuple(f"{peak / 2**30:.1f} GiB{more}" for peak, more in zip(planned, fits, strict=True)),
        )
    )


def table(rows: Sequence[Prediction]) -> str:
    """The predictions as the page shows them."""
    lines = ["| figure | formula | H100 | H200 | measured, H100 |", "|---|---|--:|--:|--:|"]
    lines += [f"| {one.what} | {one.formula} | {one.values[0]} | {one.values[1]} | {one.measured} |" for one in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(all_predictions()))
