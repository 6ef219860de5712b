"""How a model, and a step's samples, lie on the processes that train: options, and the grid that they make."""

from dataclasses import dataclass
from typing import Literal

from paceline.config.rules import require
from paceline.errors import ConfigError

ZERO_STAGES = (0, 1, 2, 3)
Schedule = Literal["1f1b", "interleaved", "zero_bubble"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Several processes that train: a cluster's `--num-consumers`, or those that torchrun, accelerate or srun start."""

    zero_stage: int = 0
    """What processes with samples of their own hold slices of, in the place of copies: 1 optimiser state, 2 gradients
    too, 3 weights too (ZeRO, FSDP); 0: nothing."""
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
    """The order of micro-batches in a pipeline: one forward, one back; the same with two runs of layers in each
    process; or with the gradients of weights where a process would wait."""
    parameter_offload: bool = False
    """CUDA: slices of `zero_stage` wait in main memory, and are updated there."""
    sampling_ranks: int = 0
    """Of the ranks that torchrun, accelerate or srun start, how many sample only, the last ones; all others then only
    train. 0: every rank does both."""

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
        """Processes that it takes at least."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Processes along each axis of the grid; their product is all of them."""

    pipeline: int = 1
    """Each has some of the layers."""
    replicate: int = 1
    """Each has a copy, and samples of its own, or tokens of the same samples."""
    shard: int = 1
    """Each has slices of what belongs to every weight, and samples or tokens of its own."""
    tensor: int = 1
    """Each has some of every layer's heads, of its width and of the vocabulary."""
    context: int = 1
    """Neighbours among the processes of `replicate` and `shard` that share the tokens of the same samples."""

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def shares(self) -> int:
        """In how many parts a step's samples are shared out."""
        return self.replicate * self.shard // self.context

    @property
    def splits_the_model(self) -> bool:
        """Whether a process has less than a whole copy."""
        return self.ranks > self.replicate


def layout(options: ParallelConfig, processes: int) -> Sizes:
    """The grid of so many processes.

    >>> layout(ParallelConfig(zero_stage=3, tensor_parallel=2), 8)
    Sizes(pipeline=1, replicate=1, shard=4, tensor=2, context=1)

    Raises:
        ConfigError: the options need another number of processes; the sentence has the nearest layouts that fit.
    """
    tensor, pipeline, context = options.tensor_parallel, options.pipeline_parallel, options.context_parallel
    if processes % (tensor * pipeline):
        raise ConfigError(
            f"--tensor-parallel {tensor} times --pipeline-parallel {pipeline} must divide the number of processes that "
            f"train, {processes}; the nearest that do are {_named(_nearest(tensor, pipeline, processes))}"
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
    """How many of a launcher's ranks train, the first ones.

    >>> training_ranks(ParallelConfig(sampling_ranks=1), 7)
    6

    Raises:
        ConfigError: all of them would sample.
    """
    apart = options.sampling_ranks
    require(apart < ranks, "sampling_ranks", apart, f"be below the number of ranks, {ranks}", "the others train")
    return ranks - apart


def _nearest(tensor: int, pipeline: int, processes: int) -> list[tuple[int, int]]:
    """The pairs that fit and change least, those that keep one of the two numbers first."""
    fitting = [(t, p) for t in _divisors(processes) for p in _divisors(processes // t)]

    def cost(pair: tuple[int, int]) -> tuple[float, int]:
        factors = [max(new, old) / min(new, old) for new, old in zip(pair, (tensor, pipeline), strict=True)]
        return factors[0] * factors[1], abs(pair[0] - tensor) + abs(pair[1] - pipeline)

    return sorted(fitting, key=cost)[:2]


def _named(pairs: list[tuple[int, int]]) -> str:
    return " and ".join(f"--tensor-parallel {tensor} --pipeline-parallel {pipeline}" for tensor, pipeline in pairs)


def _divisors(whole: int) -> list[int]:
    return [number for number in range(1, whole + 1) if whole % number == 0]
