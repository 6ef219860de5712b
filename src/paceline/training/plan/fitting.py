"""Fit a run into a device: the largest micro-batch, layouts of several processes, the one change that makes it fit.

The functions below `Fitting` put all that into words for a terminal.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.config.layout import Sizes, layout
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.reports.format import gibibytes
from paceline.training.plan.batches import forwarded_tokens, table
from paceline.training.plan.memory import MemoryPlan, SamplerMemory, memory_plan
from paceline.training.plan.shape import Device, ModelShape

USABLE = 0.95
"""Share of a device's memory that a run can use; allocators hold the rest."""
LARGEST_BUDGET = 1 << 20
MOST_PROCESSES = 64
ADAPTER_RANK = 16
"""Rank of the adapter that is proposed."""
NOT_SPLIT = {"tensor_parallel": 1, "pipeline_parallel": 1}
MOST_LISTED = 6
"""Most layouts that are listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutChange:
    """Another configuration, and the memory it takes."""

    words: str
    """Options that differ, as they are typed."""
    memory: MemoryPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitting:
    """One configuration on one kind of device."""

    config: Config
    shape: ModelShape
    device: Device

    def plan(self, config: Config | None = None, sizes: Sizes | None = None) -> MemoryPlan:
        """Plan the memory of a configuration; None: this one, with as few processes as its options ask for."""
        config = config or self.config
        sizes = sizes or layout(config.parallel, config.parallel.fewest)
        return memory_plan(config, self.shape, sizes, on=self.device)

    def has_room(self, memory: MemoryPlan | SamplerMemory) -> bool:
        """Return True if the device has that much, or its memory is not known."""
        return memory.peak <= self.usable

    @property
    def usable(self) -> float:
        """Bytes of the device that a process may take."""
        return math.inf if self.device.memory is None else USABLE * self.device.memory

    def largest_micro_batch(self, sizes: Sizes, *, recomputing: bool) -> int | None:
        """The largest power of 2 whose update fits, with every layer computed again or none; None: not even the
        smallest, which holds one completion with its prompt."""
        longest = self.config.data.max_prompt_length + self.config.sampling.max_completion_length
        largest, budget = None, 1 << (longest - 1).bit_length()
        while budget <= LARGEST_BUDGET:
            again = {"gradient_checkpointing": "true" if recomputing else "false"}
            memory = self.plan(_with(self.config, optim={"micro_batch_tokens": budget}, model=again), sizes)
            if not self.has_room(memory):
                break
            largest = budget
            if budget >= forwarded_tokens(self.config, sizes):
                break
            budget *= 2
        return largest

    def layouts(self, processes: int) -> list[LayoutChange]:
        """Return the layouts that fit the number of processes; those that send least come first."""
        # slices of what belongs to weights first, then parts of layers, then runs of layers
        options: list[dict[str, int]] = [{"zero_stage": stage, **NOT_SPLIT} for stage in range(4)]
        parts = 2
        while parts <= processes:
            for axis in NOT_SPLIT:
                for stage in (0, 3) if parts < processes else (0,):
                    options.append({"zero_stage": stage, **NOT_SPLIT, axis: parts})
            parts *= 2
        tried = [self._laid_out(layout_options, processes) for layout_options in options]
        return [change for change in tried if change is not None and self.has_room(change.memory)]

    def one_change(self, sizes: Sizes) -> LayoutChange | None:
        """Return the first change that makes room by itself; those that cost a run least come first."""
        return next((change for change in self._changes(sizes) if self.has_room(change.memory)), None)

    def smallest(self, sizes: Sizes) -> LayoutChange:
        """Return the change that needs the least memory."""
        return min(self._changes(sizes), key=lambda change: change.memory.peak)

    def _changes(self, sizes: Sizes) -> Iterator[LayoutChange]:
        config, now = self.config, self.plan(sizes=sizes)
        longest = config.data.max_prompt_length + config.sampling.max_completion_length
        budget = 1 << (now.cut.tokens - 1).bit_length() - 1
        while budget >= longest:
            yield self._changed(sizes, "optim", "micro_batch_tokens", budget)
            budget //= 2
        yield self._changed(sizes, "model", "gradient_checkpointing", "true")
        sequences = config.engine.concurrent_sequences // 2
        while sequences >= config.sampling.num_generations:
            yield self._changed(sizes, "engine", "concurrent_sequences", sequences)
            sequences //= 2
        if self.device.kind == "cpu":
            yield self._changed(sizes, "loop", "background_save", False)
        elif not config.parallel.zero_stage and config.optim.optimizer == "adamw":
            yield self._changed(sizes, "optim", "offload", (*config.optim.offload, "optimizer"))
        if not config.parallel.zero_stage and "optimizer" not in config.optim.offload:
            yield self._changed(sizes, "optim", "optimizer", "adamw_8bit")
        if not config.lora.lora_rank:
            yield self._changed(sizes, "lora", "lora_rank", ADAPTER_RANK)
        if self.device.kind == "cpu" or config.cluster.cluster:  # on one machine all share its memory
            return
        processes = sizes.ranks
        while (processes := 2 * processes) <= MOST_PROCESSES:
            change = self._laid_out({"zero_stage": 3, **NOT_SPLIT}, processes)
            if change is not None:
                yield replace(change, words=f"--processes {processes} {change.words}")

    def _changed(self, sizes: Sizes, section: str, name: str, value: Any) -> LayoutChange:
        typed = " ".join(value) if isinstance(value, tuple) else str(value).lower()
        memory = self.plan(_with(self.config, **{section: {name: value}}), sizes)
        return LayoutChange(words=f"--{name.replace('_', '-')} {typed}", memory=memory)

    def _laid_out(self, options: dict[str, int], processes: int) -> LayoutChange | None:
        """Lay the run out; None where the options do not fit the number of processes or the model."""
        try:
            config = _with(self.config, parallel=options)
            sizes = layout(config.parallel, processes)
        except ConfigError:
            return None
        if self.shape.num_heads % sizes.tensor or self.shape.num_layers % sizes.pipeline:
            return None
        words = [
            f"--{name.replace('_', '-')} {value}" for name, value in options.items() if value > NOT_SPLIT.get(name, 0)
        ]
        return LayoutChange(words=" ".join(words) or "copies (the default)", memory=self.plan(config, sizes))


def _with(config: Config, **sections: dict[str, Any]) -> Config:
    return replace(config, **{name: replace(getattr(config, name), **options) for name, options in sections.items()})


def describe_memory(memory: MemoryPlan) -> str:
    """Table of the parts in the phases that have them, in GiB."""
    optimizer, saved = memory.optimizer_here, memory.saved_here
    everywhere = [
        ("libraries", memory.libraries),
        ("weights", memory.weights),
        ("optimiser", optimizer),
        ("reference model", memory.reference),
        ("what reads images", memory.vision),
        ("features of images", memory.features),
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
    """Table of the parts of a process that only samples, in GiB."""
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
    """List the layouts that fit, with the peak of each process."""
    if not layouts:
        return f"No layout of {processes} processes fits."
    rows = [(change.words, f"{_gib(change.memory.peak)} GiB") for change in layouts[:MOST_LISTED]]
    more = f"\nand {len(layouts) - MOST_LISTED} more" if len(layouts) > MOST_LISTED else ""
    return f"Layouts that fit {processes} processes, the peak of each:\n{table(rows)}{more}"


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
