"""Held-out tasks from the options, and the evaluators of a run: of accuracy for options, of rewards for given tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from transformers import PreTrainedTokenizerBase

from paceline.chat.escaping import ChatTokenizer
from paceline.chat.messages import row_tools
from paceline.config.reading import is_code
from paceline.config.sections import Config
from paceline.data.duplicates import held_out_rows, refuse_overlap, training_rows
from paceline.data.rows import SAMPLE, spread
from paceline.data.sources import has_split
from paceline.data.tasks import TaskSet, build_tasks
from paceline.engines import Sampling
from paceline.episodes.conversations import Completer, Conversations
from paceline.errors import ConfigError
from paceline.models.places import check_completion_fits
from paceline.rewards.function import BuiltIn, RewardFunction, row_check
from paceline.rewards.startup import self_test, unmet_needs
from paceline.training.evaluation import Evaluator
from paceline.training.setup.inputs import RunObjects
from paceline.training.setup.samplers import sampling_of
from paceline.types import Task


def of_rows(tasks: TaskSet) -> list[str]:
    """Report which rows of a large dataset were read, and which were left out or cut."""
    lines = []
    if tasks.is_large:
        lines.append(
            f"{len(tasks.tasks):,} rows: {SAMPLE:,} spread evenly over them were looked at before the first step, and "
            "what is said of rows and prompts is of these; every other is looked at when it is taken"
        )
    if tasks.dropped or tasks.truncated:
        lines.append(f"prompts above --max-prompt-length: {tasks.dropped} dropped, {tasks.truncated} truncated")
    lines += tasks.notes
    if tasks.skipped:
        lines.append(f"rows skipped by --on-bad-row skip: {len(tasks.skipped)}; the first: {tasks.skipped[0]}")
    return lines


def of_graders(functions: Iterable[RewardFunction]) -> list[str]:
    """Report how programs are isolated that built-in functions run."""
    return [
        function.describe() for function in functions if isinstance(function, BuiltIn) and function.describe is not None
    ]


def make_evaluators(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    objects: RunObjects,
    conversations: Conversations | None,
    *,
    limit: int | None,
    is_length_free: bool = False,
    training: Sequence[Task] = (),
) -> tuple[Evaluator, ...]:
    """Each set of held-out tasks and how it is graded: the same in training, at its end, and in `paceline eval`.

    `limit`: positions of the model, None where it has no end. `is_length_free`: completions may be shorter than the
    option says, where prompts leave no more. A set of which prompts are among `training` is refused, unless the options
    allow it.
    """
    sets = config.data.held_out
    if config.data.eval_share is not None:
        name = " ".join(config.data.datasets)
        sets = ((f"{name}:held-out", name),)
    elif config.data.eval_dataset is None and len(sets) > 1:  # of several to train on, those that keep some tasks apart
        sets = (
            tuple(held_out for held_out in sets if has_split(held_out[1], config.data.eval_split, objects.files))
            or sets
        )
    made = tuple(
        _evaluator(config, tokenizer, objects, conversations, held_out, limit, is_length_free) for held_out in sets
    )
    if conversations is None and not config.data.allow_overlap:  # else tasks of one prompt differ by their environments
        for evaluator in made:
            refuse_overlap(evaluator.name, evaluator.tasks, training)
    return made


def _evaluator(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    objects: RunObjects,
    conversations: Conversations | None,
    held_out: tuple[str | None, str],
    limit: int | None,
    is_length_free: bool,
) -> Evaluator:
    name, dataset = held_out
    options, data, function = config.evaluation, config.data, objects.measure
    seed, split = config.loop.seed, None
    if data.eval_share is None:
        rows, split = held_out_rows(data, dataset, size=options.eval_size, seed=seed, files=objects.files)
    else:
        rows = training_rows(data, seed=seed, files=objects.files, images=objects.images)[1]
        if options.eval_size is not None:  # of several datasets some of each
            rows = rows[: options.eval_size] if len(data.datasets) == 1 else spread(rows, options.eval_size)
    check = row_check(function)
    built = build_tasks(
        rows,
        cast(ChatTokenizer, tokenizer),
        data,
        system=objects.system,
        check=check,
        whole=True,
        tools_of=row_tools if conversations is None else conversations.tools_of,
        images=objects.images,
    )
    tasks = built.looked_at
    if conversations is not None:
        conversations.check(tasks)
    completion, notes = config.sampling.max_completion_length, of_rows(built)
    left = completion if limit is None else limit - max(len(task.prompt_ids) for task in tasks)
    if is_length_free and 0 < left < completion:
        completion = left
        notes.append(
            f"completions have at most {left} tokens, which the model's {limit} positions leave beside the longest "
            "prompt; --max-completion-length chooses less"
        )
    check_prompts_fit(tasks, limit=limit, completion=completion)
    self_test(
        function, tasks, timeout=config.rewards.reward_timeout, num_generations=config.evaluation.eval_generations
    )
    return Evaluator(
        name=name or (dataset if split is None else f"{dataset}:{split}"),
        tasks=tasks,
        notes=(*notes, *of_graders(function.values()), *unmet_needs(function, tasks)),
        functions=function,
        sampling=Sampling(
            max_completion_length=completion,
            temperature=options.eval_temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            stop=config.sampling.stop,
        ),
        generations=options.eval_generations,
        max_failure_rate=config.rewards.max_reward_failure_rate,
        reward_timeout=config.rewards.reward_timeout,
        seed=seed,
        conversations=conversations,
        format_functions={
            name: function
            for name, function in objects.functions.items()
            if isinstance(function, BuiltIn) and function.is_formed is not None
        },
    )


def check_prompts_fit(tasks: Sequence[Task], *, limit: int | None, completion: int) -> None:
    """Refuse tasks whose prompt and longest completion do not fit the positions that the model can tell apart."""
    check_completion_fits(completion, limit=limit)
    longest = max(tasks, key=lambda task: len(task.prompt_ids))
    prompt = len(longest.prompt_ids)
    if limit is not None and prompt >= limit:
        raise ConfigError(
            f"prompts must leave room for a completion within the model's {limit} positions, got {prompt} tokens in "
            f"row {longest.task_id}",
            remedies=[
                f"give --max-prompt-length {limit - completion} with --long-prompts drop",
                "take a model with more",
            ],
        )
    if limit is not None and prompt + completion > limit:
        raise ConfigError(
            f"--max-completion-length must leave room for the prompt within the model's {limit} positions, got "
            f"{completion} with {prompt} prompt tokens in row {longest.task_id}",
            remedies=[
                f"give at most {limit - prompt}",
                f"--max-prompt-length {limit - completion} with --long-prompts drop",
            ],
        )


def reward_evaluator(
    config: Config,
    name: str,
    tasks: tuple[Task, ...],
    functions: Mapping[str, RewardFunction],
    conversations: Conversations | None,
    completer: Completer | None,
) -> Evaluator:
    """Measure the training rewards on held-out tasks that a program gives, drawn as in training and not filtered."""
    kind = "group" if is_code(config.advantage.advantage) else config.advantage.advantage  # advantages have no use here
    advantage = replace(
        config.advantage, advantage=kind, filter_range=None, filter_func=None, max_refills=0, oversampling=1.0
    )
    return Evaluator(
        name=name,
        tasks=tasks,
        functions=functions,
        training=replace(config, advantage=advantage),
        sampling=sampling_of(config.sampling),
        generations=config.evaluation.eval_generations,
        max_failure_rate=config.rewards.max_reward_failure_rate,
        reward_timeout=config.rewards.reward_timeout,
        seed=config.loop.seed,
        conversations=conversations,
        completer=completer,
    )
