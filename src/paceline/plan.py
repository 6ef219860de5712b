"""What a configuration amounts to: completions, tokens and updates per step, steps, and memory. Pure arithmetic."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config import Config

FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """How much a step and a run take. Run totals are None while the number of steps is unknown."""

    prompts_per_step: int
    num_generations: int
    updates_per_step: int
    max_refills: int
    """Further rounds of sampling that a step may take; the two numbers below count them all."""
    prompt_tokens_per_step: int
    """At most; the completions of one prompt share it."""
    completion_tokens_per_step: int
    """At most."""
    num_tasks: int | None
    """Tasks of the dataset, None when they have not been counted."""
    steps: int | None
    epochs: float | None
    """Passes over the dataset."""
    checkpoints: int | None
    evaluations: int | None
    """The one before the first step included; none take place without held-out tasks."""

    @property
    def completions_per_step(self) -> int:
        """P prompts with G completions each."""
        return self.prompts_per_step * self.num_generations


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The numbers of a decoder that memory depends on."""

    parameters: int
    num_layers: int
    num_key_value_heads: int
    head_dim: int
    width: int
    """Of the states between two layers."""
    linear_widths: int
    """Inputs and outputs of a layer's linear maps, added up: what one rank of an adapter on all of them takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Bytes, at most."""

    weights: int
    gradients: int
    optimizer: int
    """Of which nothing lies on the device with `optimizer_offload`."""
    optimizer_on_device: bool
    reference: int
    """The reference model, with `beta` above 0."""
    kv_cache: int
    """Keys and values of all concurrent sequences at their longest."""
    activations: int
    """What a micro-batch keeps for its backward pass, with no layer computed again."""
    recomputed: int
    """The same with every layer computed again."""

    @property
    def total(self) -> int:
        """What stays allocated; the cache's place is free during an update, and may then hold activations."""
        optimizer = self.optimizer if self.optimizer_on_device else 0
        return self.weights + self.gradients + optimizer + self.reference + self.kv_cache


def total_steps(config: Config, num_tasks: int | None) -> int | None:
    """Steps of the run: `max_steps`, else enough for `num_epochs`, the last one short rather than left out.

    None when that depends on a number of tasks that is not known.
    """
    loop = config.loop
    if loop.max_steps is not None:
        return loop.max_steps
    return None if num_tasks is None else max(1, math.ceil(round(loop.num_epochs * num_tasks) / loop.prompts_per_step))


def most_prompts_per_step(config: Config) -> int:
    """Prompts that a step may sample, with all refills."""
    at_once = math.ceil(config.loop.prompts_per_step * config.advantage.oversampling)
    return at_once * (1 + config.advantage.max_refills)


def batch_plan(config: Config, num_tasks: int | None) -> BatchPlan:
    """The plan of a configuration on a dataset of `num_tasks` tasks."""
    prompts, generations = config.loop.prompts_per_step, config.sampling.num_generations
    steps, drawn = total_steps(config, num_tasks), most_prompts_per_step(config)
    return BatchPlan(
        prompts_per_step=prompts,
        num_generations=generations,
        updates_per_step=config.optim.num_iterations * config.optim.num_minibatches,
        max_refills=config.advantage.max_refills,
        prompt_tokens_per_step=drawn * config.data.max_prompt_length,
        completion_tokens_per_step=drawn * generations * config.sampling.max_completion_length,
        num_tasks=num_tasks,
        steps=steps,
        epochs=_epochs(config, steps, num_tasks),
        checkpoints=None if steps is None else _times(config.loop.save_steps, steps),
        evaluations=None if steps is None else 1 + _evaluations_after(config.evaluation.eval_steps, steps),
    )


def _epochs(config: Config, steps: int | None, num_tasks: int | None) -> float | None:
    """A run in epochs ends with a short step, so steps times prompts would say too much."""
    if config.loop.max_steps is None:
        return config.loop.num_epochs
    return None if steps is None or num_tasks is None else steps * config.loop.prompts_per_step / num_tasks


def _times(every: int, steps: int) -> int:
    return steps // every if every else 0


def _evaluations_after(every: int, steps: int) -> int:
    """Every so many steps, and after the last in any case."""
    return math.ceil(steps / every) if every else 1


def model_shape(model_config: Mapping[str, object], *, parameters: int) -> ModelShape | None:
    """The shape that a model's config.json describes, None when it names its numbers in another way."""
    text_config = model_config.get("text_config")
    described = text_config if isinstance(text_config, Mapping) else model_config
    layers, heads, width = (described.get(n) for n in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if not isinstance(layers, int) or not isinstance(heads, int) or not isinstance(width, int):
        return None
    # Older files leave out what follows from the rest: one key/value head per head, heads that fill the width.
    inner, key_value_heads, head_dim = (
        described.get(name) for name in ("intermediate_size", "num_key_value_heads", "head_dim")
    )
    inner = inner if isinstance(inner, int) else 4 * width
    key_value_heads = key_value_heads if isinstance(key_value_heads, int) else heads
    head_dim = head_dim if isinstance(head_dim, int) else width // heads
    attention = 4 * width + 2 * head_dim * (heads + key_value_heads)  # queries, keys, values, output
    return ModelShape(
        parameters=parameters,
        num_layers=layers,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        width=width,
        linear_widths=attention + 3 * (width + inner),
    )


def memory_plan(config: Config, shape: ModelShape) -> MemoryPlan:
    """Memory of training this model: weights, gradients and AdamW's two moments in float32, and the cache.

        cache = sequences * tokens * layers * 2 (keys, values) * key/value heads * head_dim * bytes

    An adapter counts as if it were on every linear layer, and needs no reference model of its own.
    `dtype` `auto` counts as float32 unless the device is CUDA.

        activations = tokens * layers * linear_widths * bytes

    as much as the inputs and outputs of the linear layers hold. With a CPU's kernels the rest makes up for what is kept
    once for several of them; without, norms, rotations and attention keep up to 0.9 times as much again.
    """
    is_half = config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and config.model.device == "cuda")
    number_bytes = BFLOAT16_BYTES if is_half else FLOAT32_BYTES
    rank = config.lora.lora_rank
    adapter = rank * shape.num_layers * shape.linear_widths
    trained = (adapter if rank else shape.parameters) * FLOAT32_BYTES
    weights = shape.parameters * FLOAT32_BYTES
    longest = config.data.max_prompt_length + config.sampling.max_completion_length
    per_step = config.loop.prompts_per_step * config.sampling.num_generations
    sequences = min(config.engine.concurrent_sequences, per_step)
    per_token = shape.num_layers * 2 * shape.num_key_value_heads * shape.head_dim
    step_tokens = config.loop.prompts_per_step * (
        config.data.max_prompt_length + config.sampling.num_generations * config.sampling.max_completion_length
    )
    forwarded = min(max(config.optim.micro_batch_tokens, longest), step_tokens)
    layer = forwarded * shape.linear_widths * number_bytes
    inputs = forwarded * shape.num_layers * shape.width * FLOAT32_BYTES
    return MemoryPlan(
        weights=weights + adapter * FLOAT32_BYTES,
        gradients=trained,
        optimizer=trained // FLOAT32_BYTES * config.optim.moment_bytes,
        optimizer_on_device=not config.optim.optimizer_offload,
        reference=weights if config.loss.beta > 0 and not rank else 0,
        kv_cache=sequences * longest * per_token * number_bytes,
        activations=shape.num_layers * layer,
        recomputed=inputs + layer,
    )


def describe(plan: BatchPlan) -> str:
    """The plan as a table for a terminal."""
    steps = "unknown, as the tasks are not counted" if plan.steps is None else f"{plan.steps:,}"
    rows = [
        ("prompts per step", f"{plan.prompts_per_step:,}"),
        (
            "completions per step",
            f"{plan.completions_per_step:,} = {plan.prompts_per_step:,} prompts x {plan.num_generations}",
        ),
        (
            "tokens per step",
            f"at most {plan.completion_tokens_per_step:,} sampled, {plan.prompt_tokens_per_step:,} in prompts",
        ),
        *([("refills of a step", f"at most {plan.max_refills:,} rounds, counted above")] if plan.max_refills else []),
        ("updates per step", f"{plan.updates_per_step:,}"),
        ("steps", steps),
        ("tasks", "not counted" if plan.num_tasks is None else f"{plan.num_tasks:,}"),
        *_run_rows(plan),
    ]
    return _table(rows)


def _run_rows(plan: BatchPlan) -> list[tuple[str, str]]:
    more = ", and more by refills" if plan.max_refills else ""
    rows = [] if plan.epochs is None else [("passes over the tasks", f"{plan.epochs:.4g}{more}")]
    if plan.steps is None:
        return rows
    return [
        *rows,
        ("updates in all", f"{plan.steps * plan.updates_per_step:,}"),
        ("completions in all", f"{plan.steps * plan.completions_per_step:,}"),
        ("sampled tokens in all", f"at most {plan.steps * plan.completion_tokens_per_step:,}"),
        ("evaluations", f"{plan.evaluations:,}, where there are held-out tasks"),
        ("checkpoints", f"{plan.checkpoints:,}, and the final model"),
    ]


def describe_memory(memory: MemoryPlan) -> str:
    """The memory as a table for a terminal, in GiB."""
    rows = [
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        *([("optimiser", memory.optimizer)] if memory.optimizer_on_device else []),
        ("reference model", memory.reference),
        ("key/value cache", memory.kv_cache),
        ("in all", memory.total),
        ("activations", memory.activations),
        ("  computed again", memory.recomputed),
        *([] if memory.optimizer_on_device else [("optimiser, in main memory", memory.optimizer)]),
    ]
    lines = [(name, f"{size / 2**30:10.3f} GiB") for name, size in rows if size]
    return _table(lines) + "\nActivations come on top; --micro-batch-tokens and --gradient-checkpointing bound them."


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)
