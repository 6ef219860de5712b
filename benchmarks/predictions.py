"""What one GPU is predicted to give, from the cost model alone: python benchmarks/predictions.py

Every figure has its formula, so that it can be computed again where the code or the workload changes. Rates are the
data sheets' (`floors.DATA_SHEETS`) but for products, of which an H100 gave 790 TFLOP/s in the best one and
638 in those of a micro-batch. What no formula gives is an assumption, a constant below.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from floors import DATA_SHEETS, Rates, Work, floor
from materials import SHAPES, config_of, random_prompts
from step_work import Group, Shape, Training, backward, conversion, decode, forward, optimiser, prefill
from update_work import ROWS, Row
from workloads import GENERATE, STEP, Workload, completion_limits

from paceline.training.plan.shape import GPUS, Device

RESULTS = Path(__file__).parent / "results"
DEVICES = (GPUS["h100"], GPUS["h200"])
SHEETS = {GPUS[name].name: DATA_SHEETS[name] for name in ("h100", "h200")}
"""The makers' rates by the device's name."""
BYTES, LAYER_BYTES_SAVED = 2, 1
"""Of a number in bfloat16, and what a layer's weight in e4m3 has less."""
QUANTIZED = 5
"""Kernels of a layer that e4m3 adds: each of four products has its rows written first, and one a bias added after."""
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
"""Seconds of TRL for giving vLLM the weights of half a billion, and for waking it; in addition to its update as it was
measured, with 8 rows a micro-batch and every layer computed again."""
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
    """On an H100 80GB, unless it names another GPU."""


def groups_of(workload: Workload, repetition: int = 1) -> list[Group]:
    """Prompts and completions of a repetition, as every contender is given them."""
    made = random_prompts(workload, repetition + 1)[repetition * workload.prompts :]
    limits = completion_limits(workload, repetition)
    return [Group(prompt=len(ids), completions=each or ()) for (_, _, ids, _), each in zip(made, limits, strict=False)]


def rates_of(device: Device, share: float = 1.0) -> Rates:
    """Products as measured, memory by the data sheet, of which `share` is reached."""
    return Rates(matrix=PRODUCTS, bandwidth=((1.0, bandwidth_of(device) * share),))


def bandwidth_of(device: Device) -> float:
    """Bytes per second by the data sheet."""
    return SHEETS[device.name].bandwidth_at(1.0)


def step_seconds(shape: Shape, work: Work, device: Device) -> float:
    """A step of decoding: launches x LAUNCH + bytes / (READING x bandwidth)."""
    launches = LAUNCHES_PER_LAYER * shape.layers + LAUNCHES_PER_STEP
    return launches * LAUNCH + floor(work, rates_of(device, READING))


def sampling_seconds(
    shape: Shape, groups: Sequence[Group], device: Device, step: Callable[[Shape, Work, Device], float] = step_seconds
) -> float:
    """prefill's floor + the steps of decoding."""
    before = floor(prefill(shape, groups, size=BYTES), rates_of(device, READING))
    return before + sum(step(shape, one, device) for one in decode(shape, groups, size=BYTES))


def float8_step_seconds(shape: Shape, work: Work, device: Device) -> float:
    """A step of decoding with layers in e4m3: half of their bytes, and some kernels more in each."""
    saved = (shape.multiplied - shape.head) * LAYER_BYTES_SAVED
    fewer = replace(work, bytes=work.bytes - saved, touched=work.touched - saved)
    return step_seconds(shape, fewer, device) + QUANTIZED * shape.layers * LAUNCH


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
    known = json.loads((RESULTS / "gpu-step-qwen-0.5b-long.json").read_text())["workloads"]["qwen-0.5b-long"]
    ours = known["contenders"]["paceline"]
    theirs = known["contenders"]["trl-generate-bfloat16-8-checkpointing"]
    return [
        *of_sampling("qwen-0.5b-long", ours),
        *of_sampling("qwen-1.5b-long", None),
        *of_sampling("qwen-7b-long", None),
        *(one for size in ("qwen-1.5b", "qwen-7b") for row in ROWS[size] for one in of_update(row)),
        *of_step("qwen-0.5b", theirs, ours),
        *of_step("qwen-1.5b", theirs, None),
        of_long_step(),
    ]


def predicted(
    what: str, formula: str, value: Callable[[Device], float], form: str, measured: str = "not yet"
) -> Prediction:
    """A figure of both devices, in this form."""
    on_h100, on_h200 = (form.format(value(device)) for device in DEVICES)
    return Prediction(what=what, formula=formula, values=(on_h100, on_h200), measured=measured)


def drawn(workload: Workload) -> tuple[Shape, list[Group]]:
    """A workload's model, and the prompts and completions of its first repetition."""
    return Shape.of(config_of(SHAPES[workload.size])), groups_of(workload)


def of_sampling(name: str, ours: dict | None) -> list[Prediction]:
    """Figures of a workload's generation; `ours` is what was measured of it."""
    shape, groups = drawn(GENERATE[name])
    tokens = sum(sum(group.completions) for group in groups)
    works = decode(shape, groups, size=BYTES)

    def mine(device: Device) -> float:
        return sampling_seconds(shape, groups, device)

    def share(device: Device) -> float:
        return works[0].bytes / step_seconds(shape, works[0], device) / bandwidth_of(device)

    seconds, rate = "not yet", "not yet"
    if ours is not None:
        seconds = f"{ours['generate_seconds']:.1f} s"
        rate = f"{ours['tokens_per_step'] / ours['generate_seconds']:,.0f}"
    return [
        predicted(
            f"{name}: bytes of decoding over the bandwidth",
            "sum over steps of weights + cache + logits, / data sheet",
            lambda device: sum(one.bytes for one in works) / bandwidth_of(device),
            "{:.2f} s",
            "a floor",
        ),
        predicted(
            f"{name}: time of the slowest completion",
            f"prefill + steps x (launches x {LAUNCH * 1e6:.0f} us + bytes / {READING} of bandwidth)",
            mine,
            "{:.2f} s",
            seconds,
        ),
        predicted(f"{name}: tokens/s", "tokens / that", lambda device: tokens / mine(device), "{:,.0f}", rate),
        predicted(
            f"{name}: over vLLM's",
            f"vLLM: the same and {VLLM_STEP * 1e3:.0f} ms a step, {VLLM_ROW * 1e6:.0f} us a row",
            lambda device: vllm_seconds(shape, groups, device) / mine(device),
            "{:.2f}",
        ),
        predicted(
            f"{name}: share of the bandwidth, {FULL_ROWS} rows",
            "bytes of the first step / its seconds / data sheet",
            share,
            "{:.0%}",
        ),
        predicted(
            f"{name}: tokens/s with layers in e4m3, over those in bfloat16",
            f"half of the layers' bytes, {QUANTIZED} kernels more in each",
            lambda device: mine(device) / sampling_seconds(shape, groups, device, float8_step_seconds),
            "{:.2f}",
        ),
    ]


def measured_updates(size: str) -> dict[str, tuple[dict, str]]:
    """The rows of a size that were measured, by name, each with the GPU's name."""
    file = RESULTS / f"gpu-update-{size}.json"
    if not file.exists():
        return {}
    found = json.loads(file.read_text())
    return {row["name"]: (row, found["machine"]["gpu"]) for row in found["rows"] if "error" not in row}


def of_update(row: Row) -> list[Prediction]:
    """An update's MFU, where nothing waits in main memory, and its planned memory."""
    mfu_seen = peak_seen = "not yet"
    if row.name in (measured := measured_updates(row.size)):
        figures, gpu = measured[row.name]
        mfu_seen, peak_seen = f"{figures['mfu']:.0%} ({gpu})", f"{figures['peak_mib'] / 1024:.1f} GiB ({gpu})"

    def mfu(device: Device) -> float:
        seconds = update_seconds(row.shape, row.work, device, adapter=row.lora, again=row.checkpointing)
        return row.operations / seconds / SHEETS[device.name].matrix

    planned = [row.planned(device) for device in DEVICES]
    fits = ["" if peak <= 0.95 * device.memory else ", too much" for peak, device in zip(planned, DEVICES, strict=True)]
    peak = Prediction(
        what=f"{row.name}: peak",
        formula="`paceline plan`, the update without libraries",
        values=tuple(f"{peak / 2**30:.1f} GiB{more}" for peak, more in zip(planned, fits, strict=True)),
        measured=peak_seen,
    )
    if row.offload:
        return [peak]
    formula = "operations / seconds of the update / 989 TFLOP/s"
    return [predicted(f"{row.name}: MFU", formula, mfu, "{:.0%}", mfu_seen), peak]


def of_step(size: str, theirs: dict, ours: dict | None) -> list[Prediction]:
    """Figures of a step at a size; `theirs` is TRL's measured step at 0.5B, `ours` what was measured at this size."""
    shape, groups = drawn(replace(STEP["qwen-0.5b-long"], size=size))
    scale = shape.multiplied / Shape.of(config_of(SHAPES["qwen-0.5b"])).multiplied
    slow, trl_update = theirs["step_seconds"], theirs["step_seconds"] - theirs["generate_seconds"]

    def update(device: Device) -> float:
        return update_seconds(shape, groups, device)

    def mine(device: Device) -> float:
        return sampling_seconds(shape, groups, device) + update(device)

    def trl(device: Device) -> float:
        return vllm_seconds(shape, groups, device) + scale * (trl_update + SYNC)

    seconds, of_it = "not yet", "not yet"
    if ours is not None:
        seconds, of_it = f"{ours['step_seconds']:.1f} s", f"{ours['step_seconds'] - ours['generate_seconds']:.1f} s"
    found = [
        predicted(f"{size}: a step", "sampling + update", mine, "{:.2f} s", seconds),
        predicted(
            f"{size}: of it the update",
            f"operations / 638 TFLOP/s + {PASSES} x kept bytes + optimiser",
            update,
            "{:.2f} s",
            of_it,
        ),
        predicted(
            f"{size}: TRL with vLLM over Paceline",
            f"(vLLM's sampling + weights' ratio x ({trl_update:.2f} s measured + {SYNC} s)) / a step",
            lambda device: trl(device) / mine(device),
            "{:.1f}",
        ),
    ]
    if ours is not None:
        what, formula = f"{size}: TRL with its own generation over Paceline", f"{slow:.1f} s measured / a step, medians"
        ratio = f"{slow / ours['step_seconds']:.1f}"
        found.append(predicted(what, formula, lambda device: slow / mine(device), "{:.1f}", ratio))
    return found


def of_long_step() -> Prediction:
    """A step whose completions are very long."""
    shape, groups = drawn(STEP["qwen-0.5b-32k"])
    return predicted(
        "qwen-0.5b-32k: a step",
        f"sampling + update, longest {max(max(group.completions) for group in groups):,} tokens",
        lambda device: sampling_seconds(shape, groups, device) + update_seconds(shape, groups, device),
        "{:.0f} s",
    )


def table(rows: Sequence[Prediction]) -> str:
    """The predictions as the page shows them."""
    lines = ["| figure | formula | H100 | H200 | measured, H100 or as named |", "|---|---|--:|--:|--:|"]
    lines += [f"| {one.what} | {one.formula} | {one.values[0]} | {one.values[1]} | {one.measured} |" for one in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(all_predictions()))
