"""Cut a prompt that is too long: its start token and system message stay, and the end of the question."""

from dataclasses import replace
from itertools import takewhile

from paceline.config.sections import DataConfig
from paceline.data.formats import Message
from paceline.data.prompts import Rendered, Tokenizer, apply_template, token_ids
from paceline.errors import DataError
from paceline.types import Task

MARK = "paceline-cuts-here-6b1f"
"""Text that no dataset has: it marks where a message's content lies in a template's output."""


def truncate(task: Task, tokenizer: Tokenizer, data: DataConfig) -> Task:
    """Return the task with `max_prompt_length` tokens, if it has more.

    Of plain text the start token and the end stay. Of messages everything stays up to the content of the first message
    after the system's. The end stays too: the last of the conversation, and the template's opening of the answer.

    Raises:
        DataError: the template does not show where that is, or the limit leaves no room between the two.
    """
    limit, ids = data.max_prompt_length, task.prompt_ids
    if task.messages is None:
        start, end = int(ids[0] == tokenizer.bos_token_id), 0
    else:
        start, end = _frame(task, tokenizer, data)
    if start + end >= limit:
        raise DataError(
            f"row {task.task_id}: its prompt has {len(ids)} tokens, and --max-prompt-length {limit} leaves no room for "
            f"its question next to the {start} before and {end} after it, which a cut keeps; "
            "raise the limit"
        )
    kept = (*ids[:start], *ids[len(ids) - (limit - start) :])
    return replace(task, prompt=tokenizer.decode(list(kept)), prompt_ids=kept, tokens_cut=len(ids) - limit)


def _frame(task: Task, tokenizer: Tokenizer, data: DataConfig) -> tuple[int, int]:
    """Return the number of tokens before the first content that may be cut, and behind the last."""
    messages: list[Message] = [dict(message) for message in task.messages or ()]
    system = [*takewhile(lambda message: message["role"] in ("system", "developer"), messages)]
    first, last = min(len(system), len(messages) - 1), len(messages) - 1
    before = _around(task, tokenizer, data, messages, first)[0]
    behind = _around(task, tokenizer, data, messages, last)[1]
    texts = [Rendered(text=text, add_special_tokens=False) for text in (before, behind)]
    start, end = token_ids(texts, tokenizer)
    whole = task.prompt_ids
    if not task.prompt.startswith(before) or whole[: len(start)] != start or not task.prompt.endswith(behind):
        raise _undecided(task)
    return len(start), len(end)


def _around(task: Task, tokenizer: Tokenizer, data: DataConfig, messages: list[Message], place: int) -> tuple[str, str]:
    """Return what the template writes before and behind the content of one message."""
    marked = [{**message, "content": MARK} if at == place else message for at, message in enumerate(messages)]
    before, *behind = apply_template(tokenizer, marked, data.enable_thinking, task.task_id).split(MARK)
    if len(behind) != 1:
        raise _undecided(task)
    return before, behind[0]


def _undecided(task: Task) -> DataError:
    return DataError(
        f"row {task.task_id}: its prompt has {len(task.prompt_ids)} tokens, and the model's chat template does not "
        "show where its system message ends, which a cut keeps; raise --max-prompt-length, or remove the row"
    )
