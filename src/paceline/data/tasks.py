"""Tokenised tasks from rows, and the treatment of prompts that are too long."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from paceline.chat.escaping import ChatTokenizer, PlainText
from paceline.chat.messages import is_empty, row_tools, shown, texts_in
from paceline.chat.templates import left_out, shape_of, shows_all, tool_format
from paceline.chat.tools import ToolFormat
from paceline.config.sections import DataConfig
from paceline.data.formats import screen, usable
from paceline.data.pictures import Placeholders
from paceline.data.prompts import apply_template, prompt_messages, refuse_long_images, token_ids, truncate
from paceline.data.row_images import ImageInput, expanded, media_of, refuse_reserved
from paceline.data.rows import SAMPLE, WHOLE, OnDemand, Row, digest_of, spread
from paceline.errors import DataError
from paceline.types import Media, Message, RowCheck, Task

SHORTEN = "set --long-prompts to drop or truncate_left"


ToolsOf = Callable[[Mapping[str, object]], Sequence[Mapping[str, object]]]
"""Function from a row's columns to the JSON schemas of its tools; raises DataError for an unknown name."""


class LeftOut(DataError):
    """Row of a large dataset that the options leave out; discovered when it is taken, and skipped."""


@dataclass(frozen=True, kw_only=True)
class TaskBuilder:
    """Builder of tasks from rows: tokenizer, options, checks, and caches."""

    tokenizer: ChatTokenizer
    data: DataConfig
    system: str | None
    """Result of `system_prompt`."""
    check: RowCheck | None
    """Check of a row by reward functions."""
    columns: tuple[str, ...]
    """Columns of all rows: reward functions ask for columns by name, even if no row of a batch has one."""
    tools_of: ToolsOf
    """Tools of a row's conversation, which its prompt shows."""
    images: ImageInput | None = None
    """What images are read with; None: the model reads text alone."""
    rule: Placeholders | None = None
    """How prompts hold images; None: the rows that were looked at have none."""
    formats: dict[str, ToolFormat | None] = field(default_factory=dict)
    """Formats of tools in prompts, by the schemas as text; the chat template is rendered once for each set."""
    hidden: dict[object, list[tuple[int, str]]] = field(default_factory=dict)
    """Message keys that the chat template leaves out, by the shape of the messages; rendered once for each shape."""
    in_parts: dict[object, bool] = field(default_factory=dict)
    """Forms of messages, by their shape."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    """Sentences about rows for the user, each with the names of its rows."""

    def tasks(self, rows: Sequence[Row]) -> list[Task]:
        """Render and tokenise the prompts of usable rows, however long they are."""
        prompts = [self._rendered(row) for row in rows]
        rendered = [(text, messages) for text, _, messages in prompts]
        tasks = []
        for row, (_, prompt, messages), ids in zip(rows, prompts, token_ids(rendered, self.tokenizer), strict=True):
            if not ids:
                raise DataError(f"row {row.row_id}: its prompt has no tokens; mend or remove the row")
            if messages is not None:
                self._check_shown(row, messages)
            media: tuple[Media, ...] = ()
            if self.images is not None and self.rule is not None:
                media = media_of(ids, row.pictures, self.rule, row.row_id)
                if not self.images.pictures.first_frames.isdisjoint(picture.sha256 for picture in row.pictures):
                    self._note("an image has several frames, of which the model sees the first", row)
            columns = row.reward_columns
            if row.passed is None and len(columns) < len(self.columns):
                columns = {name: columns.get(name) for name in dict.fromkeys((*self.columns, *columns))}
            task = Task(
                task_id=row.row_id,
                prompt=prompt,
                prompt_ids=ids,
                media=media,
                messages=messages,
                answer=row.answer,
                columns=columns,
            )
            tasks.append(task)
        return tasks

    def _rendered(self, row: Row) -> tuple[str, str, tuple[Message, ...] | None]:
        """Return the prompt of a row with images expanded, the same as it is shown, and the messages in it."""
        tools, rule = self._shown(row.columns, row.row_id), self.rule
        if row.pictures and rule is None:
            raise DataError(
                f"row {row.row_id}: has an image, and the model reads text alone, as none of the rows that were "
                "looked at before the first step has one; take a model that reads images, and begin with such a row"
            )
        messages = prompt_messages(row, self.data, system=self.system, has_tools=tools is not None)
        if messages is None:
            text = str(row.prompt)
        else:
            in_parts = self._takes_parts(messages, tools)
            text = apply_template(self.tokenizer, messages, self.data.switches, row.row_id, tools, in_parts=in_parts)
        if rule is None:
            return text, text, messages
        refuse_reserved(texts_in(row.prompt if messages is None else messages), rule, row.row_id)
        return *expanded(text, row.pictures, rule, row.row_id), messages

    def _takes_parts(self, messages: Sequence[Message], tools: ToolFormat | None) -> bool:
        """Return True for messages that are rendered with all of their texts in parts.

        Those with images are, unless the chat template shows texts otherwise; those without are, if it has to be so.
        """
        if self.images is None or self.images.placeholders is None:
            return False
        shape = shape_of(messages), repr(tools)
        if shape not in self.in_parts:
            has_images = any(isinstance(message["content"], list) for message in messages)
            forms = (True, False) if has_images else (False, True)
            fitting = (form for form in forms if shows_all(self.tokenizer, messages, self.data.switches, tools, form))
            self.in_parts[shape] = next(fitting, forms[0])
        return self.in_parts[shape]

    def _check_shown(self, row: Row, messages: Sequence[Message]) -> None:
        """Refuse messages that the chat template leaves out, and note other differences from the row."""
        tools = self._shown(row.columns, row.row_id)
        shape = shape_of(messages), repr(tools)
        if shape not in self.hidden:
            in_parts = self._takes_parts(messages, tools)
            self.hidden[shape] = left_out(self.tokenizer, messages, self.data.switches, tools, in_parts=in_parts)
        for index, key in self.hidden[shape]:
            role = messages[index]["role"]
            if key == "tool_calls" or (key == "content" and "tool_calls" not in messages[index]):
                what = f"its {role} message" if key == "content" else "the tool calls of a message"
                raise DataError(
                    f"row {row.row_id}: the model's chat template does not show {what} "
                    f"({shown(messages[index][key])}), so the model would never read it",
                    remedies=["write it into a message that is shown", "leave it out (--system-prompt '')"],
                )
            self._note(f"the chat template does not show the key {key!r} of messages of the role {role!r}", row)
        has_own = isinstance(row.prompt, list) and row.prompt[0]["role"] in ("system", "developer")
        if has_own and self.data.system_prompt is not None:
            self._note("--system-prompt takes the place of a system message of the row's own", row)
        texts = [text for message in messages for text in texts_in(message["content"])]
        if control_tokens := [token for token in self.special if any(token in text for text in texts)]:
            self._note(
                f"a message holds control tokens, which the model reads as such ({', '.join(control_tokens)})", row
            )
        if tools is None and not is_empty(row.columns.get("tools")):
            self._note("prompts do not show the column 'tools', which holds no JSON schemas of tools", row)

    def _note(self, sentence: str, row: Row) -> None:
        self.notes.setdefault(sentence, []).append(row.row_id)

    @cached_property
    def special(self) -> tuple[str, ...]:
        """Texts that the tokenizer takes for control tokens."""
        added = self.tokenizer.added_tokens_decoder.values()
        return tuple(str(token.content) for token in added if token.special and str(token.content).strip())

    def _shown(self, columns: Mapping[str, object], row_id: str) -> ToolFormat | None:
        try:
            tools = self.tools_of(columns)
        except DataError as error:
            raise DataError(f"row {row_id}: {error.message}", remedies=error.remedies) from error
        if tools and (known := repr(tools)) not in self.formats:
            plain = PlainText(self.tokenizer)  # a stranger's schemas may hold control tokens
            escaped = [plain.read_message(tool)[0] for tool in tools]
            self.formats[known] = tool_format(self.tokenizer, escaped, self.data.switches)
        return self.formats[repr(tools)] if tools else None

    def build(self, row: Row) -> Task:
        """Make the task of one row, within the limit; raise as `LargeTasks.at`."""
        try:
            row = usable(row, self.data, self.check, self.images)
        except DataError as error:
            raise self.refusal(error) from error
        (task,), limit = self.tasks([row]), self.data.max_prompt_length
        if len(task.prompt_ids) <= limit:
            return task
        if self.data.long_prompts == "truncate_left":
            return self.truncated(task)
        kind = LeftOut if self.data.long_prompts == "drop" else DataError
        if kind is DataError:
            refuse_long_images(task, limit)
        raise kind(
            f"row {row.row_id}: its prompt has {len(task.prompt_ids)} tokens, above --max-prompt-length {limit}",
            remedies=["raise the limit", SHORTEN],
        )

    def truncated(self, task: Task) -> Task:
        """Cut a prompt that is too long to the limit; raise as `LargeTasks.at` if it cannot be cut."""
        try:
            return truncate(task, self.tokenizer, self.data, self._shown(task.columns, task.task_id))
        except DataError as error:
            raise self.refusal(error) from error

    def refusal(self, error: DataError) -> DataError:
        """Return the error for an unusable row."""
        return error if self.data.on_bad_row == "stop" else LeftOut(str(error))


class LargeTasks(OnDemand[Task]):
    """Tasks of a dataset that is not read whole: each is made when it is taken, and some are left out then."""

    def __init__(self, rows: Sequence[Row], builder: TaskBuilder, looked_at: Sequence[Row] = ()) -> None:
        """`looked_at`: a sample of the rows, whose images were read."""
        self._rows, self._builder = rows, builder
        self._images = [picture.sha256 for row in looked_at for picture in row.pictures]
        self._checks = list[Callable[[Sequence[Task]], None]]()
        self.last_left_out: str | None = None
        """Reason why the last row was left out, in a sentence."""

    def __len__(self) -> int:
        """Return the number of rows, including those that will be left out."""
        return len(self._rows)

    def at(self, index: int) -> Task:
        """Make one task.

        Raises:
            LeftOut: the options leave this row out.
            DataError: they have it stop the run.
        """
        try:
            task = self._builder.build(self._rows[index])
        except LeftOut as error:
            self.last_left_out = str(error)
            raise
        for check in self._checks:
            check([task])
        return task

    @property
    def limit(self) -> int:
        """Largest number of tokens of a prompt."""
        return self._builder.data.max_prompt_length

    def add_check(self, check: Callable[[Sequence[Task]], None]) -> None:
        """Add a check of every task taken from now on."""
        self._checks.append(check)

    def digest(self) -> str:
        """Hash the rows, and the images of those that were looked at, to recognise them later."""
        digest = digest_of(self._rows)
        return hashlib.sha256("".join([digest, *self._images]).encode()).hexdigest() if self._images else digest


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSet:
    """The tasks of one dataset, with counts of what was left out or cut."""

    tasks: Sequence[Task]
    """Tasks in the order of the rows, at least one; above `WHOLE` rows `LargeTasks`."""
    looked_at: tuple[Task, ...]
    """Tasks that were made before the first step: all, or a sample of large tasks. The counts below are over these."""
    dropped: int
    """Rows left out because their prompt was too long."""
    truncated: int
    """Tasks whose prompt was cut."""
    lengths: tuple[int, ...]
    """Tokens of every usable row's prompt, before any was dropped or cut."""
    skipped: tuple[str, ...] = ()
    """A sentence for each unusable row that was left out, by `on_bad_row`."""
    notes: tuple[str, ...] = ()
    """Sentences on parts of rows that the model does not read as written."""

    @property
    def is_large(self) -> bool:
        """True if the tasks are made when they are taken."""
        return isinstance(self.tasks, LargeTasks)

    @property
    def last_left_out(self) -> str | None:
        """Reason why the last row taken from a large dataset was left out, in a sentence."""
        return self.tasks.last_left_out if isinstance(self.tasks, LargeTasks) else None

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt. For large tasks, which need it to plan memory: twice the longest seen, within
        the limit."""
        longest = max(len(task.prompt_ids) for task in self.looked_at)
        return min(2 * longest, self.tasks.limit) if isinstance(self.tasks, LargeTasks) else longest

    def add_check(self, check: Callable[[Sequence[Task]], None]) -> None:
        """Check the tasks now, or those of a large dataset as they are taken."""
        check(self.looked_at)
        if isinstance(self.tasks, LargeTasks):
            self.tasks.add_check(check)


def build_tasks(  # noqa: PLR0913 - rows and all that makes tasks of them, which three callers name
    rows: Sequence[Row],
    tokenizer: ChatTokenizer,
    data: DataConfig,
    *,
    system: str | None,
    check: RowCheck | None = None,
    whole: bool = False,
    tools_of: ToolsOf = row_tools,
    images: ImageInput | None = None,
) -> TaskSet:
    """Build tokenised tasks from rows; `system` is the result of `system_prompt`, `check` that of reward functions,
    `tools_of` gives the JSON schemas that a row's prompt shows, and `images` reads their images.

    Of more than `WHOLE` rows, unless all are needed at once (`whole`), a sample is made to look at them.

    Raises:
        DataError: no rows, a row that cannot be used where `on_bad_row` is `stop`, two rows of one name, a prompt above
            `max_prompt_length` where `long_prompts` is `error`, or nothing left after skipping and dropping.
        ModelError: messages, and the tokenizer has no chat template.
    """
    is_large = len(rows) > WHOLE and not whole
    seen = spread(rows, SAMPLE) if is_large else rows
    _check_names(seen)
    screened = screen(seen, data, check, images)
    names = tuple(dict.fromkeys(name for row in screened.rows for name in row.columns))
    has_images = any(row.pictures for row in screened.rows)
    builder = TaskBuilder(
        tokenizer=tokenizer,
        data=data,
        system=system,
        check=check,
        columns=names,
        tools_of=tools_of,
        images=images,
        rule=images.placeholders() if has_images and images is not None and images.placeholders is not None else None,
    )
    tasks = builder.tasks(screened.rows)
    lengths = tuple(len(task.prompt_ids) for task in tasks)
    num_long = sum(length > data.max_prompt_length for length in lengths)
    if num_long and data.long_prompts == "error":
        first = next(task for task in tasks if len(task.prompt_ids) > data.max_prompt_length)
        refuse_long_images(first, data.max_prompt_length)
        raise DataError(
            f"row {first.task_id}: its prompt has {len(first.prompt_ids)} tokens, above --max-prompt-length "
            f"{data.max_prompt_length} ({num_long} of {len(lengths)} rows are)",
            remedies=[f"raise the limit to {max(lengths)}", SHORTEN],
        )
    kept, uncut = _within_limit(tasks, builder)
    if not kept and uncut:
        raise DataError(
            f"--on-bad-row skip leaves no row: none of the {len(lengths)} can be cut; the first: {uncut[0]}"
        )
    if not kept:
        raise DataError(
            f"--long-prompts drop leaves no row: all {len(lengths)} prompts are above --max-prompt-length "
            f"{data.max_prompt_length}; raise it (the shortest prompt has {min(lengths)} tokens)"
        )
    return TaskSet(
        tasks=LargeTasks(rows, builder, screened.rows) if is_large else kept,
        looked_at=kept,
        dropped=num_long if data.long_prompts == "drop" else 0,
        truncated=num_long - len(uncut) if data.long_prompts == "truncate_left" else 0,
        lengths=lengths,
        skipped=(*screened.skipped, *uncut),
        notes=tuple(
            f"{sentence}: {len(names)} of {len(tasks)} rows, the first: {names[0]}"
            for sentence, names in builder.notes.items()
        ),
    )


def _check_names(rows: Sequence[Row]) -> None:
    if not rows:
        raise DataError("--dataset holds no rows; give one with at least one row")
    seen: set[str] = set()
    for row in rows:
        if row.row_id in seen:
            raise DataError(f"row {row.row_id}: two rows have this name; give each row its own row_id")
        seen.add(row.row_id)


def _within_limit(tasks: Iterable[Task], builder: TaskBuilder) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """Return tasks that are short enough or were cut, and why others could not be cut."""
    kept, uncut, data = list[Task](), list[str](), builder.data
    for task in tasks:
        try:
            if len(task.prompt_ids) <= data.max_prompt_length:
                kept.append(task)
            elif data.long_prompts == "truncate_left":
                kept.append(builder.truncated(task))
        except LeftOut as error:
            uncut.append(str(error))
    return tuple(kept), tuple(uncut)
