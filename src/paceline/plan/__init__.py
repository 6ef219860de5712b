"""What a configuration amounts to, before anything is loaded.

batches.py      completions, tokens, updates, steps
shape.py        a decoder's numbers, from its config.json
reading.py      finds that file, and counts parameters
hardware.py     kinds of devices: memory, rates
held.py         what of a model a process holds in a layout
activations.py  what an update keeps for its backward pass
memory.py       bytes of a process that trains, by part and phase
seconds.py      how long a step takes at best
fitting.py      what fits a device: micro-batches, layouts, the one change that would
describing.py   all that as texts
"""

from paceline.plan.batches import (
    BatchPlan,
    batch_plan,
    considered_micro_batches,
    describe,
    most_prompts_per_step,
    most_tokens,
    total_steps,
)
from paceline.plan.describing import describe_layouts, describe_memory, describe_room, describe_time, refusal
from paceline.plan.fitting import Change, Fitting
from paceline.plan.hardware import CPU, GPUS, Device, Rates, gpu_of
from paceline.plan.memory import MemoryPlan, computed_bytes, memory_plan
from paceline.plan.reading import read_shape
from paceline.plan.seconds import StepTime, step_time
from paceline.plan.shape import ModelShape, model_shape

__all__ = [
    "BatchPlan",
    "batch_plan",
    "considered_micro_batches",
    "describe",
    "most_prompts_per_step",
    "most_tokens",
    "total_steps",
    "describe_layouts",
    "describe_memory",
    "describe_room",
    "describe_time",
    "refusal",
    "Change",
    "Fitting",
    "CPU",
    "GPUS",
    "Device",
    "Rates",
    "gpu_of",
    "MemoryPlan",
    "computed_bytes",
    "memory_plan",
    "read_shape",
    "StepTime",
    "step_time",
    "ModelShape",
    "model_shape",
]
