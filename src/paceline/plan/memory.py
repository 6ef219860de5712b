"""What training takes of a device's memory: weights, gradients, moments, cache, activations."""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config import Config
from paceline.plan.batches import table

FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2


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
    return table(lines) + "\nActivations come on top; --micro-batch-tokens and --gradient-checkpointing bound them."
