"""Fit a run into a device: the largest micro-batch, layouts of several processes, the one change that makes it fit."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from paceline.config.layout import Sizes, layout
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.training.plan.batches import forwarded_tokens
from paceline.training.plan.hardware import Device
from paceline.training.plan.memory import MemoryPlan, SamplerMemory, memory_plan
from paceline.training.plan.shape import ModelShape

USABLE = 0.95
"""Share of a device's memory that a run can use; allocators hold the rest."""
LARGEST_BUDGET = 1 << 20
MOST_PROCESSES = 64
ADAPTER_RANK = 16
"""Rank of the adapter that is proposed."""
NOT_SPLIT = {"tensor_parallel": 1, "pipeline_parallel": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutChange:
    """Another configuration, and what it takes."""

    words: str
    """The options that differ, as they are typed."""
    memory: MemoryPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitting:
    """One configuration on one kind of device."""

    config: Config
    shape: ModelShape
    device: Device

    def plan(self, config: Config | None = None, sizes: Sizes | None = None) -> MemoryPlan:
        """What a configuration takes; None: this one, with as few processes as its options ask for."""
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
        found, budget = None, 1 << (longest - 1).bit_length()
        while budget <= LARGEST_BUDGET:
            again = {"gradient_checkpointing": "true" if recomputing else "false"}
            memory = self.plan(_with(self.config, optim={"micro_batch_tokens": budget}, model=again), sizes)
            if not self.has_room(memory):
                break
            found = budget
            if budget >= forwarded_tokens(self.config, sizes):
                break
            budget *= 2
        return found

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
        tried = [self._laid_out(one, processes) for one in options]
        return [change for change in tried if change is not None and self.has_room(change.memory)]

    def one_change(self, sizes: Sizes) -> LayoutChange | None:
        """The first of the changes that makes room by itself, from the one that costs a run least on."""
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
            found = self._laid_out({"zero_stage": 3, **NOT_SPLIT}, processes)
            if found is not None:
                yield replace(found, words=f"--processes {processes} {found.words}")

    def _changed(self, sizes: Sizes, section: str, name: str, value: Any) -> LayoutChange:
        said = " ".join(value) if isinstance(value, tuple) else str(value).lower()
        memory = self.plan(_with(self.config, **{section: {name: value}}), sizes)
        return LayoutChange(words=f"--{name.replace('_', '-')} {said}", memory=memory)

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
