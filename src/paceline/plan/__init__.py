"""What a configuration amounts to, before anything is loaded. Pure arithmetic.

batches.py  completions, tokens, updates, steps
memory.py   bytes of a process that trains
"""

from paceline.plan.batches import BatchPlan, batch_plan, describe, most_prompts_per_step, total_steps
from paceline.plan.memory import MemoryPlan, ModelShape, describe_memory, memory_plan, model_shape

__all__ = [
    "BatchPlan",
    "batch_plan",
    "describe",
    "most_prompts_per_step",
    "total_steps",
    "MemoryPlan",
    "ModelShape",
    "describe_memory",
    "memory_plan",
    "model_shape",
]
