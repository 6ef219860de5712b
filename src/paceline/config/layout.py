"""Options for processes: a cluster's, and the grid that divides model and samples among them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.config.rules import ABOVE_0, AT_LEAST_0, AT_LEAST_1, Bound, check_bounds, check_unused, require
from paceline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Training on several processes: a cluster's `--num-consumers`, or those of torchrun, accelerate or srun."""

    zero_stage: Annotated[int, Bound(lambda value: value in (0, 1, 2, 3), "be 0, 1, 2 or 3")] = 0
    """Slices instead of copies on processes with samples of their own: 1 optimiser state, 2 gradients too, 3 weights
    too (ZeRO, FSDP); 0: nothing."""
    tensor_parallel: Annotated[int, AT_LEAST_1] = 1
    """Processes that share every layer: heads, width and vocabulary."""
    context_parallel: Annotated[int, AT_LEAST_1] = 1
    """Processes that share the tokens of each micro-batch, for completions too long for one: in attention each has some
    of the heads. `micro_batch_tokens` is what each of them computes."""
    pipeline_parallel: Annotated[int, AT_LEAST_1] = 1
    """Processes that share the layers out: each has some of them."""
    sampling_ranks: Annotated[int, AT_LEAST_0] = 0
    """Ranks of torchrun, accelerate or srun that only sample, the last ones; all others then only train. 0: every rank
    does both."""

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def fewest(self) -> int:
        """Smallest number of processes that these options need."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Sampling and training in processes of their own, on one machine or several."""

    cluster: Annotated[bool | str, Bound(lambda value: value != "", "not be empty")] = False
    """Run samplers and trainers as actors of Ray (the extra `ray`) instead of in this process. The cluster is
    started for the run; or it runs already at HOST:PORT, or, with `auto`, on this machine."""
    num_producers: Annotated[int, AT_LEAST_1] = 1
    """Processes that sample and score, each with a copy of the weights, on as many machines as there are."""
    num_consumers: Annotated[int, AT_LEAST_1] = 1
    """Processes that train, each with a share of every step's completions. Each has a copy of the weights, or its part
    by `zero_stage`, `tensor_parallel` and `pipeline_parallel`. Gradients are added up."""
    max_staleness: Annotated[int, AT_LEAST_0] = 0
    """Steps by which the sampling weights may lag behind the trained ones. 0 samples and trains in turn; k samples up
    to k steps ahead while others are trained on: on a cluster, or on ranks with `sampling_ranks`."""
    on_new_weights: Literal["finish", "continue"] = "finish"
    """Reaction of samplers to newer weights while they sample: `finish` the step with the old ones, or `continue` with
    the newer ones from the next token on. The tokens of each version depend on timing and are recorded: such a run
    cannot be repeated bit for bit."""
    actor_timeout: Annotated[float, ABOVE_0] = 60.0
    """Seconds without a sign of life after which a process counts as lost. A lost sampler is replaced and its prompts
    done again; a lost trainer ends the attempt. A lost rank of torchrun or another launcher ends the run."""
    max_restarts: Annotated[int, AT_LEAST_0] = 3
    """Attempts that continue from the last checkpoint after the loss of a trainer; then the run ends."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.cluster:
            names = ("num_producers", "num_consumers")
            check_unused(self, names, without="--cluster", why="there is one process then")
        right, value = self.on_new_weights == "finish" or self.max_staleness >= 1, self.on_new_weights
        why = "no weights are made while a step is sampled; raise --max-staleness"
        require(right, "on_new_weights", value, "be finish with --max-staleness 0", why)

    @property
    def ray_address(self) -> str | None:
        """Address of a running Ray cluster; None: one is started for the run."""
        return self.cluster if isinstance(self.cluster, str) else None


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

        def cost(pair: tuple[int, int]) -> tuple[float, int]:
            """Return how much a pair changes; a pair that keeps one of the two numbers costs least."""
            factors = [max(new, old) / min(new, old) for new, old in zip(pair, (tensor, pipeline), strict=True)]
            return factors[0] * factors[1], abs(pair[0] - tensor) + abs(pair[1] - pipeline)

        pairs = sorted(((t, p) for t in divisors(processes) for p in divisors(processes // t)), key=cost)[:2]
        nearest = " and ".join(f"--tensor-parallel {t} --pipeline-parallel {p}" for t, p in pairs)
        raise ConfigError(
            f"--tensor-parallel {tensor} times --pipeline-parallel {pipeline} must divide the number of processes that "
            f"train, {processes}; the nearest that do are {nearest}"
        )
    data = processes // (tensor * pipeline)
    shard = data if options.zero_stage else 1
    rule = f"divide the {data} processes with samples or tokens of their own"
    why = f"such are {', '.join(map(str, divisors(data)))}"
    require(data % context == 0, "context_parallel", context, rule, why)
    return Sizes(pipeline=pipeline, replicate=data // shard, shard=shard, tensor=tensor, context=context)


def training_ranks(options: ParallelConfig, ranks: int) -> int:
    """Return how many of a launcher's ranks train; they are the first ones.

    >>> training_ranks(ParallelConfig(sampling_ranks=1), 7)
    6

    Raises:
        ConfigError: all of them would sample.
    """
    sampling = options.sampling_ranks
    require(sampling < ranks, "sampling_ranks", sampling, f"be below the number of ranks, {ranks}", "the others train")
    return ranks - sampling


def divisors(whole: int) -> list[int]:
    """Return the divisors of a number, smallest first."""
    return [number for number in range(1, whole + 1) if whole % number == 0]
