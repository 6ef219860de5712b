"""What training takes of the memory of each process that does it: weights, gradients, moments, cache, activations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config import Config, Sizes
from paceline.plan.batches import table

FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2
HEAD_ROWS = {"cpu": 256, "cuda": 2048}
"""Tokens whose logits exist at a time; what the learner takes, which the planner must not load torch to read."""


ONE = Sizes()
"""A process that trains alone."""


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
    vocabulary: int
    """Tokens; 0 where the configuration does not say."""
    tied: bool
    """Whether embedding and head are one matrix."""

    @property
    def matrix(self) -> int:
        """Parameters of an embedding."""
        return self.vocabulary * self.width

    @property
    def embeddings(self) -> int:
        """Parameters of embedding and head."""
        return self.matrix if self.tied else 2 * self.matrix

    @property
    def layer(self) -> int:
        """Parameters of a layer, about."""
        return max(0, self.parameters - self.embeddings) // self.num_layers


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
    fetched: int
    """Of what other processes hold slices of, and of the whole gradients that they are to get: the most at a time."""
    resident: int
    """The whole copy that is sampled from where training has the model in parts."""
    kv_cache: int
    """Keys and values of all concurrent sequences at their longest."""
    activations: int
    """What a micro-batch keeps for its backward pass, with no layer computed again."""
    recomputed: int
    """The same with every layer computed again."""
    head: int
    """Logits, and the head in the precision of the computation."""
    saved: int
    """The copy in main memory that a checkpoint is written from; 0 without `background_save`."""

    @property
    def total(self) -> int:
        """What stays allocated; the cache's place is free during an update, and may then hold activations."""
        return self.trained + self.resident + self.kv_cache

    @property
    def trained(self) -> int:
        """What the learner has of it during an update."""
        optimizer = self.optimizer if self.optimizer_on_device else 0
        return self.weights + self.gradients + optimizer + self.reference + self.fetched


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
    vocabulary = described.get("vocab_size")
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
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
        tied=True in (described.get("tie_word_embeddings"), model_config.get("tie_word_embeddings")),
    )


def memory_plan(config: Config, shape: ModelShape, sizes: Sizes = ONE) -> MemoryPlan:
    """Memory of training this model: weights, gradients and AdamW's two moments in float32, and the cache; of the
    process with the most among those that are laid out like this.

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
    here = _parameters_here(shape, sizes)
    moved = adapter // (sizes.tensor * sizes.pipeline) if rank else here
    parts, slices = _Slicing(config.parallel.zero_stage, sizes.shard), sizes.shard
    longest = config.data.max_prompt_length + config.sampling.max_completion_length
    per_step = config.loop.prompts_per_step * config.sampling.num_generations
    sequences = min(config.engine.concurrent_sequences, per_step)
    per_token = shape.num_layers * 2 * shape.num_key_value_heads * shape.head_dim
    step_tokens = config.loop.prompts_per_step * (
        config.data.max_prompt_length + config.sampling.num_generations * config.sampling.max_completion_length
    )
    kind = "cuda" if config.model.device == "cuda" else "cpu"
    budget = config.optim.micro_batches(kind)[0] * sizes.context
    forwarded = math.ceil(min(max(budget, longest), step_tokens) / sizes.context)
    layer = forwarded * shape.linear_widths * number_bytes
    inputs = forwarded * shape.num_layers * shape.width * FLOAT32_BYTES
    logits = HEAD_ROWS[kind] * shape.vocabulary * number_bytes + (shape.matrix * number_bytes if is_half else 0)
    samples_here = not config.cluster.cluster and not config.parallel.sampling_ranks
    return MemoryPlan(
        weights=(here + moved * (rank > 0)) // slices * FLOAT32_BYTES,
        gradients=parts.gradients(moved) * FLOAT32_BYTES,
        optimizer=moved // slices * config.optim.moment_bytes,
        optimizer_on_device=not config.optim.optimizer_offload,
        reference=here // slices * FLOAT32_BYTES if config.loss.beta > 0 and not rank else 0,
        fetched=parts.fetched(here, shape, sizes, is_whole=not rank) * FLOAT32_BYTES,
        resident=shape.parameters * FLOAT32_BYTES if sizes.splits_the_model and samples_here else 0,
        kv_cache=sequences * longest * per_token * number_bytes if samples_here else 0,
        activations=shape.num_layers * layer // sizes.pipeline,
        recomputed=inputs // sizes.pipeline + layer,
        head=logits // sizes.tensor,
        saved=_copied(config, here, moved) // slices if config.loop.background_save else 0,
    )


def _copied(config: Config, here: int, moved: int) -> int:
    """Bytes of trained weights, their moments, and a reference that moves."""
    reference = here if config.loss.beta > 0 and config.loss.ref_sync_steps else 0
    return moved * (FLOAT32_BYTES + config.optim.moment_bytes) + reference * FLOAT32_BYTES


def _parameters_here(shape: ModelShape, sizes: Sizes) -> int:
    """Of the process at a pipeline's end, before slices are made: its layers and one of the two embeddings."""
    if sizes.pipeline == 1:
        return shape.parameters // sizes.tensor
    layers = math.ceil(shape.num_layers / sizes.pipeline) * shape.layer
    return (layers + shape.matrix) // sizes.tensor


@dataclass(frozen=True, slots=True)
class _Slicing:
    """What a stage of ZeRO leaves whole, in parameters. See `parallel/sharding.py`."""

    stage: int
    ranks: int

    def gradients(self, trained: int) -> int:
        """Until an update's last micro-batch stage 1 has them whole."""
        return trained // self.ranks + (trained if self.stage == 1 and self.ranks > 1 else 0)

    def fetched(self, here: int, shape: ModelShape, sizes: Sizes, *, is_whole: bool) -> int:
        """Below stage 3 all weights, and of stage 2 the gradients of embedding and head, and of a layer with the
        message that is made of it. At stage 3 embedding and head with their gradients, or these gradients with two
        layers and theirs."""
        if self.ranks == 1:
            return 0
        ends = shape.embeddings if sizes.pipeline == 1 else shape.matrix
        if self.stage == 1:
            return here
        if self.stage == 2:
            return here + (ends + 2 * shape.layer) // sizes.tensor * is_whole
        if not is_whole:
            return (ends + 2 * shape.layer) // sizes.tensor
        return max(2 * ends, ends + 4 * shape.layer) // sizes.tensor


def describe_memory(memory: MemoryPlan) -> str:
    """The memory as a table for a terminal, in GiB."""
    rows = [
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        *([("optimiser", memory.optimizer)] if memory.optimizer_on_device else []),
        ("reference model", memory.reference),
        ("fetched at a time", memory.fetched),
        ("copy that samples", memory.resident),
        ("key/value cache", memory.kv_cache),
        ("in all", memory.total),
        ("activations", memory.activations),
        ("  computed again", memory.recomputed),
        ("logits", memory.head),
        ("while it is saved, in main memory", memory.saved),
        *([] if memory.optimizer_on_device else [("optimiser, in main memory", memory.optimizer)]),
    ]
    lines = [(name, f"{size / 2**30:10.3f} GiB") for name, size in rows if size]
    return table(lines) + "\nActivations come on top; --micro-batch-tokens and --gradient-checkpointing bound them."
