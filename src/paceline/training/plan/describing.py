"""The memory, the time and the layouts of a plan as texts for a terminal."""

from collections.abc import Sequence

from paceline.config.layout import Sizes
from paceline.reports.format import gibibytes
from paceline.training.plan.batches import table
from paceline.training.plan.fitting import Fitting, LayoutChange
from paceline.training.plan.hardware import Device, Rates
from paceline.training.plan.memory import MemoryPlan, SamplerMemory
from paceline.training.plan.seconds import StepTime

LAYOUTS = 6
"""Most layouts that are listed."""


def describe_memory(memory: MemoryPlan) -> str:
    """What each part takes in the phases that have it, in GiB."""
    optimizer, saved = memory.optimizer_here, memory.saved_here
    everywhere = [
        ("libraries", memory.libraries),
        ("weights", memory.weights),
        ("optimiser", optimizer),
        ("reference model", memory.reference),
        ("copy that samples", memory.resident),
        ("copy that is being saved", saved),
    ]
    sampling = [
        ("weights for the engine", memory.engine),
        ("key/value cache", memory.kv_cache),
        ("logits of a draw", memory.drawn),
    ]
    update = [
        ("gradients", memory.gradients),
        ("fetched at a time", memory.fetched),
        ("activations", memory.activations),
        ("logits", memory.head),
    ]
    rows = [("of each process, at most", f"{'sampling':>10}{'update':>10}")]
    rows += [(name, _gib(size) + _gib(size)) for name, size in everywhere if size]
    rows += [(name, _gib(size)) for name, size in sampling if size]
    rows += [(name, " " * 10 + _gib(size)) for name, size in update if size]
    rows += [("in all", _gib(memory.sampling) + _gib(memory.update) + "  GiB")]
    elsewhere = [("optimiser", memory.optimizer - optimizer), ("copy that is being saved", memory.saved - saved)]
    rows += [(f"{name}, in main memory", _gib(size)) for name, size in elsewhere if size]
    return table(rows)


def describe_sampler(memory: SamplerMemory) -> str:
    """What each part takes of a process that only samples, in GiB."""
    rows = [
        ("libraries", memory.libraries),
        ("weights", memory.weights),
        ("engine", memory.engine),
        ("key/value cache", memory.kv_cache),
        ("logits of a draw", memory.drawn),
    ]
    lines = [(name, _gib(size)) for name, size in rows if size]
    return table([*lines, ("in all", f"{_gib(memory.peak)}  GiB")])


def describe_room(fitting: Fitting, sizes: Sizes, memory: MemoryPlan) -> str:
    """Compare the peak with the device's memory, and say how large micro-batches may be."""
    device, peak = fitting.device, f"Peak {gibibytes(memory.peak)}"
    if device.memory is None:
        return f"{peak}. How much {device.name} has is not known."
    lines = [f"{peak} of the {gibibytes(device.memory)} of {device.name}."]
    if memory.cut.layers:
        lines.append(
            f"{memory.cut.layers} of {fitting.shape.num_layers} layers are computed again in the backward pass."
        )
    kept, again = (fitting.largest_micro_batch(sizes, recomputing=again) for again in (False, True))
    if again is None:
        lines.append("No micro-batch fits, not even one completion with its prompt and every layer computed again.")
    elif kept is None:
        lines.append(f"Largest micro-batch: {again:,} tokens with every layer computed again; none fits without that.")
    else:
        lines.append(f"Largest micro-batch: {kept:,} tokens, and {again:,} with every layer computed again.")
    return "\n".join(lines)


def describe_layouts(layouts: Sequence[LayoutChange], processes: int) -> str:
    """Those that fit, with the peak of each process."""
    if not layouts:
        return f"No layout of {processes} processes fits."
    rows = [(change.words, f"{_gib(change.memory.peak)} GiB") for change in layouts[:LAYOUTS]]
    more = f"\nand {len(layouts) - LAYOUTS} more" if len(layouts) > LAYOUTS else ""
    return f"Layouts that fit {processes} processes, the peak of each:\n{table(rows)}{more}"


def describe_time(time: StepTime, rates: Rates, device: Device) -> str:
    """Seconds of a step by phase, and the rates that they stand on."""
    rows = [
        ("sampling", f"{time.generate:10.2f} s"),
        ("update", f"{time.update:10.2f} s"),
        ("a step, at best" if rates.decoding is None else "a step", f"{time.step:10.2f} s"),
    ]
    said = f"{rates.products / 1e12:.3g} Tflop/s, {rates.reading / 1e9:,.0f} GB/s"
    if rates.training is not None:
        said += f", {rates.training / 1e12:.3g} Tflop/s forward and back"
    if rates.decoding is not None:
        said += f", {rates.decoding / 1e12:.3g} Tflop/s while decoding"
    return (
        f"{table(rows)}\nFor completions at their longest and every group trained on, without evaluations, by the "
        f"rates of {device.name}: {said}."
    )


def refusal(fitting: Fitting, sizes: Sizes, memory: MemoryPlan) -> str:
    """Why a configuration does not fit, and the one change that would make it."""
    device = fitting.device
    assert device.memory is not None  # all fits what is not known
    change = fitting.one_change(sizes)
    if change is not None:
        remedy = f"{change.words} would make it {gibibytes(change.memory.peak)}"
    else:
        least = fitting.smallest(sizes)
        remedy = f"no one change is enough, {least.words} leaves least, {gibibytes(least.memory.peak)}"
    return (
        f"--model {fitting.config.model.model} takes {gibibytes(memory.peak)} of each process, which must be at most "
        f"{gibibytes(fitting.usable)} on {device.name}; {remedy}"
    )


def sampler_refusal(fitting: Fitting, memory: SamplerMemory) -> str:
    """Why a process that only samples does not fit, and the option that decides how much it takes."""
    assert fitting.device.memory is not None  # all fits what is not known
    option = "--vllm-memory" if fitting.config.engine.engine == "vllm" else "--concurrent-sequences"
    return (
        f"--model {fitting.config.model.model} takes {gibibytes(memory.peak)} of each process that samples, which must "
        f"be at most {gibibytes(fitting.usable)} on {fitting.device.name}; lower {option} or take a smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:10.3f}" if size else " " * 10
