"""Divisibility rules of ColossalChat's batch sizes, and the nearest sizes that satisfy them.

It counts prompts: each of P producers samples `-ibs` of them in a round, in portions of `-imbs`. Trainers form
`-t / (-tp * -pp)` groups that hold the model once each; an update takes `-tbs` prompts of every group, in portions of
`-tMbs`, which are forwarded `-tmbs` completions at a time.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from paceline.compat.commands.colossalchat.arguments import (
    ZERO_BUBBLE,
    ColossalChatArguments,
    ColossalChatCommand,
    flag,
)
from paceline.compat.commands.translation import Note, Translation
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
BatchNumbers = dict[str, int]


def groups(arguments: ColossalChatArguments) -> int:
    """Number of model replicas: trainers that share one count once."""
    return arguments.num_trainers // (arguments.tensor_parallel_size * arguments.pipeline_parallel_size)


def prompts_per_round(arguments: ColossalChatArguments) -> int:
    """Prompts that all producers sample between two weight transfers."""
    return arguments.inference_batch_size * arguments.num_inferencer


def prompts_per_update(arguments: ColossalChatArguments) -> int:
    """Prompts of one update, over all replicas."""
    return arguments.train_batch_size * groups(arguments)


def settle(arguments: ColossalChatArguments, *, repair: bool) -> tuple[ColossalChatArguments, tuple[Note, ...]]:
    """Arguments, with `repair` moved to the nearest valid numbers, and a note for each replaced one.

    Raises:
        ConfigError: numbers that do not fit, without `repair`; the sentence has them all and the nearest that do. Or
            one that must be positive and is not.
    """
    for name in POSITIVE:
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{flag(name)} must be at least 1, got {getattr(arguments, name)}")
    found = clashes(arguments)
    if not found:
        return arguments, ()
    changes = nearest(arguments)
    words = " ".join(f"{flag(name)} {value}" for name, value in changes.items())
    if not repair:
        raise ConfigError(
            f"ColossalChat refuses these numbers itself: {'; '.join(found)}. The nearest that fit: add {words} at the "
            "end of its command (the last of a repeated flag counts), or give `paceline translate --repair`"
        )
    note = Note("settled", " ".join(map(flag, changes)), f"{'; '.join(found)}: taken as {words}")
    return dataclasses.replace(arguments, **changes), (note,)  # type: ignore[arg-type]


def clashes(arguments: ColossalChatArguments) -> list[str]:
    """Every broken rule, with its numbers."""
    one, found = arguments, []
    layout = one.tensor_parallel_size * one.pipeline_parallel_size
    if one.num_trainers % layout:
        found.append(
            f"-tp {one.tensor_parallel_size} times -pp {one.pipeline_parallel_size} must divide -t {one.num_trainers}"
        )
    elif prompts_per_round(one) % prompts_per_update(one):
        found.append(
            f"-ibs {one.inference_batch_size} of {one.num_inferencer} producers are {prompts_per_round(one)} prompts a "
            f"round, which -tbs {one.train_batch_size} of {groups(one)} groups of trainers "
            f"({prompts_per_update(one)} an update) must divide"
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
    layout = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
    trainers = max(layout, round(arguments.num_trainers / layout) * layout)
    least: tuple[tuple[int, float, bool], BatchNumbers] | None = None
    for numbers in _candidates(arguments, trainers):
        changes = {name: value for name, value in numbers.items() if value != getattr(arguments, name)}
        factors = math.fsum(abs(math.log2(value / getattr(arguments, name))) for name, value in changes.items())
        # of two that are as near the one that keeps the size of an update
        cost = (len(changes), round(factors, 9), "train_batch_size" in changes)
        if least is None or cost < least[0]:
            least = cost, changes
    assert least is not None  # an update of one prompt per group always fits
    return least[1]


def _candidates(arguments: ColossalChatArguments, trainers: int) -> Iterator[BatchNumbers]:
    """For every update size, the nearest other numbers."""
    given = arguments
    count = trainers // (given.tensor_parallel_size * given.pipeline_parallel_size)
    whole = _divisors(prompts_per_round(given) // count)
    for update in sorted({given.train_batch_size, *whole, *range(1, SEARCHED + 1)}):
        unit = update * count // math.gcd(given.num_inferencer, update * count)
        # multiples of -imbs as well: one number less to change
        sampled = {*_multiples(unit, given), *_multiples(math.lcm(unit, given.inference_microbatch_size), given)}
        least = math.ceil(given.train_microbatch_size / given.num_generations)
        wanted = given.train_minibatch_size, max(given.train_minibatch_size, least)
        for round_size, portion in itertools.product(sampled, {_nearest_divisor(update, size) for size in wanted}):
            yield {
                "num_trainers": trainers,
                "inference_batch_size": round_size,
                "inference_microbatch_size": _nearest_divisor(round_size, given.inference_microbatch_size),
                "train_batch_size": update,
                "train_minibatch_size": portion,
                "train_microbatch_size": min(given.train_microbatch_size, portion * given.num_generations),
            }


def _multiples(unit: int, given: ColossalChatArguments) -> list[int]:
    """Round sizes next to the given one that are multiples of `unit`."""
    return _nearest_multiples(unit, given.inference_batch_size)


def _nearest_multiples(unit: int, wanted: int) -> list[int]:
    below = wanted // unit * unit
    return [wanted] if below == wanted else [number for number in (below, below + unit) if number]


def _nearest_divisor(whole: int, wanted: int) -> int:
    return min(_divisors(whole), key=lambda number: (abs(math.log2(number / wanted)), number))


def _divisors(whole: int) -> set[int]:
    small = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    return {*small, *(whole // number for number in small)}


RAY_PORT = 6379
"""Default port of `ray start --head`."""


def updates_per_round(arguments: ColossalChatArguments) -> int:
    """Optimiser steps between two weight transfers."""
    return prompts_per_round(arguments) // prompts_per_update(arguments)


def rounds(read: ColossalChatCommand) -> Translation:
    """Options on batch sizes, processes and staleness."""
    return _sizes(read) + _length(read.arguments) + _processes(read) + _parallel(read.arguments) + _lag(read)


def _sizes(read: ColossalChatCommand) -> Translation:
    one = read.arguments
    prompts, updates = prompts_per_round(one), updates_per_round(one)
    tokens = one.train_microbatch_size * (one.max_prompt_tokens + one.max_new_tokens)
    at_once = one.inference_microbatch_size * one.num_generations
    return Translation(
        options={
            "prompts_per_step": prompts,
            "num_minibatches": updates,
            "num_generations": one.num_generations,
            "micro_batch_tokens": tokens,
            "concurrent_sequences": at_once,
        },
        notes=(
            Note(
                "changed",
                "-ibs -tbs",
                f"a step is a round, {one.inference_batch_size} prompts of {one.num_inferencer} producers "
                f"({prompts}), in {updates} update{'s' * (updates > 1)} of {prompts_per_update(one)} "
                f"({one.train_batch_size} of each of {groups(one)} groups of trainers)",
            ),
            Note(
                "changed",
                "-tmbs",
                f"memory is bounded in tokens: {one.train_microbatch_size} completions of at most "
                f"{one.max_prompt_tokens} + {one.max_new_tokens} tokens are {tokens:,}, and shorter ones share them",
            ),
            Note(
                "changed",
                "-imbs",
                f"of each producer {at_once} completions at a time; as one ends another takes its place",
            ),
            *_portions(read),
        ),
    )


def _portions(read: ColossalChatCommand) -> tuple[Note, ...]:
    if "train_minibatch_size" not in read.given:
        return ()
    return (Note("idle", "-tMbs", "a gradient is of the whole update, however it is cut"),)


def _length(one: ColossalChatArguments) -> Translation:
    note = Note(
        "mended",
        "-e",
        "prompts that did not fill a round were left out of every episode; here rounds go on across episodes and "
        "the last step of the run is shorter",
    )
    return Translation(options={"num_epochs": float(one.num_episodes)}, notes=(note,))


def _processes(read: ColossalChatCommand) -> Translation:
    one, notes = read.arguments, []
    options: dict[str, object] = {
        "cluster": True,
        "num_producers": one.num_inferencer,
    }
    if one.master_address is not None:
        options["cluster"] = f"{one.master_address}:{RAY_PORT}"
        text = f"Ray's own port at that address, {RAY_PORT}; give --cluster HOST:PORT where it listens elsewhere"
        notes.append(Note("changed", "--master-address", text))
    if "master_port" in read.given:
        text = "processes that train together find a free port themselves"
        notes.append(Note("idle", "--master-port", text))
    if one.ray_dir is not None:
        text = "where Ray keeps its files is said to `ray start --temp-dir` or by RAY_TMPDIR"
        notes.append(Note("idle", "--ray-dir", text))
    return Translation(options=options, notes=tuple(notes))


def _parallel(one: ColossalChatArguments) -> Translation:
    options: dict[str, object] = {
        "num_consumers": one.num_trainers,
        "tensor_parallel": one.tensor_parallel_size,
        "pipeline_parallel": one.pipeline_parallel_size,
        "zero_stage": one.zero_stage,
    }
    if one.tensor_parallel_size == one.pipeline_parallel_size == 1:
        return Translation(options=options)
    text = (
        "there one group of trainers alone made calls that all had to make, which hung, and a gradient was divided by "
        "the layout; here every layout has the gradient of one process"
    )
    about = f"-tp {one.tensor_parallel_size} -pp {one.pipeline_parallel_size}"
    return Translation(options=options, notes=(Note("mended", about, text),))


def _lag(read: ColossalChatCommand) -> Translation:
    """Option for the number of steps that sampling may be ahead."""
    one = read.arguments
    if read.script == ZERO_BUBBLE:
        limit = one.data_actor_buffer_size_limit
        limit = limit if limit >= 0 else 2 * one.train_minibatch_size * groups(one)
        steps = max(1, math.ceil(limit / prompts_per_round(one)))
        text = (
            f"a buffer of {limit} prompts is up to {steps} step{'s' * (steps > 1)} of {prompts_per_round(one)}: "
            "sampling is never further ahead, and every step says from which weights it was sampled"
        )
        note = Note("changed", "-cbsl", text)
        end = Note(
            "mended",
            read.script,
            "the trainer waited for ever when filtered groups left less than an update at the end of the data; "
            "here the last step runs on what there is",
        )
        return Translation(options={"max_staleness": steps}, notes=(note, end))
    if one.n_behind == 0:
        return Translation()
    text = (
        "groups that waited at the end of an episode were dropped, and the ratio was to the weights that sampled; "
        "here every group is trained on, and --rollout-correction token_truncate or token_mask weighs the lag"
    )
    note = Note("mended", f"-nb {one.n_behind}", text)
    return Translation(options={"max_staleness": one.n_behind}, notes=(note,))
