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


def settle(arguments: ColossalChatArguments, found: Translation, *, repair: bool) -> ColossalChatArguments:
    """Arguments, with `repair` moved to the nearest valid numbers, as a note says; else a ConfigError names those."""
    for name in POSITIVE:
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{flag(name)} must be at least 1, got {getattr(arguments, name)}")
    broken = "; ".join(clashes(arguments))
    if not broken:
        return arguments
    changes = nearest(arguments)
    words = " ".join(f"{flag(name)} {value}" for name, value in changes.items())
    if not repair:
        raise ConfigError(
            f"ColossalChat refuses these numbers itself: {broken}. The nearest that fit: add {words} at the end of its "
            "command (the last of a repeated flag counts), or give `paceline translate --repair`"
        )
    found.note("settled", " ".join(map(flag, changes)), f"{broken}: taken as {words}")
    return dataclasses.replace(arguments, **changes)  # type: ignore[arg-type]


def clashes(one: ColossalChatArguments) -> list[str]:
    """Every broken rule, with its numbers."""
    found = []
    layout = one.tensor_parallel_size * one.pipeline_parallel_size
    if one.num_trainers % layout:
        found.append(
            f"-tp {one.tensor_parallel_size} times -pp {one.pipeline_parallel_size} must divide -t {one.num_trainers}"
        )
    elif one.prompts_per_round % one.prompts_per_update:
        found.append(
            f"-ibs {one.inference_batch_size} of {one.num_inferencer} producers are {one.prompts_per_round} prompts a "
            f"round, which -tbs {one.train_batch_size} of {one.groups} groups of trainers "
            f"({one.prompts_per_update} an update) must divide"
        )
    if one.train_batch_size % one.train_minibatch_size:
        found.append(f"-tMbs must divide -tbs {one.train_batch_size}, got {one.train_minibatch_size}")
    if one.train_microbatch_size > one.train_minibatch_size * one.num_generations:
        most = one.train_minibatch_size * one.num_generations
        found.append(f"-tmbs must be at most -tMbs times -g ({most}), got {one.train_microbatch_size}")
    if one.inference_batch_size % one.inference_microbatch_size:
        found.append(f"-imbs must divide -ibs {one.inference_batch_size}, got {one.inference_microbatch_size}")
    return found


def nearest(arguments: ColossalChatArguments) -> BatchNumbers:
    """Smallest valid change: fewest numbers first, then smallest factors.

    Producers, completions per prompt and the layout of a group stay as they are.
    """

    def cost(changes: BatchNumbers) -> tuple[int, float, bool]:
        factors = math.fsum(abs(math.log2(value / getattr(arguments, name))) for name, value in changes.items())
        # of two that are as near the one that keeps the size of an update
        return len(changes), round(factors, 9), "train_batch_size" in changes

    # an update of one prompt per group always fits
    found = _candidates(arguments)
    return min(
        ({name: size for name, size in one.items() if size != getattr(arguments, name)} for one in found), key=cost
    )


def _candidates(given: ColossalChatArguments) -> Iterator[BatchNumbers]:
    """For every update size, the nearest other numbers."""
    layout = given.tensor_parallel_size * given.pipeline_parallel_size
    count = max(1, round(given.num_trainers / layout))
    whole = _divisors(given.prompts_per_round // count)
    for update in sorted({given.train_batch_size, *whole, *range(1, SEARCHED + 1)}):
        unit = update * count // math.gcd(given.num_inferencer, update * count)
        # multiples of -imbs as well: one number less to change
        units = unit, math.lcm(unit, given.inference_microbatch_size)
        sampled = {size for one in units for size in _nearest_multiples(one, given.inference_batch_size)}
        least = math.ceil(given.train_microbatch_size / given.num_generations)
        wanted = given.train_minibatch_size, max(given.train_minibatch_size, least)
        for round_size, portion in itertools.product(sampled, {_nearest_divisor(update, size) for size in wanted}):
            yield {
                "num_trainers": count * layout,
                "inference_batch_size": round_size,
                "inference_microbatch_size": _nearest_divisor(round_size, given.inference_microbatch_size),
                "train_batch_size": update,
                "train_minibatch_size": portion,
                "train_microbatch_size": min(given.train_microbatch_size, portion * given.num_generations),
            }


def _nearest_multiples(unit: int, wanted: int) -> list[int]:
    below = wanted // unit * unit
    return [wanted] if below == wanted else [number for number in (below, below + unit) if number]


def _nearest_divisor(whole: int, wanted: int) -> int:
    return min(_divisors(whole), key=lambda number: (abs(math.log2(number / wanted)), number))


def _divisors(whole: int) -> set[int]:
    small = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    return {*small, *(whole // number for number in small)}


def rounds(one: ColossalChatArguments, found: Translation) -> None:
    """Add the options of batch sizes, processes and staleness."""
    _sizes(one, found)
    found.decide(num_epochs=float(one.num_episodes))
    text = (
        "prompts that did not fill a round were left out of every episode; here rounds go on across episodes and the "
        "last step of the run is shorter"
    )
    found.note("mended", "-e", text)
    _processes(one, found)
    # steps that sampling may be ahead
    if one.script == ZERO_BUBBLE:
        limit = one.data_actor_buffer_size_limit
        limit = limit if limit >= 0 else 2 * one.train_minibatch_size * one.groups
        steps = max(1, math.ceil(limit / one.prompts_per_round))
        found.decide(max_staleness=steps)
        text = (
            f"a buffer of {limit} prompts is up to {steps} step{'s' * (steps > 1)} of {one.prompts_per_round}: "
            "sampling is never further ahead, and every step says from which weights it was sampled"
        )
        found.note("changed", "-cbsl", text)
        text = (
            "the trainer waited for ever when filtered groups left less than an update at the end of the data; here "
            "the last step runs on what there is"
        )
        found.note("mended", one.script, text)
    elif one.n_behind != 0:
        found.decide(max_staleness=one.n_behind)
        text = (
            "groups that waited at the end of an episode were dropped, and the ratio was to the weights that sampled; "
            "here every group is trained on, and --rollout-correction token_truncate or token_mask weighs the lag"
        )
        found.note("mended", f"-nb {one.n_behind}", text)


def _sizes(one: ColossalChatArguments, found: Translation) -> None:
    prompts, updates = one.prompts_per_round, one.updates_per_round
    tokens = one.train_microbatch_size * (one.max_prompt_tokens + one.max_new_tokens)
    at_once = one.inference_microbatch_size * one.num_generations
    found.decide(
        prompts_per_step=prompts,
        num_minibatches=updates,
        num_generations=one.num_generations,
        micro_batch_tokens=tokens,
        concurrent_sequences=at_once,
    )
    text = (
        f"a step is a round, {one.inference_batch_size} prompts of {one.num_inferencer} producers ({prompts}), in "
        f"{updates} update{'s' * (updates > 1)} of {one.prompts_per_update} ({one.train_batch_size} of each of "
        f"{one.groups} groups of trainers)"
    )
    found.note("changed", "-ibs -tbs", text)
    text = (
        f"memory is bounded in tokens: {one.train_microbatch_size} completions of at most {one.max_prompt_tokens} + "
        f"{one.max_new_tokens} tokens are {tokens:,}, and shorter ones share them"
    )
    found.note("changed", "-tmbs", text)
    text = f"of each sampler {at_once} completions at a time; as one ends another takes its place"
    found.note("changed", "-imbs", text)
    if "train_minibatch_size" in one.given:
        found.note("idle", "-tMbs", "a gradient is of the whole update, however it is cut")


def _processes(one: ColossalChatArguments, found: Translation) -> None:
    address = one.master_address
    found.decide(cluster=True if address is None else f"{address}:{RAY_PORT}", num_producers=one.num_inferencer)
    if address is not None:
        text = f"Ray's own port at that address, {RAY_PORT}; give --cluster HOST:PORT where it listens elsewhere"
        found.note("changed", "--master-address", text)
    if "master_port" in one.given:
        found.note("idle", "--master-port", "processes that train together find a free port themselves")
    if one.ray_dir is not None:
        text = "where Ray keeps its files is said to `ray start --temp-dir` or by RAY_TMPDIR"
        found.note("idle", "--ray-dir", text)
    found.decide(
        num_consumers=one.num_trainers,
        tensor_parallel=one.tensor_parallel_size,
        pipeline_parallel=one.pipeline_parallel_size,
        zero_stage=one.zero_stage,
    )
    if one.tensor_parallel_size * one.pipeline_parallel_size > 1:
        text = (
            "there one group of trainers alone made calls that all had to make, which hung, and a gradient was divided "
            "by the layout; here every layout has the gradient of one process"
        )
        found.note("mended", f"-tp {one.tensor_parallel_size} -pp {one.pipeline_parallel_size}", text)
