"""Rows to tokenised tasks, and what happens to prompts that are too long."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.config.sections import DataConfig
from paceline.data.cutting import cut
from paceline.data.formats import Problem
from paceline.data.prompts import Rendered, Tokenizer, render, token_ids
from paceline.data.rows import SAMPLE, WHOLE, OnDemand, Row, RowsOnDemand, rows_digest, spread
from paceline.data.screening import screen, usable
from paceline.errors import DataError
from paceline.types import RowCheck, Task


class LeftOut(DataError):
    """A row of a large dataset that the options leave out: found when it is taken, and passed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """All that makes a task of a row but the row."""

    tokenizer: Tokenizer
    data: DataConfig
    system: str | None
    """What `system_prompt` gave."""
    check: RowCheck | None
    """What reward functions ask of a row."""
    columns: tuple[str, ...]
    """Of all rows: reward functions ask for columns by name, also in a batch where no row has one of them."""

    def task(self, row: Row, asked: Problem, prompt: Rendered, ids: tuple[int, ...]) -> Task:
        """A task of a row whose prompt has these tokens, whatever their number."""
        columns = row.given
        if row.passed is None and len(columns) < len(self.columns):
            columns = {name: columns.get(name) for name in dict.fromkeys((*self.columns, *columns))}
        return Task(
            task_id=row.row_id,
            prompt=prompt.text,
            prompt_ids=ids,
            messages=prompt.messages,
            answer=asked.answer,
            columns=columns,
        )

    def one(self, row: Row) -> Task:
        """The task of one row, within the limit.

        Raises:
            LeftOut: the options leave such a row out.
            DataError: they have it stop the run.
        """
        try:
            asked = usable(row, self.data, self.check)
        except DataError as error:
            raise self.refusal(error) from error
        prompt = self.rendered(row, asked)
        (ids,) = token_ids([prompt], self.tokenizer)
        task, limit = self.task(row, asked, prompt, ids), self.data.max_prompt_length
        check_not_empty(task)
        if len(ids) <= limit:
            return task
        if self.data.long_prompts == "truncate_left":
            return self.cut(task)
        kind = LeftOut if self.data.long_prompts == "drop" else DataError
        raise kind(
            f"row {row.row_id}: its prompt has {len(ids)} tokens, above --max-prompt-length {limit}; raise the limit, "
            "or set --long-prompts to drop or truncate_left"
        )

    def rendered(self, row: Row, asked: Problem) -> Rendered:
        """The prompt of a row in the model's words."""
        return render(asked.prompt, self.tokenizer, self.data, system=self.system, row_id=row.row_id)

    def cut(self, task: Task) -> Task:
        """A task whose prompt is too long, cut to the limit; raises as `one` does where it cannot be cut."""
        try:
            return cut(task, self.tokenizer, self.data)
        except DataError as error:
            raise self.refusal(error) from error

    def refusal(self, error: DataError) -> DataError:
        """What an unusable row raises."""
        return error if self.data.on_bad_row == "stop" else LeftOut(str(error))


class LargeTasks(OnDemand[Task]):
    """The tasks of a dataset that is not read whole: each is made when it is taken, and some are left out then."""

    def __init__(self, rows: Sequence[Row], making: Making) -> None:
        self._rows, self._making = rows, making
        self._checks = list[Callable[[Sequence[Task]], None]]()
        self.last_left_out: str | None = None
        """Why the last row was left out, in a sentence."""

    def __len__(self) -> int:
        """Rows, those among them that will be left out."""
        return len(self._rows)

    def at(self, place: int) -> Task:
        """Make one task.

        Raises:
            LeftOut: the options leave this row out.
            DataError: they have it stop the run.
        """
        try:
            task = self._making.one(self._rows[place])
        except LeftOut as error:
            self.last_left_out = str(error)
            raise
        for check in self._checks:
            check([task])
        return task

    @property
    def limit(self) -> int:
        """Tokens of a prompt, at most."""
        return self._making.data.max_prompt_length

    def hold_to(self, check: Callable[[Sequence[Task]], None]) -> None:
        """Have every task that is taken from now on looked at."""
        self._checks.append(check)

    def digest(self) -> str:
        """A hash by which the rows are known again."""
        return self._rows.digest() if isinstance(self._rows, RowsOnDemand) else rows_digest(self._rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSet:
    """The tasks of one dataset, with what was done to get them."""

    tasks: Sequence[Task]
    """In the order of the rows; at least one. Above `WHOLE` rows `LargeTasks`."""
    looked_at: tuple[Task, ...]
    """The tasks that were made before the first step: all, or of large tasks a sample. What follows is of them."""
    dropped: int
    """Rows left out because their prompt was too long."""
    truncated: int
    """Tasks whose prompt lost tokens."""
    lengths: tuple[int, ...]
    """Tokens of every usable row's prompt, before anything was dropped or cut."""
    skipped: tuple[str, ...] = ()
    """One sentence for each row that could not be used and was left out, as `on_bad_row` has it."""

    @property
    def is_large(self) -> bool:
        """Whether the tasks are made when they are taken."""
        return isinstance(self.tasks, LargeTasks)

    @property
    def last_left_out(self) -> str | None:
        """Why the last row that was taken from a large dataset and left out was, in a sentence."""
        return self.tasks.last_left_out if isinstance(self.tasks, LargeTasks) else None

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt; of large tasks, for a plan of memory, twice those of the longest that was seen,
        within the limit."""
        longest = max(len(task.prompt_ids) for task in self.looked_at)
        return min(2 * longest, self.tasks.limit) if isinstance(self.tasks, LargeTasks) else longest

    def hold_to(self, check: Callable[[Sequence[Task]], None]) -> None:
        """Look at the tasks, at those of a large dataset that were not made yet when they are taken."""
        check(self.looked_at)
        if isinstance(self.tasks, LargeTasks):
            self.tasks.hold_to(check)


def build_tasks(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    data: DataConfig,
    *,
    system: str | None,
    check: RowCheck | None = None,
    whole: bool = False,
) -> TaskSet:
    """Tokenised tasks from rows; `system` is what `system_prompt` gave, `check` what reward functions ask of a row.

    Of more than `WHOLE` rows, unless all are needed at once (`whole`), a sample is made to look at them.

    Raises:
        DataError: no rows, a row that cannot be used where `on_bad_row` is `stop`, two rows of one name, a prompt above
            `max_prompt_length` where `long_prompts` is `error`, or nothing left after skipping and dropping.
        ModelError: messages, and the tokenizer has no chat template.
    """
    is_large = len(rows) > WHOLE and not whole
    seen = spread(rows, SAMPLE) if is_large else rows
    _check_names(seen)
    screened = screen(seen, data, check)
    names = tuple(dict.fromkeys(name for row in screened.rows for name in row.columns))
    making = Making(tokenizer=tokenizer, data=data, system=system, check=check, columns=names)
    rendered = [making.rendered(*pair) for pair in zip(screened.rows, screened.problems, strict=True)]
    tasks = [
        making.task(*parts)
        for parts in zip(screened.rows, screened.problems, rendered, token_ids(rendered, tokenizer), strict=True)
    ]
    for task in tasks:
        check_not_empty(task)
    lengths = tuple(len(task.prompt_ids) for task in tasks)
    num_long = sum(length > data.max_prompt_length for length in lengths)
    if num_long and data.long_prompts == "error":
        raise DataError(_too_long(tasks, lengths, data.max_prompt_length))
    kept, uncut = _within_limit(tasks, making)
    if not kept:
        raise DataError(_none_left(lengths, uncut, data))
    return TaskSet(
        tasks=LargeTasks(rows, making) if is_large else kept,
        looked_at=kept,
        dropped=num_long if data.long_prompts == "drop" else 0,
        truncated=num_long - len(uncut) if data.long_prompts == "truncate_left" else 0,
        lengths=lengths,
        skipped=(*screened.skipped, *uncut),
    )


def _check_names(rows: Sequence[Row]) -> None:
    if not rows:
        raise DataError("--dataset holds no rows; give one with at least one row")
    seen: set[str] = set()
    for row in rows:
        if row.row_id in seen:
            raise DataError(f"row {row.row_id}: two rows have this name; give each row its own row_id")
        seen.add(row.row_id)


def check_not_empty(task: Task) -> None:
    """Refuse a task that there is nothing to complete of."""
    if not task.prompt_ids:
        raise DataError(f"row {task.task_id}: its prompt has no tokens; mend or remove the row")


def _within_limit(tasks: Iterable[Task], making: Making) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """Tasks that are short enough or were cut, and why others could not be cut."""
    kept, uncut, data = list[Task](), list[str](), making.data
    for task in tasks:
        try:
            if len(task.prompt_ids) <= data.max_prompt_length:
                kept.append(task)
            elif data.long_prompts == "truncate_left":
                kept.append(making.cut(task))
        except LeftOut as error:
            uncut.append(str(error))
    return tuple(kept), tuple(uncut)


def _too_long(tasks: Sequence[Task], lengths: Sequence[int], limit: int) -> str:
    first = next(place for place, length in enumerate(lengths) if length > limit)
    num_long = sum(length > limit for length in lengths)
    return (
        f"row {tasks[first].task_id}: its prompt has {lengths[first]} tokens, above --max-prompt-length {limit} "
        f"({num_long} of {len(lengths)} rows are); raise the limit to {max(lengths)}, or set --long-prompts to drop or "
        "truncate_left"
    )


def _none_left(lengths: Sequence[int], uncut: Sequence[str], data: DataConfig) -> str:
    if uncut:
        return f"--on-bad-row skip leaves no row: none of the {len(lengths)} can be cut; the first: {uncut[0]}"
    return (
        f"--long-prompts drop leaves no row: all {len(lengths)} prompts are above --max-prompt-length "
        f"{data.max_prompt_length}; raise it (the shortest prompt has {min(lengths)} tokens)"
    )
