"""TRL's batches, counted in completions, as steps of whole groups; its durations, counted in updates, as steps."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import cast

from paceline.compat.trl.fields import Fields, accepted_without_effect, keywords_of
from paceline.config.sections import Config
from paceline.errors import ConfigError


class Derived(int):
    """A default computed from other fields, to be computed again when they change.

    The mark travels with the value through `dataclasses.replace` and copies, which a separate field would not.
    """


LONGEST_SEARCH = 1000
"""Search limit for a fitting number, as a multiple of the wanted one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """Composition of one batch of rollouts, and the updates that it gives."""

    completions_per_step: int
    """Completions sampled together: the larger of TRL's generation batch and update batch."""
    prompts_per_step: int
    num_generations: int
    num_minibatches: int
    """Parts of the step, one update each."""
    updates_per_step: int
    """Optimiser steps, which `global_step` counts, per batch of rollouts."""
    generations_per_update: int
    """TRL's generations per update, where an update is longer than a generation; else 1."""


def fill_batch_fields(args: Fields) -> Batches:
    """Set `generation_batch_size` and `steps_per_generation` unless given; refuse numbers at odds (ConfigError)."""
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations"):
        _positive(name, getattr(args, name))
    micro, parts = completions_of_a_part(args), args.steps_per_generation
    label = f"per_device_train_batch_size{_processes(args)}"
    size = None if isinstance(args.generation_batch_size, Derived) else args.generation_batch_size
    if parts is None or isinstance(parts, Derived):
        parts = args.gradient_accumulation_steps
        if size:
            _positive("generation_batch_size", size)
            if size % micro:
                raise ConfigError(
                    f"generation_batch_size must be a multiple of {label} ({micro}), got {size}; "
                    f"the nearest that are: {_nearest(size, lambda n: n % micro == 0, limit=size + micro)}"
                )
            parts = size // micro
        args.steps_per_generation = Derived(parts)
    _positive("steps_per_generation", parts)
    if size not in (None, micro * parts):
        raise ConfigError(
            f"generation_batch_size must be {label} * steps_per_generation "
            f"({micro} * {parts} = {micro * parts}), got {size}; give only one of "
            "generation_batch_size and steps_per_generation"
        )
    if size is None:
        args.generation_batch_size = Derived(micro * parts)
    return batches_of(args)


def batches_of(args: Fields) -> Batches:
    """Batches of whole groups that filled fields make; ConfigError where numbers do not line up."""
    micro, accumulated = completions_of_a_part(args), args.gradient_accumulation_steps
    sampled = cast(int, args.steps_per_generation)

    def lines_up(parts: int) -> bool:
        return max(accumulated, parts) % min(accumulated, parts) == 0

    if not lines_up(sampled):
        raise ConfigError(
            f"steps_per_generation must divide gradient_accumulation_steps ({accumulated}) or be a multiple of it, "
            f"got {sampled}; the nearest that do are {_nearest(sampled, lines_up)}"
        )
    group: object = args.num_generations
    if not isinstance(group, int) or isinstance(group, bool) or group < 2:
        raise ConfigError(
            f"num_generations must be a whole number of at least 2, got {group!r}; an advantage compares the "
            "completions of one prompt (8 is usual)"
        )
    longest = max(accumulated, sampled)
    completions = micro * longest
    if completions % group:
        # the nearest group sizes, and the nearest accumulation where that alone sets the batch
        groups = _nearest(group, lambda n: n >= 2 and completions % n == 0, limit=completions)
        here, processes = args.per_device_train_batch_size, micro // args.per_device_train_batch_size
        sizes = _nearest(here, lambda n: n * processes * longest % group == 0)
        longer = _nearest(longest, lambda n: micro * n % group == 0)
        choices = [f"num_generations {groups}"] if groups else []
        choices += [f"per_device_train_batch_size {sizes}", f"{longer} micro-batches (gradient_accumulation_steps)"]
        raise ConfigError(
            f"num_generations must divide the {completions} completions of a batch (per_device_train_batch_size "
            f"{here}{_processes(args)} * {longest} micro-batches), got {group}; the nearest that fit are "
            f"{', or '.join(choices)}"
        )
    return Batches(
        completions_per_step=completions,
        prompts_per_step=completions // group,
        num_generations=group,
        num_minibatches=max(1, sampled // accumulated),
        updates_per_step=max(1, sampled // accumulated) * args.num_iterations,
        generations_per_update=max(1, accumulated // sampled),
    )


def completions_of_a_part(args: Fields) -> int:
    """Completions of a micro-batch on all processes."""
    return args.per_device_train_batch_size * args.world_size


def _processes(args: Fields) -> str:
    return f" * {args.world_size} processes" if args.world_size > 1 else ""


def _nearest(wanted: int, fits: Callable[[int], bool], limit: int | None = None) -> str:
    """Fitting numbers next to `wanted`, one below and one above if they exist."""
    below = next((n for n in range(wanted - 1, 0, -1) if fits(n)), None)
    above = next((n for n in range(wanted + 1, (limit or LONGEST_SEARCH * wanted) + 1) if fits(n)), None)
    return " and ".join(str(n) for n in (below, above) if n is not None)


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")


def total_updates(args: Fields, num_prompts: int | None) -> int | None:
    """Optimiser steps of the run from `max_steps` or the epochs; None for a dataset without a length."""
    batches = batches_of(args)
    if args.max_steps > 0:
        return math.ceil(args.max_steps / batches.updates_per_step) * batches.updates_per_step
    if num_prompts is None:
        return None
    steps = math.ceil(round(args.num_train_epochs * num_prompts) / batches.prompts_per_step)
    return max(1, steps) * batches.updates_per_step


def in_steps(args: Fields, name: str, value: float, num_prompts: int | None) -> int:
    """Steps of the loop, rounded up, for updates or, below 1, a share of the run's; ConfigError where it is neither."""
    if value > 1 and value != int(value):
        raise ConfigError(f"{name} must be a whole number above 1, got {value!r}; below 1 it is a share of the run")
    updates = int(value)
    if 0 < value < 1:
        total = total_updates(args, num_prompts)
        if total is None:
            raise ConfigError(
                f"{name} must be 1 or more for a dataset without a length, got {value!r}; or give max_steps"
            )
        updates = math.ceil(value * total)
    return math.ceil(updates / batches_of(args).updates_per_step)


def warmup_field(args: Fields) -> str:
    """Name of the field that sets the warm-up."""
    return "warmup_steps" if args.warmup_ratio is None else "warmup_ratio"


def check_warmup(args: Fields) -> None:
    """Refuse two warm-ups, one out of range, or one that the run is too short for; ConfigError."""
    name = warmup_field(args)
    value = getattr(args, name)
    if args.warmup_ratio is not None and not 0 <= args.warmup_ratio < 1:
        raise ConfigError(f"warmup_ratio must lie in [0, 1), got {value!r}; warmup_steps takes a number of updates")
    if args.warmup_ratio is not None and args.warmup_steps:
        raise ConfigError(f"warmup_steps must be 0 with warmup_ratio, got {args.warmup_steps!r}; give one of them")
    if value < 0:
        raise ConfigError(f"{name} must be at least 0, got {value!r}")
    if args.lr_scheduler_type != "constant" and value > args.max_steps > 0:
        raise ConfigError(
            f"{name} must be at most max_steps ({args.max_steps}), got {value!r}; the peak would never be reached"
        )


def warmup_steps(args: Fields, num_prompts: int | None) -> int:
    """Warm-up as steps of the loop, rounded up; 0 for a constant rate. ConfigError: see `check_warmup`."""
    check_warmup(args)
    if args.lr_scheduler_type == "constant":
        return 0
    name = warmup_field(args)
    return in_steps(args, name, getattr(args, name), num_prompts)


def interval(args: Fields, kind: str, num_prompts: int | None) -> int:
    """Steps between two checkpoints (`save`) or evaluations (`eval`); 0 unless the strategy is `steps`."""
    if getattr(args, f"{kind}_strategy") != "steps":
        return 0
    return in_steps(args, f"{kind}_steps", getattr(args, f"{kind}_steps"), num_prompts)


def describe_plan(args: Fields, config: Config) -> str:
    """TRL's counts beside ours, then all differences that the fields do not suggest."""
    batches, steps = batches_of(args), config.loop.max_steps
    updates = batches.updates_per_step
    per_update = batches.completions_per_step // batches.num_minibatches
    times = batches.generations_per_update
    joined = f", {times} of them per update, sampled together here" if times > 1 else ""
    lines = [
        f"completions per update: {per_update} (TRL: per_device_train_batch_size {args.per_device_train_batch_size}"
        f"{_processes(args)} * gradient_accumulation_steps {args.gradient_accumulation_steps})",
        f"prompts per update: {per_update / batches.num_generations:g} (num_generations {args.num_generations})",
        f"updates per rollout batch: {updates} = {batches.num_minibatches} part"
        f"{'s' if batches.num_minibatches > 1 else ''} * num_iterations {args.num_iterations}",
        f"completions per rollout batch: {batches.completions_per_step} of {batches.prompts_per_step} prompts "
        f"(TRL: generation_batch_size {args.generation_batch_size}{joined})",
    ]
    if steps is None:
        lines.append(f"length: {config.loop.num_epochs:g} epochs; global_step counts {updates} per rollout batch")
    else:
        rounded = f", rounded up from max_steps {args.max_steps}" if steps * updates != args.max_steps else ""
        lines.append(f"length: {steps} rollout batches, {steps * updates} updates (global_step){rounded}")
    lines.append(
        f"micro-batches: cut by micro_batch_tokens {config.optim.micro_batch_tokens or '(by device)'}, not by count; "
        "averages are over the whole update, so the cut does not change the gradient"
    )
    if config.model.dtype == "bfloat16":
        lines.append("precision: computes in bfloat16, weights and optimiser state stay float32")
    if config.loss.bound == "cispo" and args.epsilon_high is None:
        lines.append(
            f"cispo: a ratio weighs at most {1 + config.loss.clip_eps_high} (TRL would take epsilon, {args.epsilon}, "
            "and hold every weight there); epsilon_high sets it"
        )
    if args.push_to_hub:
        lines.append(
            "push_to_hub: the model is uploaded once, when training ends (hub_strategy every_save does not say more)"
        )
    accepted = accepted_without_effect(args)
    return "\n".join([*lines, accepted] if accepted else lines)


def scheduler_words(args: Fields) -> str:
    """Return the schedule with its parameters, such as `cosine(warmup=10, num_cycles=2)`.

    `warmup` counts updates; below 1 it is a share of the run. A parameter that is None is left out.

    Raises:
        ConfigError: `lr_scheduler_kwargs` is no dictionary.
    """
    kind: object = args.lr_scheduler_type
    warmup = getattr(args, warmup_field(args))
    warmup = int(warmup) if warmup >= 1 else warmup or None
    parameters = {"warmup": warmup, **keywords_of(args, "lr_scheduler_kwargs")}
    written = ", ".join(f"{name}={json.dumps(value)}" for name, value in parameters.items() if value is not None)
    return str(kind.value if isinstance(kind, Enum) else kind) + (f"({written})" if written else "")
