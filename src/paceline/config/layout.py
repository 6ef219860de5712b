"""Options for processes: those of a cluster, and the grid on which model and samples lie."""

from dataclasses import dataclass
from typing import Literal

from paceline.config.rules import require
from paceline.errors import ConfigError

ZERO_STAGES = (0, 1, 2, 3)
Schedule = Literal["1f1b", "interleaved", "zero_bubble"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Training on several processes: a cluster's `--num-consumers`, or those of torchrun, accelerate or srun."""

    zero_stage: int = 0
    """Slices instead of copies on processes with samples of their own: 1 optimiser state, 2 gradients too, 3 weights
    too (ZeRO, FSDP); 0: nothing."""
    shard_size: int | None = None
    """Processes that slices are made for; when there are more, they hold copies of these slices. None: all of them."""
    tensor_parallel: int = 1
    """Processes that share every layer: heads, width and vocabulary."""
    context_parallel: int = 1
    """Processes that share the tokens of each micro-batch, for completions too long for one: in attention each has some
    of the heads. `micro_batch_tokens` is what each of them computes."""
    pipeline_parallel: int = 1
    """Processes that share the layers out: each has some of them."""
    pipeline_schedule: Schedule = "1f1b"
    """Order of micro-batches in a pipeline: one forward, one backward; the same with two runs of layers in each
    process; or with the gradients of weights where a process would wait."""
    parameter_offload: bool = False
    """CUDA: slices of `zero_stage` wait in main memory, and are updated there."""
    sampling_ranks: int = 0
    """Ranks of torchrun, accelerate or srun that only sample, the last ones; all others then only train. 0: every rank
    does both."""

    def __post_init__(self) -> None:
        require(self.zero_stage in ZERO_STAGES, "zero_stage", self.zero_stage, "be 0, 1, 2 or 3")
        require(self.tensor_parallel >= 1, "tensor_parallel", self.tensor_parallel, "be at least 1")
        require(self.pipeline_parallel >= 1, "pipeline_parallel", self.pipeline_parallel, "be at least 1")
        require(self.context_parallel >= 1, "context_parallel", self.context_parallel, "be at least 1")
        require(self.sampling_ranks >= 0, "sampling_ranks", self.sampling_ranks, "be at least 0")
        if self.shard_size is not None:
            require(self.shard_size >= 1, "shard_size", self.shard_size, "be at least 1")
        require(
            self.zero_stage == 0 or self.pipeline_schedule != "zero_bubble",
            "pipeline_schedule",
            self.pipeline_schedule,
            "be 1f1b or interleaved with --zero-stage above 0",
            "slices of a gradient are sent when a backward pass is over, and this schedule makes it in two parts",
        )
        for name, value, default, rule, right in (
            ("shard_size", self.shard_size, None, "be left out with --zero-stage 0", self.zero_stage > 0),
            ("parameter_offload", self.parameter_offload, False, "be false with --zero-stage 0", self.zero_stage > 0),
            (
                "pipeline_schedule",
                self.pipeline_schedule,
                "1f1b",
                "be 1f1b with --pipeline-parallel 1",
                self.pipeline_parallel > 1,
            ),
        ):
            require(right or value == default, name, value, rule, "it would have no effect")

    @property
    def fewest(self) -> int:
        """Smallest number of processes that these options need."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Sampling and training in processes of their own, on one machine or several."""

    cluster: bool = False
    """Run producers and the consumer as actors of Ray (the extra `ray`) instead of in this process."""
    num_producers: int = 1
    """Processes that sample and score, each with a copy of the weights."""
    num_consumers: int = 1
    """Processes that train, each with a share of every step's completions. Each has a copy of the weights, or its part
    by `zero_stage`, `tensor_parallel` and `pipeline_parallel`. Gradients are added up."""
    placement: Literal["pack", "spread"] = "pack"
    """Placement of producers on several machines: on as few as have room, or on as many as there are."""
    max_staleness: int = 0
    """Steps by which the sampling weights may lag behind the trained ones. 0 samples and trains in turn; k samples up
    to k steps ahead while others are trained on."""
    on_new_weights: Literal["finish", "continue"] = "finish"
    """Reaction of producers to newer weights while they sample: `finish` the step with the old ones, or `continue` with
    the newer ones from the next token on. The tokens of each version depend on timing and are recorded: such a run
    cannot be repeated bit for bit."""
    ray_address: str | None = None
    """Running Ray cluster: HOST:PORT, or `auto` for this machine's; None: one is started for the run."""
    actor_timeout: float = 60.0
    """Seconds without a sign of life after which a process counts as lost. A lost producer is replaced and its prompts
    done again; a lost consumer ends the attempt. A lost rank of torchrun or another launcher ends the run."""
    max_restarts: int = 3
    """Attempts that continue from the last checkpoint after the loss of a consumer; then the run ends."""

    def __post_init__(self) -> None:
        require(self.num_producers >= 1, "num_producers", self.num_producers, "be at least 1")
        require(self.num_consumers >= 1, "num_consumers", self.num_consumers, "be at least 1")
        require(self.max_staleness >= 0, "max_staleness", self.max_staleness, "be at least 0")
        require(self.actor_timeout > 0, "actor_timeout", self.actor_timeout, "be above 0")
        require(self.max_restarts >= 0, "max_restarts", self.max_restarts, "be at least 0")
        for name, value, default in (
            ("num_producers", self.num_producers, 1),
            ("num_consumers", self.num_consumers, 1),
            ("placement", self.placement, "pack"),
            ("max_staleness", self.max_staleness, 0),
            ("on_new_weights", self.on_new_weights, "finish"),
            ("ray_address", self.ray_address, None),
        ):
            right = self.cluster or value == default
            require(right, name, value, f"be {default} without --cluster", "there is one process then")
        require(
            self.on_new_weights == "finish" or self.max_staleness >= 1,
            "on_new_weights",
            self.on_new_weights,
            "be finish with --max-staleness 0",
            "no weights are made while a step is sampled; raise --max-staleness",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Processes along each axis of the grid; their product is all of them."""

    pipeline: int = 1
    """Processes among which the layers are divided."""
    replicate: int = 1
    """Processes with a copy of the model each, and samples of their own, or tokens of the same samples."""
    shard: int = 1
    """Processes with slices of every weight's state, and samples or tokens of their own."""
    tensor: int = 1
    """Processes that share every layer's heads, its width and the vocabulary."""
    context: int = 1
    """Neighbours in `replicate` and `shard` that share the tokens of the same samples."""

    @property
    def ranks(self) -> int:
        """Total number of processes."""
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def shares(self) -> int:
        """Number of parts into which a step's samples are divided."""
        return self.replicate * self.shard // self.context

    @property
    def splits_the_model(self) -> bool:
        """True if a process has less than a whole copy of the model."""
        return self.ranks > self.replicate


def layout(options: ParallelConfig, processes: int) -> Sizes:
    """Return the grid for a number of processes.

    >>> layout(ParallelConfig(zero_stage=3, tensor_parallel=2), 8)
    Sizes(pipeline=1, replicate=1, shard=4, tensor=2, context=1)

    Raises:
        ConfigError: the options need another number of processes; the sentence has the nearest layouts that fit.
    """
    tensor, pipeline, context = options.tensor_parallel, options.pipeline_parallel, options.context_parallel
    if processes % (tensor * pipeline):
        pairs = _nearest(tensor, pipeline, processes)
        nearest = " and ".join(f"--tensor-parallel {one} --pipeline-parallel {other}" for one, other in pairs)
        raise ConfigError(
            f"--tensor-parallel {tensor} times --pipeline-parallel {pipeline} must divide the number of processes that "
            f"train, {processes}; the nearest that do are {nearest}"
        )
    data = processes // (tensor * pipeline)
    shard = (options.shard_size or data) if options.zero_stage else 1
    for name, size in (("context_parallel", context), ("shard_size", shard)):
        require(
            data % size == 0,
            name,
            size,
            f"divide the {data} processes with samples or tokens of their own",
            f"such are {', '.join(map(str, _divisors(data)))}",
        )
    return Sizes(pipeline=pipeline, replicate=data // shard, shard=shard, tensor=tensor, context=context)


def training_ranks(options: ParallelConfig, ranks: int) -> int:
    """Return how many of a launcher's ranks train; they are the first ones.

    >>> training_ranks(ParallelConfig(sampling_ranks=1), 7)
    6

    Raises:
        ConfigError: all of them would sample.
    """
    apart = options.sampling_ranks
    require(apart < ranks, "sampling_ranks", apart, f"be below the number of ranks, {ranks}", "the others train")
    return ranks - apart


def _nearest(tensor: int, pipeline: int, processes: int) -> list[tuple[int, int]]:
    """Return the pairs that fit and change least, first those that keep one of the two numbers."""
    fitting = [(t, p) for t in _divisors(processes) for p in _divisors(processes // t)]

    def cost(pair: tuple[int, int]) -> tuple[float, int]:
        factors = [max(new, old) / min(new, old) for new, old in zip(pair, (tensor, pipeline), strict=True)]
        return factors[0] * factors[1], abs(pair[0] - tensor) + abs(pair[1] - pipeline)

    return sorted(fitting, key=cost)[:2]


def _divisors(whole: int) -> list[int]:
    return [number for number in range(1, whole + 1) if whole % number == 0]
