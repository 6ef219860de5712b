"""Divisibility rules of ColossalChat's batch sizes, and the nearest sizes that satisfy them.

It counts prompts: each of P producers samples `-ibs` of them in a round, in portions of `-imbs`. Trainers form
`-t / (-tp * -pp)` groups that hold the model once each; an update takes `-tbs` prompts of every group, in portions of
`-tMbs`, which are forwarded `-tmbs` completions at a time.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from paceline.compat.commands.colossalchat.arguments import ZERO_BUBBLE, ColossalChatArguments, flag
from paceline.compat.commands.translation import Translation
from paceline.errors import ConfigError

POSITIVE = (
    *("num_episodes", "num_trainers", "num_inferencer", "num_generations"),
    *("inference_batch_size", "inference_microbatch_size"),
    *("train_batch_size", "train_minibatch_size", "train_microbatch_size"),
    *("tensor_parallel_size", "pipeline_parallel_size", "producer_tensor_parallel_size"),
    *("max_new_tokens", "max_prompt_tokens"),
)
SEARCHED = 256
"""Update sizes to try, in addition to the given one and the divisors of a round."""
RAY_PORT = 6379
"""Default port of `ray start --head`."""
BatchNumbers = dict[str, int]


def settle(args: ColossalChatArguments, translation: Translation, *, repair: bool) -> ColossalChatArguments:
    """Arguments, with `repair` moved to the nearest valid numbers, as a note says; else a ConfigError names those."""
    for name in POSITIVE:
        if getattr(args, name) < 1:
            raise ConfigError(f"{flag(name)} must be at least 1, got {getattr(args, name)}")
    broken = "; ".join(clashes(args))
    if not broken:
        return args
    changes = nearest(args)
    words = " ".join(f"{flag(name)} {value}" for name, value in changes.items())
    if not repair:
        raise ConfigError(
            f"ColossalChat refuses these numbers itself: {broken}. The nearest that fit: add {words} at the end of its "
            "command (the last of a repeated flag counts), or give `paceline translate --repair`"
        )
    translation.note("settled", " ".join(map(flag, changes)), f"{broken}: taken as {words}")
    return dataclasses.replace(args, **changes)  # type: ignore[arg-type]


def clashes(args: ColossalChatArguments) -> list[str]:
    """Return a sentence for every broken rule, with its numbers."""
    broken = []
    layout = args.tensor_parallel_size * args.pipeline_parallel_size
    if args.num_trainers % layout:
        broken.append(
            f"-tp {args.tensor_parallel_size} times -pp {args.pipeline_parallel_size} must divide "
            f"-t {args.num_trainers}"
        )
    elif args.prompts_per_round % args.prompts_per_update:
        broken.append(
            f"-ibs {args.inference_batch_size} of {args.num_inferencer} producers are {args.prompts_per_round} prompts "
            f"a round, which -tbs {args.train_batch_size} of {args.groups} groups of trainers "
            f"({args.prompts_per_update} an update) must divide"
        )
    if args.train_batch_size % args.train_minibatch_size:
        broken.append(f"-tMbs must divide -tbs {args.train_batch_size}, got {args.train_minibatch_size}")
    if args.train_microbatch_size > args.train_minibatch_size * args.num_generations:
        most = args.train_minibatch_size * args.num_generations
        broken.append(f"-tmbs must be at most -tMbs times -g ({most}), got {args.train_microbatch_size}")
    if args.inference_batch_size % args.inference_microbatch_size:
        broken.append(f"-imbs must divide -ibs {args.inference_batch_size}, got {args.inference_microbatch_size}")
    return broken


def nearest(args: ColossalChatArguments) -> BatchNumbers:
    """Smallest valid change: fewest numbers first, then smallest factors.

    Producers, completions per prompt and the layout of a group stay as they are.
    """

    def cost(changes: BatchNumbers) -> tuple[int, float, bool]:
        factors = math.fsum(abs(math.log2(value / getattr(args, name))) for name, value in changes.items())
        # of two that are as near the one that keeps the size of an update
        return len(changes), round(factors, 9), "train_batch_size" in changes

    # an update of one prompt per group always fits
    candidates = _candidates(args)
    return min(
        ({name: size for name, size in candidate.items() if size != getattr(args, name)} for candidate in candidates),
        key=cost,
    )


def _candidates(args: ColossalChatArguments) -> Iterator[BatchNumbers]:
    """Yield the nearest other numbers for every update size."""
    layout = args.tensor_parallel_size * args.pipeline_parallel_size
    count = max(1, round(args.num_trainers / layout))
    whole = _divisors(args.prompts_per_round // count)
    for update in sorted({args.train_batch_size, *whole, *range(1, SEARCHED + 1)}):
        unit = update * count // math.gcd(args.num_inferencer, update * count)
        # multiples of -imbs as well: one number less to change
        units = unit, math.lcm(unit, args.inference_microbatch_size)
        sampled = {size for multiple in units for size in _nearest_multiples(multiple, args.inference_batch_size)}
        least = math.ceil(args.train_microbatch_size / args.num_generations)
        wanted = args.train_minibatch_size, max(args.train_minibatch_size, least)
        for round_size, portion in itertools.product(sampled, {_nearest_divisor(update, size) for size in wanted}):
            yield {
                "num_trainers": count * layout,
                "inference_batch_size": round_size,
                "inference_microbatch_size": _nearest_divisor(round_size, args.inference_microbatch_size),
                "train_batch_size": update,
                "train_minibatch_size": portion,
                "train_microbatch_size": min(args.train_microbatch_size, portion * args.num_generations),
            }


def _nearest_multiples(unit: int, wanted: int) -> list[int]:
    below = wanted // unit * unit
    return [wanted] if below == wanted else [number for number in (below, below + unit) if number]


def _nearest_divisor(whole: int, wanted: int) -> int:
    return min(_divisors(whole), key=lambda number: (abs(math.log2(number / wanted)), number))


def _divisors(whole: int) -> set[int]:
    small = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    return {*small, *(whole // number for number in small)}


def rounds(args: ColossalChatArguments, translation: Translation) -> None:
    """Add the options of batch sizes, processes and staleness."""
    _sizes(args, translation)
    translation.decide(num_epochs=float(args.num_episodes))
    text = (
        "prompts that did not fill a round were left out of every episode; here rounds go on across episodes and the "
        "last step of the run is shorter"
    )
    translation.note("mended", "-e", text)
    _processes(args, translation)
    # steps that sampling may be ahead
    if args.script == ZERO_BUBBLE:
        limit = args.data_actor_buffer_size_limit
        limit = limit if limit >= 0 else 2 * args.train_minibatch_size * args.groups
        steps = max(1, math.ceil(limit / args.prompts_per_round))
        translation.decide(max_staleness=steps)
        text = (
            f"a buffer of {limit} prompts is up to {steps} step{'s' * (steps > 1)} of {args.prompts_per_round}: "
            "sampling is never further ahead, and every step says from which weights it was sampled"
        )
        translation.note("changed", "-cbsl", text)
        text = (
            "the trainer waited for ever when filtered groups left less than an update at the end of the data; here "
            "the last step runs on what there is"
        )
        translation.note("mended", args.script, text)
    elif args.n_behind != 0:
        translation.decide(max_staleness=args.n_behind)
        text = (
            "groups that waited at the end of an episode were dropped, and the ratio was to the weights that sampled; "
            "here every group is trained on, and --rollout-correction token_truncate or token_mask weighs the lag"
        )
        translation.note("mended", f"-nb {args.n_behind}", text)


def _sizes(args: ColossalChatArguments, translation: Translation) -> None:
    prompts, updates = args.prompts_per_round, args.updates_per_round
    tokens = args.train_microbatch_size * (args.max_prompt_tokens + args.max_new_tokens)
    at_once = args.inference_microbatch_size * args.num_generations
    translation.decide(
        prompts_per_step=prompts,
        num_minibatches=updates,
        num_generations=args.num_generations,
        micro_batch_tokens=tokens,
        concurrent_sequences=at_once,
    )
    text = (
        f"a step is a round, {args.inference_batch_size} prompts of {args.num_inferencer} producers ({prompts}), in "
        f"{updates} update{'s' * (updates > 1)} of {args.prompts_per_update} ({args.train_batch_size} of each of "
        f"{args.groups} groups of trainers)"
    )
    translation.note("changed", "-ibs -tbs", text)
    text = (
        f"memory is bounded in tokens: {args.train_microbatch_size} completions of at most {args.max_prompt_tokens} + "
        f"{args.max_new_tokens} tokens are {tokens:,}, and shorter ones share them"
    )
    translation.note("changed", "-tmbs", text)
    text = f"of each sampler {at_once} completions at a time; as one ends another takes its place"
    translation.note("changed", "-imbs", text)
    if "train_minibatch_size" in args.explicit:
        translation.note("idle", "-tMbs", "a gradient is of the whole update, however it is cut")


def _processes(args: ColossalChatArguments, translation: Translation) -> None:
    address = args.master_address
    translation.decide(cluster=True if address is None else f"{address}:{RAY_PORT}", num_producers=args.num_inferencer)
    if address is not None:
        text = f"Ray's own port at that address, {RAY_PORT}; give --cluster HOST:PORT where it listens elsewhere"
        translation.note("changed", "--master-address", text)
    if "master_port" in args.explicit:
        translation.note("idle", "--master-port", "processes that train together find a free port themselves")
    if args.ray_dir is not None:
        text = "where Ray keeps its files is said to `ray start --temp-dir` or by RAY_TMPDIR"
        translation.note("idle", "--ray-dir", text)
    translation.decide(
        num_consumers=args.num_trainers,
        tensor_parallel=args.tensor_parallel_size,
        pipeline_parallel=args.pipeline_parallel_size,
        zero_stage=args.zero_stage,
    )
    if args.tensor_parallel_size * args.pipeline_parallel_size > 1:
        text = (
            "there one group of trainers alone made calls that all had to make, which hung, and a gradient was divided "
            "by the layout; here every layout has the gradient of one process"
        )
        translation.note("mended", f"-tp {args.tensor_parallel_size} -pp {args.pipeline_parallel_size}", text)
