"""Memory of each process that trains or samples, part by part, and its peak in each phase of a step.

    sampling    what lasts   copies of weights for the engine   key/value cache   logits of a draw
    update      what lasts   gradients   what is fetched   activations   logits of a chunk

What lasts are the libraries, weights, moments, a reference; on a CPU also the copy that a checkpoint is written from,
in a run that goes on after one.
"""

import math
from dataclasses import dataclass, replace

from paceline.config.layout import ClusterConfig, ParallelConfig, Sizes
from paceline.config.sampling import EngineConfig, SamplingConfig
from paceline.config.sections import Config, LoraConfig, ModelConfig
from paceline.models.activation_checkpointing import ACTIVATION_SHARE, Activations, RecomputedLayers, choose_cut
from paceline.rewards.judges.settings import JudgeSettings
from paceline.training.plan.batches import considered_micro_batches, even_tokens, forwarded_tokens
from paceline.training.plan.images import VisionShape
from paceline.training.plan.shape import CPU, Device, ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShare:
    """Numbers of a model in the process that has the most."""

    weights: int
    """Weights, those of an adapter included."""
    base: int
    """Weights of a copy of the model without its adapter."""
    trained: int
    """Weights with optimiser moments."""
    gradients: int
    fetched: int
    """Most numbers at a time of weights fetched from other processes, and of whole gradients on their way to them."""


def _adapter(config: Config, shape: ModelShape) -> int:
    """Return the numbers of an adapter on every linear layer, and on every expert if the options adapt experts."""
    widths = shape.linear_widths + bool(config.lora.lora_parameters) * shape.expert_widths
    return config.lora.lora_rank * shape.num_layers * widths


def largest_share(config: Config, shape: ModelShape, sizes: Sizes) -> ModelShare:
    """Count the numbers of the largest share; an adapter counts as if it were on every linear layer or expert."""
    rank, stage = config.lora.lora_rank, config.parallel.zero_stage
    here, ends = shape.parameters // sizes.tensor, shape.embeddings
    if sizes.pipeline > 1:  # the process at a pipeline's end: its layers and one of the two embeddings
        layers, ends = math.ceil(shape.num_layers / sizes.pipeline) * shape.layer, shape.matrix
        here = (layers + ends) // sizes.tensor
    moved = _adapter(config, shape) // (sizes.tensor * sizes.pipeline) if rank else here
    # what a stage of ZeRO leaves whole (models/parallel/sharding.py); no stage: all of it
    fetched, gradients = 0, moved // sizes.shard
    if sizes.shard > 1 and stage == 1:  # all weights, and the gradients until an update's last micro-batch
        fetched, gradients = here, gradients + moved
    elif sizes.shard > 1 and stage == 2:  # and the gradients of both ends, and of a layer with its message
        fetched = here + (ends + 2 * shape.layer) // sizes.tensor * (not rank)
    elif sizes.shard > 1 and rank:
        fetched = (ends + 2 * shape.layer) // sizes.tensor
    elif sizes.shard > 1:  # both ends with their gradients, or these gradients with two layers and theirs
        fetched = max(2 * ends, ends + 4 * shape.layer) // sizes.tensor
    return ModelShare(
        weights=(here + moved * (rank > 0)) // sizes.shard,
        base=here // sizes.shard,
        trained=moved // sizes.shard,
        gradients=gradients,
        fetched=fetched,
    )


FLOAT32_BYTES = 4
FRAGMENTATION_BY_PASSES = (0.0, 0.0, 0.3, 0.6)
"""Fragmentation of the C library's heap, as a share of the activations of one micro-batch, by the number of
micro-batches in an update; the last entry stands for more of them.

Freed pieces between others that stay are too small for the next activations. Measured on a CPU with 30 and 100 million
parameters; recomputed layers return the memory before each pass.
"""
LEAST_FRAGMENTATION = 0.3
"""Least fragmentation after `FEW_STEPS`: micro-batches of steps differ in size. Measured over 40 steps of 135 million
parameters with one micro-batch each: 0.16 in float32, 0.62 in bfloat16; after three steps there was none."""
FEW_STEPS = 10
ADAPTER_FRAGMENTATION = 0.8
"""Fragmentation with an adapter, from the first micro-batch on: its sums are freed between pieces that stay."""


def activations(
    shape: ModelShape, sizes: Sizes, on: Device, number_bytes: int, *, adapter: bool = False
) -> Activations:
    """Estimate the activations of a forward pass, in bytes per token of this process.

    On CUDA, layers whose attention is not split run through kernels where their family does. An adapter's own products
    keep the normed states and the gated product, which plain ones compute again.
    """
    heads, key_values = shape.num_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    if on.kind == "cuda" and shape.fused and sizes.tensor == 1:
        single, computed = 0, 2 * shape.width + 2 * heads + 2 * key_values + 2 * shape.inner
        computed += adapter * (2 * shape.width + shape.inner)
    elif on.kind == "cuda":
        single, computed = 4 * shape.width, 4 * shape.width + 3 * heads + 4 * key_values + 4 * shape.inner
    else:
        single, computed = 2 * shape.width, 2 * shape.width + 2 * heads + 2 * key_values + 3 * shape.inner
    if (
        on.kind == "cuda" or number_bytes < FLOAT32_BYTES
    ):  # rows of experts before and behind; a CPU's kernel keeps none
        computed += 2 * shape.experts_per_token * shape.width
    layers = shape.num_layers / sizes.pipeline / sizes.tensor
    return Activations(
        all_layers=layers * (FLOAT32_BYTES * single + number_bytes * computed),
        layer_input=FLOAT32_BYTES * shape.width,
        layers=shape.num_layers,
    )


def kept_activations(config: Config, of: Activations, cut: RecomputedLayers, on: Device, passes: int) -> int:
    """Peak of the activations in bytes, with the fragmentation of the C library's heap."""
    if cut.layers == of.layers:
        return round(cut.tokens * (of.kept(cut.layers) + of.all_layers / of.layers))
    fragmentation = FRAGMENTATION_BY_PASSES[min(passes, len(FRAGMENTATION_BY_PASSES) - 1)]
    if config.lora.lora_rank:
        fragmentation = ADAPTER_FRAGMENTATION
    if config.loop.max_steps is None or config.loop.max_steps > FEW_STEPS:
        fragmentation = max(fragmentation, LEAST_FRAGMENTATION)
    factor = 1 + fragmentation if on.kind == "cpu" and not cut.layers else 1.0
    return round(cut.tokens * of.kept(cut.layers) * factor)


BFLOAT16_BYTES, FLOAT8_BYTES = 2, 1
HEAD_ROWS = {"cpu": 256, "cuda": 2048}
"""Tokens whose logits exist at a time, as in the learner; read here without loading torch."""
LIBRARIES = {"cpu": 450 << 20, "cuda": 600 << 20}
"""Bytes of Python and the libraries before anything is loaded: of main memory, or of a CUDA context."""
DRAW_BYTES = {"cpu": 0, "cuda": 12}
"""Bytes per logit of a decoding step in addition to the logit: the draw's own copies."""
BFLOAT16_PARAMETERS = 10_000_000
"""Parameters from which `auto` computes in bfloat16 on a CPU that is fast at it, as in `runtime.devices`."""
WINDOW_COLUMNS = 16
"""A window's columns in the engine's cache are a multiple of this, as in `engines`."""
JOINED_WEIGHTS = 1 << 16
"""Parameters of a linear map below which the engine joins a copy of it with its neighbour, as in `engines`."""
ONE = Sizes()
"""A process that trains alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Bytes of one process on its device, at most."""

    libraries: int
    weights: int
    gradients: int
    optimizer: int
    """Bytes of the optimiser's moments."""
    optimizer_here: int
    """Bytes of the moments that are on the device: none with `--offload optimizer`."""
    reference: int
    """The reference model, with `beta` above 0."""
    fetched: int
    """Most bytes at a time of weights fetched from other processes, and of whole gradients on their way to them."""
    resident: int
    """Whole copy for sampling where training has the model in parts."""
    engine: int
    """The weights as the engine prepares them for a call: joined, and in the precision of the computation."""
    kv_cache: int
    """Keys and values of all concurrent sequences at their longest."""
    drawn: int
    """Logits of a step of decoding."""
    activations: int
    """Activations that a micro-batch keeps for its backward pass, with the layers of `cut` computed again."""
    cut: RecomputedLayers
    """Size of the micro-batches, and the layers computed again for them."""
    head: int
    """Logits, and the head in the precision of the computation."""
    saved: int
    """Copy in main memory that a checkpoint is written from; 0 where no step runs beside the write."""
    saved_here: int
    """Bytes of that copy in the device's memory."""
    vision: int = 0
    """What reads images, with the reference's, and with gradients and moments as far as it is trained."""
    features: int = 0
    """Features of images that are kept while the encoder is frozen."""

    @property
    def trained(self) -> int:
        """Weights and what belongs to them during an update, without a pass over them."""
        return self.weights + self.gradients + self.optimizer_here + self.reference + self.fetched

    @property
    def lasting(self) -> int:
        """Bytes that are there in every phase."""
        kept = self.weights + self.optimizer_here + self.reference + self.resident
        return self.libraries + kept + self.saved_here + self.vision + self.features

    @property
    def sampling(self) -> int:
        """Peak while completions are sampled."""
        return self.lasting + self.engine + self.kv_cache + self.drawn

    @property
    def update(self) -> int:
        """Peak during an update."""
        return self.lasting + self.gradients + self.fetched + self.activations + self.head

    @property
    def peak(self) -> int:
        """Peak of a run."""
        return max(self.sampling, self.update)


def memory_plan(config: Config, shape: ModelShape, sizes: Sizes = ONE, *, on: Device = CPU) -> MemoryPlan:
    """Memory of training this model, of the process with the most among those that are laid out like this: weights,
    gradients and AdamW's moments in float32, and what comes and goes with each phase.

    `gradient_checkpointing` `auto` has layers computed again by the run's own rule, in the memory that the device has,
    and none where that is not known; completions count at their longest. An adapter needs no reference model of its
    own.
    """
    number_bytes = computed_bytes(config, shape, on)
    is_half, parts = number_bytes < FLOAT32_BYTES, largest_share(config, shape, sizes)
    engine, kv_cache, drawn = _engine(config, shape, sizes, on) if samples_here(config) else (0, 0, 0)
    saved, moments = 0, parts.trained * config.optim.moment_bytes
    if saves_beside_a_step(config):  # trained weights, their moments, and a reference that moves
        moving = parts.base if config.loss.beta > 0 and config.loss.ref_sync_steps else 0
        saved = parts.trained * FLOAT32_BYTES + moments + moving * FLOAT32_BYTES
    head = HEAD_ROWS[on.kind] * shape.vocabulary * number_bytes + (shape.matrix * number_bytes if is_half else 0)
    without = MemoryPlan(
        libraries=LIBRARIES[on.kind],
        weights=parts.weights * FLOAT32_BYTES,
        gradients=parts.gradients * FLOAT32_BYTES,
        optimizer=moments,
        optimizer_here=0 if "optimizer" in config.optim.offload else moments,
        reference=parts.base * FLOAT32_BYTES if config.loss.beta > 0 and not config.lora.lora_rank else 0,
        fetched=parts.fetched * FLOAT32_BYTES,
        resident=shape.parameters * FLOAT32_BYTES if sizes.splits_the_model and samples_here(config) else 0,
        engine=engine,
        kv_cache=kv_cache,
        drawn=drawn,
        activations=0,
        cut=RecomputedLayers(micro_batch_tokens=0, tokens=0, layers=0),
        head=head // sizes.tensor,
        saved=saved,
        saved_here=saved if on.kind == "cpu" else 0,
    )
    of_token = activations(shape, sizes, on, number_bytes, adapter=config.lora.lora_rank > 0)
    if (seen := shape.vision) is not None:
        without, config = _with_images(without, config, shape, seen, of_token, number_bytes)
    left = float("inf") if on.memory is None else on.memory - (without.update - without.head)
    tokens_of = {size: even_tokens(config, size, sizes) for size in considered_micro_batches(config, on.kind)}
    room = ACTIVATION_SHARE * max(0.0, left)
    cut = choose_cut(of_token, tokens_of, room, asked=config.model.gradient_checkpointing)
    passes = math.ceil(forwarded_tokens(config, sizes) / cut.micro_batch_tokens)
    return replace(without, activations=kept_activations(config, of_token, cut, on, passes), cut=cut)


def _with_images(
    plan: MemoryPlan, config: Config, shape: ModelShape, seen: VisionShape, of_token: Activations, number_bytes: int
) -> tuple[MemoryPlan, Config]:
    """Return the plan with what reads images, and options whose prompts are longer by what a trained encoder keeps."""
    trained = seen.trained(config.vision)
    copies = 2 if config.loss.beta > 0 and not config.lora.lora_rank else 1
    vision = copies * seen.parameters * FLOAT32_BYTES + trained * (FLOAT32_BYTES + config.optim.moment_bytes)
    if plan.saved:  # a checkpoint holds all weights, and moments of those that are trained
        whole = 0 if config.lora.lora_rank else seen.parameters * FLOAT32_BYTES
        more = whole + trained * config.optim.moment_bytes
        plan = replace(plan, saved=plan.saved + more, saved_here=plan.saved_here + more * (plan.saved_here > 0))
    if not trained and not config.vision.lora_vision:
        return replace(plan, vision=vision, features=seen.features(shape.width, FLOAT32_BYTES)), config
    cost = math.ceil(seen.tokens * seen.kept(config.vision, number_bytes) / of_token.all_layers)
    data = replace(config.data, max_prompt_length=config.data.max_prompt_length + cost)
    return replace(plan, vision=vision), replace(config, data=data)


def computed_bytes(config: Config, shape: ModelShape, on: Device) -> int:
    """Bytes of a number in the precision of the computation."""
    dtype = config.model.dtype
    by_itself = on.kind == "cuda" or (on.fast_bfloat16 and shape.parameters >= BFLOAT16_PARAMETERS)
    return BFLOAT16_BYTES if dtype == "bfloat16" or (dtype == "auto" and by_itself) else FLOAT32_BYTES


def _sampled_bytes(config: Config, number_bytes: int, on: Device) -> int:
    """Bytes of a layer's weight while the engine samples; `number_bytes` are those of a number in training."""
    return FLOAT8_BYTES if config.engine.engine_quantization == "fp8" and on.kind == "cuda" else number_bytes


def saves_beside_a_step(config: Config) -> bool:
    """Return True if a checkpoint may be written in the background of a later step: none is before the last one."""
    loop = config.loop
    is_due = loop.save_steps > 0 and (loop.max_steps is None or loop.save_steps < loop.max_steps)
    return loop.background_save and is_due


def samples_here(config: Config) -> bool:
    """Return True if a process that trains also samples."""
    return not config.cluster.cluster and not config.parallel.sampling_ranks


def samplers(config: Config, sizes: Sizes) -> int:
    """Return how many processes sample: those that train too, or others."""
    if config.cluster.cluster:
        return config.cluster.num_producers
    return config.parallel.sampling_ranks or sizes.ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerMemory:
    """Bytes of a process that only samples, on its device, at most."""

    libraries: int
    weights: int
    """The copy of the weights, in float32, those of an adapter included."""
    engine: int
    """The weights as the engine prepares them; with vLLM on CUDA all that the engine takes."""
    kv_cache: int
    drawn: int
    """Logits of a step of decoding."""

    @property
    def peak(self) -> int:
        """Peak of a run."""
        return self.libraries + self.weights + self.engine + self.kv_cache + self.drawn


def sampler_memory(config: Config, shape: ModelShape, sizes: Sizes, *, on: Device = CPU) -> SamplerMemory | None:
    """Memory of a process that only samples; None where those that train do so."""
    if samples_here(config):
        return None
    adapter, seen = _adapter(config, shape), 0 if shape.vision is None else shape.vision.parameters
    engine, kv_cache, drawn = _engine(config, shape, sizes, on)
    return SamplerMemory(
        libraries=LIBRARIES[on.kind],
        weights=(shape.parameters + seen + adapter) * FLOAT32_BYTES,
        engine=engine,
        kv_cache=kv_cache,
        drawn=drawn,
    )


def judge_memory(config: Config, shape: ModelShape, judge: JudgeSettings, *, on: Device = CPU) -> SamplerMemory:
    """Memory of the process that serves a judge's model for a run: `concurrency` requests at their longest."""
    served = replace(
        config,
        model=ModelConfig(model=judge.model),
        lora=LoraConfig(),
        engine=EngineConfig(concurrent_sequences=judge.concurrency),
        sampling=SamplingConfig(num_generations=1, max_completion_length=judge.verdict_tokens),
        data=replace(config.data, max_prompt_length=judge.prompt_tokens),
        loop=replace(config.loop, prompts_per_step=judge.concurrency),
        cluster=ClusterConfig(),
        parallel=ParallelConfig(),
    )
    engine, kv_cache, drawn = _engine(served, shape, ONE, on)
    return SamplerMemory(
        libraries=LIBRARIES[on.kind],
        weights=shape.parameters * FLOAT32_BYTES,
        engine=engine,
        kv_cache=kv_cache,
        drawn=drawn,
    )


def _engine(config: Config, shape: ModelShape, sizes: Sizes, on: Device) -> tuple[int, int, int]:
    """Bytes of weights, cache and logits while a process samples its share of the prompts."""
    number_bytes, generations = computed_bytes(config, shape, on), config.sampling.num_generations
    share = math.ceil(config.loop.prompts_per_step / samplers(config, sizes)) * generations
    sequences = min(config.engine.concurrent_sequences, share)
    prompts = math.ceil(sequences / generations)
    own, shared = config.sampling.max_completion_length, prompts * config.data.max_prompt_length
    tokens, states = sequences * own + shared, sequences * shape.state * FLOAT32_BYTES
    if config.engine.engine == "vllm":  # a copy of the weights and its cache, in addition to the run's own
        asked, devices = config.engine.vllm_cache_bytes, config.engine.vllm_tensor_parallel
        if on.kind == "cuda" and on.memory is not None and asked is None:
            return round(config.engine.vllm_gpu_share * on.memory), 0, 0
        # each device has its part of every layer; a size that is given is of each device's cache
        cached = tokens * shape.cached * number_bytes + states if asked is None else 0
        return math.ceil((shape.parameters * BFLOAT16_BYTES + cached) / devices) + (asked or 0), 0, 0
    if on.kind == "cuda":  # rows are laid out for prompt and completion together
        tokens += sequences * config.data.max_prompt_length
    # what `prepared_weights` of engines/local copies: all in another precision or with an adapter, experts into another
    # layout, else what is joined
    if number_bytes < FLOAT32_BYTES:
        copied = shape.num_layers * shape.layer * _sampled_bytes(config, number_bytes, on) + shape.matrix * number_bytes
    elif (
        config.engine.engine_quantization == "fp8"
        or config.lora.lora_rank
        or shape.layer < 8 * JOINED_WEIGHTS
        or (on.kind == "cpu" and shape.experts_per_token)
    ):
        copied = shape.num_layers * shape.layer * FLOAT32_BYTES
    else:
        joined = shape.width * shape.head_dim * (shape.num_heads + 2 * shape.num_key_value_heads)
        copied = shape.num_layers * joined * FLOAT32_BYTES
    logits = sequences * shape.vocabulary * (number_bytes + DRAW_BYTES[on.kind])
    cached = tokens * shape.cached
    if on.kind == "cpu" and shape.planned:  # of a row's own tokens a layer with a window keeps the last ones
        kept = (min(own, math.ceil(window / WINDOW_COLUMNS) * WINDOW_COLUMNS) for window in shape.windows)
        cached -= sum(sequences * (own - columns) for columns in kept) * shape.cached_by_layer
    return copied, cached * number_bytes + (states if shape.planned else 0), logits
