"""Completions, tokens and updates per step, and steps of a configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.layout import Sizes
from paceline.config.sections import Config
from paceline.rewards.function import BuiltIn, RewardFunction

NO_CALLS: Mapping[str, int] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """Sizes of a step and of a run. Totals of the run are None while the number of steps is unknown."""

    prompts_per_step: int
    num_generations: int
    updates_per_step: int
    max_refills: int
    """Further rounds of sampling that a step may take; the two numbers of tokens below count them all."""
    prompt_tokens_per_step: int
    """Most prompt tokens of a step; the completions of a prompt share them."""
    completion_tokens_per_step: int
    """Most tokens that a step samples."""
    num_tasks: int | None
    """Tasks of the dataset, None when they have not been counted."""
    steps: int | None
    epochs: float | None
    """Passes over the dataset."""
    checkpoints: int | None
    evaluations: int | None
    """Evaluations, including the one before the first step; there are none without held-out tasks."""

    @property
    def completions_per_step(self) -> int:
        """P prompts with G completions each."""
        return self.prompts_per_step * self.num_generations


def total_steps(config: Config, num_tasks: int | None) -> int | None:
    """Steps of the run: `max_steps`, else enough for `num_epochs`, the last one short; None: tasks are not counted."""
    loop = config.loop
    if loop.max_steps is not None:
        return loop.max_steps
    return None if num_tasks is None else max(1, math.ceil(round(loop.num_epochs * num_tasks) / loop.prompts_per_step))


def most_prompts_per_step(config: Config) -> int:
    """Prompts that a step may sample, with all refills."""
    at_once = math.ceil(config.loop.prompts_per_step * config.advantage.oversampling)
    return at_once * (1 + config.advantage.max_refills)


def service_calls(config: Config, functions: Mapping[str, RewardFunction]) -> dict[str, int]:
    """Return the calls of a step by reward function that asks a service, with all refills and without retries."""
    prompts, generations = most_prompts_per_step(config), config.sampling.num_generations
    return {
        name: prompts * function.calls(generations)
        for name, function in functions.items()
        if isinstance(function, BuiltIn) and function.calls is not None
    }


def forwarded_tokens(config: Config, sizes: Sizes) -> int:
    """Input tokens of an update in a process, at most: the completions of a group share their prompt."""
    group = config.data.max_prompt_length + config.sampling.num_generations * config.sampling.max_completion_length
    groups = config.loop.prompts_per_step / config.optim.num_minibatches
    return math.ceil(groups * group / sizes.shares / sizes.context)


def considered_micro_batches(config: Config, device: str) -> tuple[int, ...]:
    """Micro-batch sizes in tokens that a run chooses from on a device of this type, largest first. A deterministic run
    takes the largest, as the free memory of the day must not matter."""
    return config.optim.micro_batches(device)[: 1 if config.model.deterministic else None]


def even_tokens(config: Config, micro_batch: int, sizes: Sizes) -> int:
    """Input tokens of each of an update's micro-batches in a process where all completions are as long as they may be:
    there are as few as fit `micro_batch` tokens, filled evenly."""
    longest = math.ceil((config.data.max_prompt_length + config.sampling.max_completion_length) / sizes.context)
    forwarded = forwarded_tokens(config, sizes)
    return max(math.ceil(forwarded / math.ceil(forwarded / micro_batch)), min(longest, forwarded))


def most_tokens(config: Config, micro_batch: int, *, prompt: int, padded: bool) -> int:
    """Tokens of a forward pass on a rank, at most, with prompts of `prompt` tokens and micro-batches of so many; padded
    rows hold the prompt each, and fill a micro-batch with fewer completions."""
    completion, rows = config.sampling.max_completion_length, config.sampling.num_generations
    group = rows * (prompt + completion) if padded else prompt + rows * completion
    ranks = config.parallel.context_parallel
    most = max(micro_batch * ranks, prompt + completion)
    return math.ceil(min(most, config.loop.prompts_per_step * group) / ranks)


def batch_plan(config: Config, num_tasks: int | None) -> BatchPlan:
    """The plan of a configuration on a dataset of `num_tasks` tasks."""
    loop, prompts, generations = config.loop, config.loop.prompts_per_step, config.sampling.num_generations
    steps, drawn = total_steps(config, num_tasks), most_prompts_per_step(config)
    epochs, checkpoints, evaluations = None, None, None
    if loop.max_steps is None:  # a run in epochs ends with a short step, so steps times prompts would say too much
        epochs = loop.num_epochs
    elif steps is not None and num_tasks is not None:
        epochs = steps * prompts / num_tasks
    if steps is not None:
        every = config.evaluation.eval_steps
        checkpoints = steps // loop.save_steps if loop.save_steps else 0
        evaluations = 1 + (math.ceil(steps / every) if every else 1)  # and after the last in any case
    return BatchPlan(
        prompts_per_step=prompts,
        num_generations=generations,
        updates_per_step=config.optim.num_iterations * config.optim.num_minibatches,
        max_refills=config.advantage.max_refills,
        prompt_tokens_per_step=drawn * config.data.max_prompt_length,
        completion_tokens_per_step=drawn * generations * config.sampling.max_completion_length,
        num_tasks=num_tasks,
        steps=steps,
        epochs=epochs,
        checkpoints=checkpoints,
        evaluations=evaluations,
    )


def describe(plan: BatchPlan, calls: Mapping[str, int] = NO_CALLS) -> str:
    """The plan as a table for a terminal; `calls` of services in a step, by reward function."""
    prompts, completions, sampled = plan.prompts_per_step, plan.completions_per_step, plan.completion_tokens_per_step
    rows = [
        ("prompts per step", f"{prompts:,}"),
        ("completions per step", f"{completions:,} = {prompts:,} prompts x {plan.num_generations}"),
        ("tokens per step", f"at most {sampled:,} sampled, {plan.prompt_tokens_per_step:,} in prompts"),
    ]
    if plan.max_refills:
        rows.append(("refills of a step", f"at most {plan.max_refills:,} rounds, counted above"))
    rows += [
        ("judge's calls per step", f"at most {number:,} without retries: {name}") for name, number in calls.items()
    ]
    rows += [
        ("updates per step", f"{plan.updates_per_step:,}"),
        ("steps", "unknown, as the tasks are not counted" if plan.steps is None else f"{plan.steps:,}"),
        ("tasks", "not counted" if plan.num_tasks is None else f"{plan.num_tasks:,}"),
    ]
    if plan.epochs is not None:
        more = ", and more by refills" if plan.max_refills else ""
        rows.append(("passes over the tasks", f"{plan.epochs:.4g}{more}"))
    if plan.steps is not None:
        rows += [
            ("updates in all", f"{plan.steps * plan.updates_per_step:,}"),
            ("completions in all", f"{plan.steps * completions:,}"),
            ("sampled tokens in all", f"at most {plan.steps * sampled:,}"),
            ("evaluations", f"{plan.evaluations:,}, where there are held-out tasks"),
            ("checkpoints", f"{plan.checkpoints:,}, and the final model"),
        ]
    return table(rows)


def table(rows: list[tuple[str, str]]) -> str:
    """Names and values below each other."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)
