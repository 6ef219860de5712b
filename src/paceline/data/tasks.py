"""Rows to tokenised tasks, and what happens to prompts that are too long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.config.sections import DataConfig
from paceline.data.prompts import Tokenizer, render, token_ids
from paceline.data.rows import Row
from paceline.data.screening import screen
from paceline.errors import DataError
from paceline.types import RowCheck, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSet:
    """The tasks of one dataset, with what was done to get them."""

    tasks: tuple[Task, ...]
    """In the order of the rows; at least one."""
    dropped: int
    """Rows left out because their prompt was too long."""
    truncated: int
    """Tasks whose prompt lost its beginning."""
    lengths: tuple[int, ...]
    """Tokens of every usable row's prompt, before anything was dropped or cut."""
    skipped: tuple[str, ...] = ()
    """One sentence for each row that could not be used and was left out, as `on_bad_row` has it."""


def build_tasks(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    data: DataConfig,
    *,
    system: str | None,
    check: RowCheck | None = None,
) -> TaskSet:
    """Tokenised tasks from rows; `system` is what `system_prompt` gave, `check` what reward functions ask of a row.

    Raises:
        DataError: no rows, a row that cannot be used where `on_bad_row` is `stop`, two rows of one name, a prompt above
            `max_prompt_length` where `long_prompts` is `error`, or nothing left after skipping and dropping.
        ModelError: messages, and the tokenizer has no chat template.
    """
    _check_names(rows)
    screened = screen(rows, data, check)
    rendered = [
        render(asked.prompt, tokenizer, data, system=system, row_id=row.row_id)
        for row, asked in zip(screened.rows, screened.problems, strict=True)
    ]
    tasks = [
        Task(
            task_id=row.row_id,
            prompt=prompt.text,
            prompt_ids=ids,
            messages=prompt.messages,
            answer=asked.answer,
            columns=columns,
        )
        for row, asked, prompt, ids, columns in zip(
            screened.rows,
            screened.problems,
            rendered,
            token_ids(rendered, tokenizer),
            _all_columns(screened.rows),
            strict=True,
        )
    ]
    _check_not_empty(tasks)
    return replace(_within_limit(tasks, tokenizer, data), skipped=screened.skipped)


def _check_names(rows: Sequence[Row]) -> None:
    if not rows:
        raise DataError("--dataset holds no rows; give one with at least one row")
    seen: set[str] = set()
    for row in rows:
        if row.row_id in seen:
            raise DataError(f"row {row.row_id}: two rows have this name; give each row its own row_id")
        seen.add(row.row_id)


def _all_columns(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """Each row with every column of the dataset, None where it lacks one.

    Reward functions ask for columns by name, also in a batch where no row has one of them.
    """
    names = dict.fromkeys(name for row in rows for name in row.columns)
    return [
        row.columns if len(row.columns) == len(names) else {name: row.columns.get(name) for name in names}
        for row in rows
    ]


def _check_not_empty(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if not task.prompt_ids:
            raise DataError(f"row {task.task_id}: its prompt has no tokens; mend or remove the row")


def _within_limit(tasks: Sequence[Task], tokenizer: Tokenizer, data: DataConfig) -> TaskSet:
    limit = data.max_prompt_length
    lengths = tuple(len(task.prompt_ids) for task in tasks)
    num_long = sum(length > limit for length in lengths)
    if num_long and data.long_prompts == "error":
        raise DataError(_too_long(tasks, lengths, limit))
    if data.long_prompts == "truncate_left":
        cut = tuple(_cut(task, tokenizer, limit) for task in tasks)
        return TaskSet(tasks=cut, dropped=0, truncated=num_long, lengths=lengths)
    kept = tuple(task for task in tasks if len(task.prompt_ids) <= limit)
    if not kept:
        raise DataError(
            f"--long-prompts drop leaves no row: all {len(tasks)} prompts are above --max-prompt-length {limit}; "
            f"raise it (the shortest prompt has {min(lengths)} tokens)"
        )
    return TaskSet(tasks=kept, dropped=num_long, truncated=0, lengths=lengths)


def _too_long(tasks: Sequence[Task], lengths: Sequence[int], limit: int) -> str:
    first = next(place for place, length in enumerate(lengths) if length > limit)
    num_long = sum(length > limit for length in lengths)
    return (
        f"row {tasks[first].task_id}: its prompt has {lengths[first]} tokens, above --max-prompt-length {limit} "
        f"({num_long} of {len(lengths)} rows are); raise the limit to {max(lengths)}, or set --long-prompts to drop or "
        "truncate_left"
    )


def _cut(task: Task, tokenizer: Tokenizer, limit: int) -> Task:
    """The last `limit` tokens: the end of the question and the template's opening of the answer stay."""
    if len(task.prompt_ids) <= limit:
        return task
    ids = task.prompt_ids[-limit:]
    return replace(task, prompt=tokenizer.decode(list(ids)), prompt_ids=ids)
