"""Prompt and answer of a row, recognised by its columns.

| columns | prompt | answer |
|---|---|---|
| `reasoning_gym`, `question` | question | `answer`, as it is |
| `prompt` (TRL) | raw text, or messages | `answer`, `solution`, `ground_truth`, or `reward_model`'s `ground_truth` |
| `problem` (NuminaMath, MATH) | problem | last boxed expression of `solution`, else as for `prompt` without it |
| `problem_statement`, `verification_info` (open-r1) | problem_statement | as for `prompt` |
| `messages` (ColossalChat) | one message or a list of them | `gt_answer`, or as for `prompt` |
| `question`, `input_output` (APPS, TACO) | question, then `starter_code` if there is some | as for `prompt` |
| `question` (GSM8K and plain) | question | `answer`: after `####`, or all of it |

The first line whose columns are all there holds. `prompt_column` and `answer_column` override it.

Images of a row (`image`, `images`, parts of messages) are read where the model sees (`row_images.py`), else refused.

A row with test cases needs no answer: its `solution` is a program, which no answer is compared with. Test cases are
`test_cases`, `verification_info`, `input_output`, or a `reward_model` with tests as its `ground_truth`."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from paceline.chat.messages import (
    CALL_KEYS,
    ROLES,
    MessageError,
    calls_in,
    content_parts,
    content_text,
    has_messages,
    is_empty,
    joined_parts,
    plain_value,
    unpacked,
    written_value,
)
from paceline.config.sections import DataConfig
from paceline.data.answers import boxed_answer, closing_hashes
from paceline.data.row_images import IMAGE_COLUMNS, ImageInput, refuse_other_media, with_pictures
from paceline.data.rows import Row
from paceline.errors import DataError
from paceline.types import Message, RowCheck

ANSWER_COLUMNS = ("gt_answer", "answer", "solution", "ground_truth")
WRITTEN_FOR_THE_MODEL = ("system", "developer", "user")
"""Roles whose content is written in words; an assistant may quote messages, and a tool answer by anything."""
_LIST_OF_ONE = re.compile(r"""\s*\[\s*(["']).*\1\s*\]\s*""", re.DOTALL)
TRUTH = "reward_model.ground_truth"
CASES_COLUMNS = ("test_cases", "verification_info", "input_output", "reward_model")


def with_prompt(row: Row, data: DataConfig, images: ImageInput | None = None) -> Row:
    """Return a row with its prompt and gold answer, by its columns or by the columns that the options name.

    `images` reads its images; None: the model reads text alone.

    Raises:
        DataError: no known format, a named column that is missing, an image where none can be read, or a prompt, an
            answer or an image that cannot be used.
    """
    refuse_other_media(row)
    filled = [column for column in IMAGE_COLUMNS if not is_empty(row.columns.get(column))]
    if filled and images is None:
        raise DataError(
            f"row {row.row_id}: has a column {filled[0]!r}; models of text are trained here, remove the column"
        )
    known = next((known for known in FORMATS if known.columns <= row.columns.keys()), None)
    column = data.prompt_column or (None if known is None else known.prompt)
    if column is None:
        seen = ", ".join(row.columns) or "(none)"
        raise DataError(f"row {row.row_id}: no known format has the columns {seen}; name one with --prompt-column")
    try:
        value = joined_parts(unpacked(_cell(row, column, "--prompt-column")))
    except MessageError as error:
        raise DataError(f"row {row.row_id}: column {column!r} {error.rule}") from error
    if isinstance(value, str):
        text = _text(value, row.row_id, column)
        if _LIST_OF_ONE.fullmatch(text) and _is_list_of_one(text):
            raise DataError(
                f"row {row.row_id}: column {column!r} holds a list of one text as text; store the text itself"
            )
        if known is not None and known.after is not None and data.prompt_column is None:
            rest = row.columns.get(known.after)  # the head of a function that is to be completed
            text = f"{text.rstrip()}\n\n{rest.rstrip()}" if isinstance(rest, str) and rest.strip() else text
        # The field's convention: text in a column `prompt` is for the model as it stands, a question is to be asked.
        prompt: str | list[Message] = text if column == "prompt" else [{"role": "user", "content": text}]
    else:
        prompt = _messages(value, row, column, sees=images is not None)
    source = column
    if (column := data.answer_column) is not None:
        answer = gold_answer(_cell(row, column, "--answer-column"), row_id=row.row_id, column=column)
    else:
        answer = (_first_answer if known is None else known.answer)(row)
    row = replace(row, prompt=prompt, answer=answer)
    return row if images is None else with_pictures(row, source, images)


def gold_answer(value: object, *, row_id: str, column: str) -> str | None:
    """Return the final answer that a cell states; None for an empty cell.

    A number becomes its text. Of a text whose last line is `#### 72` (GSM8K) it is the text after the last `####`.
    Otherwise it is what the last complete \\boxed{...} says (`boxed_answer`), if any, or the whole text. Outer space is
    stripped, nothing else is changed: `1,000` stays `1,000`.

    Raises:
        DataError: the cell is neither text nor a finite number.
    """
    value = plain_value(value)
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise DataError(
            f"row {row_id}: column {column!r} holds {value}, but an answer must be text or a finite number; "
            "leave the cell empty (null) where there is none"
        )
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int | float):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"row {row_id}: column {column!r} holds a {type(value).__name__}, but an answer must be text or a number",
            remedies=["name the right column with --answer-column"],
        )
    text = value or ""
    return (closing_hashes(text) or boxed_answer(text) or text.strip()) or None


def _cell(row: Row, column: str, option: str) -> object:
    if column not in row.columns:
        seen = ", ".join(row.columns) or "(none)"
        raise DataError(f"row {row.row_id}: has no column {column!r}; its columns: {seen}; set {option}")
    return row.columns[column]


def _text(value: object, row_id: str, label: str) -> str:
    """Return the text, refusing empty text and half surrogate pairs, which no tokenizer takes."""
    if not isinstance(value, str) or not value.strip():
        shown = repr(value) if isinstance(value, str | None) else type(value).__name__
        raise DataError(f"row {row_id}: {label} must be text that is not empty, got {shown}; mend or remove the row")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"row {row_id}: {label} holds half a surrogate pair, which is no character; mend the row")
    return value


def _is_list_of_one(text: str) -> bool:
    """Return whether this is a list with one text, as pandas writes a column of lists into CSV."""
    try:
        value = written_value(text)
    except ValueError:
        return False
    return isinstance(value, list) and len(value) == 1


def _messages(value: object, row: Row, column: str, *, sees: bool) -> list[Message]:
    """Return messages in one form; not `sees`, an image among their parts is refused."""
    row_id = row.row_id
    listed = [value] if isinstance(value, Mapping) else value
    if not isinstance(listed, list | tuple) or not listed:
        shown = "an empty list" if isinstance(listed, list | tuple) else type(value).__name__ if value else repr(value)
        raise DataError(
            f"row {row_id}: the prompt in column {column!r} must be text or messages, got {shown}",
            remedies=["mend the row", "name another column with --prompt-column"],
        )
    messages = [_message(entry, row, f"message {number}", sees=sees) for number, entry in enumerate(listed, start=1)]
    if messages[-1]["role"] not in ("user", "tool"):
        raise DataError(
            f"row {row_id}: the prompt in column {column!r} ends with a message of role {messages[-1]['role']!r}, "
            "but the model answers the user's; remove what follows the user's last message"
        )
    return messages


def _message(entry: object, row: Row, label: str, *, sees: bool) -> Message:
    row_id = row.row_id
    try:
        entry = unpacked(entry)
        if not isinstance(entry, Mapping) or not {"role", "content"} <= entry.keys():
            raise DataError(f"row {row_id}: {label} must be an object with role and content; mend the row")
        # `function` is the role of a result in OpenAI's first interface, whose calls are `function_call`.
        role = "tool" if entry["role"] == "function" else entry["role"]
        if role not in ROLES:
            raise DataError(f"row {row_id}: {label} has the role {role!r}; the roles are {', '.join(ROLES)}")
        # Tables fill missing keys with None, which templates would take for a value.
        fields = {key: value for key, value in entry.items() if value is not None and key not in CALL_KEYS}
        if calls := calls_in(entry):
            fields["tool_calls"] = calls
        value = plain_value(entry["content"])
        if role in WRITTEN_FOR_THE_MODEL and has_messages(unpacked(value)):
            raise MessageError("content", "holds messages as text; put them into the list of messages themselves")
        if role != "tool":
            value = joined_parts(value)
        content = (
            content_parts(value, may_be_none=True) if sees and role == "user" else content_text(value, may_be_none=True)
        )
    except MessageError as error:
        raise DataError(f"row {row_id}: {label}'s {error}") from error
    # An assistant message that calls a tool may say nothing.
    if isinstance(content, str) and not calls and not (row.may_be_empty and content == ""):
        content = _text(None if value is None else content, row_id, f"{label}'s content")
    return {**fields, "role": role, "content": content}


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _first_answer(row: Row) -> str | None:
    has_cases = cases_column(row.columns) is not None
    for column in ANSWER_COLUMNS:
        value = row.columns.get(column)
        if not _is_blank(value) and not (column == "solution" and has_cases):
            return gold_answer(value, row_id=row.row_id, column=column)
    return None if has_cases else gold_answer(truth_of(row.columns), row_id=row.row_id, column=TRUTH)


def truth_of(columns: Mapping[str, object]) -> object:
    """Return the `ground_truth` of verl's `reward_model`, which may be stored as text; None without one."""
    value = plain_value(columns.get("reward_model"))
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = written_value(value)
        except ValueError:
            return None
    return plain_value(value.get("ground_truth")) if isinstance(value, Mapping) else None


def cases_column(columns: Mapping[str, object]) -> str | None:
    """Return the first column of `CASES_COLUMNS` that holds test cases, usable or not; None without any."""
    return next((column for column, _ in cases_in(columns)), None)


def cases_in(columns: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the columns of `CASES_COLUMNS` that hold test cases, with their values; where all are empty, the empty
    ones."""
    candidates = _cases(columns)
    return [(column, value) for column, value in candidates if holds_tests(value)] or candidates


def _cases(columns: Mapping[str, object]) -> list[tuple[str, object]]:
    """Columns that mean to hold tests, empty or not, with their values."""
    filled = [(column, columns[column]) for column in CASES_COLUMNS[:-1] if columns.get(column) is not None]
    truth = truth_of(columns)
    if isinstance(truth, str):
        # An answer may start with a brace too, such as the set {1, 2}; the quoted key is in none.
        has_tests = truth.lstrip().startswith("{") and '"inputs"' in truth
    elif isinstance(truth, list | tuple):
        has_tests = any(isinstance(case, Mapping) for case in truth)  # a list of texts is one of answers
    else:
        has_tests = isinstance(truth, Mapping)
    return [*filled, ("reward_model", truth)] if has_tests else filled


def holds_tests(value: object) -> bool:
    """Return whether a value has anything of test cases in it; tables fill what other rows have with nothing.

    >>> [holds_tests(value) for value in (None, "[]", {"language": "python", "test_cases": None}, {"inputs": ["1"]})]
    [False, False, False, True]
    """
    value = plain_value(value)
    if isinstance(value, Mapping):
        return any(holds_tests(entry) for key, entry in value.items() if key not in ("language", "fn_name"))
    if isinstance(value, str):
        return value.strip() not in ("", "[]", "{}", "null")
    return not (value is None or value != value or value in ([], ()))


def _boxed_answer(row: Row) -> str | None:
    solution = row.columns.get("solution")
    boxed = boxed_answer(solution) if isinstance(solution, str) else None
    # A solution without a box is a derivation, not an answer.
    rest = {name: value for name, value in row.columns.items() if name != "solution"}
    return boxed or _first_answer(Row(row_id=row.row_id, columns=rest))


def _exact_answer(row: Row) -> str | None:
    answer = row.columns.get("answer")
    return answer if isinstance(answer, str) else gold_answer(answer, row_id=row.row_id, column="answer")


@dataclass(frozen=True, slots=True)
class _Format:
    columns: frozenset[str]
    prompt: str
    answer: Callable[[Row], str | None]
    after: str | None = None
    """Column whose text, if any, follows the prompt's."""


FORMATS = (
    # Before `question`: a drawn grid may hold `####`, which is no GSM8K mark there.
    _Format(frozenset({"reasoning_gym", "question"}), "question", _exact_answer),
    _Format(frozenset({"prompt"}), "prompt", _first_answer),
    # Before `messages`: NuminaMath has both, and its messages hold the solution.
    _Format(frozenset({"problem"}), "problem", _boxed_answer),
    _Format(frozenset({"problem_statement", "verification_info"}), "problem_statement", _first_answer),
    _Format(frozenset({"messages"}), "messages", _first_answer),
    _Format(frozenset({"question", "input_output"}), "question", _first_answer, after="starter_code"),
    _Format(frozenset({"question"}), "question", _first_answer),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """The usable rows of a dataset."""

    rows: tuple[Row, ...]
    """Rows with their prompts, in their order; at least one."""
    skipped: tuple[str, ...]
    """A sentence for each row that was left out; empty if `on_bad_row` is `stop`."""


def screen(rows: Sequence[Row], data: DataConfig, check: RowCheck | None, images: ImageInput | None = None) -> Screened:
    """Read prompt and answer of every row, and its images with `images`, and check it with `check`.

    Raises:
        DataError: a row cannot be used and `on_bad_row` is `stop`, or none can.
    """
    kept, skipped = list[Row](), list[str]()
    for row in rows:
        try:
            kept.append(usable(row, data, check, images))
        except DataError as error:
            if data.on_bad_row == "stop":
                raise
            skipped.append(str(error))
    if not kept:
        raise DataError(
            f"--on-bad-row skip leaves no row: none of the {len(rows)} can be used; correct them; the first: "
            f"{skipped[0]}"
        )
    return Screened(rows=tuple(kept), skipped=tuple(skipped))


def usable(row: Row, data: DataConfig, check: RowCheck | None, images: ImageInput | None = None) -> Row:
    """Return a row with its prompt, or raise the DataError for which it cannot be used."""
    if row.unreadable is not None:
        raise DataError(row.unreadable)
    row = with_prompt(row, data, images)
    if check is not None:
        check(row.reward_columns, row.row_id)
    return row
