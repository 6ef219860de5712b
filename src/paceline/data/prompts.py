"""Prompts of rows: system message, chat template or raw text, the cut of one that is too long, and their lengths."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from paceline.base_directory import local_path
from paceline.chat.templates import MARK, Tokenizer, chat_text
from paceline.chat.tools import ToolFormat
from paceline.config.sections import DataConfig
from paceline.data.rows import Row
from paceline.errors import ConfigError, DataError, ModelError
from paceline.types import Message, Task

TEXT_FILES = (".txt", ".md", ".jinja")
BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 30
MAX_BINS = 8


def system_prompt(data: DataConfig, default: str | None) -> str | None:
    """Return the system message: that of `system_prompt`'s file, or `system_prompt` (empty: None), else `default`.

    Raises:
        ConfigError: `system_prompt` looks like the name of a file: a path must never be the prompt.
        DataError: the file cannot be read or is empty.
    """
    if (name := data.system_prompt_file) is not None:
        try:
            text = local_path(name).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"--system-prompt file:{name}: cannot be read as UTF-8 text ({error}); check the path"
            ) from error
        if not text:
            raise DataError(f"--system-prompt file:{name}: is empty; for no system message use --system-prompt ''")
        return text
    if (message := data.system_prompt) is None:
        return default
    has_space = any(character.isspace() for character in message)
    if os.path.isfile(message) or (message.lower().endswith(TEXT_FILES) and not has_space):
        raise ConfigError(
            f"--system-prompt must be the message itself, got the name of a file {message!r}; write file:{message}"
        )
    return message if message.strip() else None


def prompt_messages(
    row: Row, data: DataConfig, *, system: str | None, has_tools: bool = False
) -> tuple[Message, ...] | None:
    """Return the messages of a row's prompt as the chat template gets them; None: its prompt is raw text.

    A system message that the user chose replaces the row's own; a default one only fills the gap. Raw text stays as it
    is and takes neither a system message nor tools.

    Raises:
        DataError: raw text with tools or with a system message that the user chose.
    """
    prompt, row_id = row.prompt, row.row_id
    is_explicit = data.system_prompt is not None  # the user chose the system message, or none at all
    if not isinstance(prompt, str):
        has_own = prompt[0]["role"] in ("system", "developer")
        if has_own and not is_explicit:
            return tuple(prompt)
        rest = prompt[1:] if has_own else prompt
        return tuple(rest) if system is None else ({"role": "system", "content": system}, *rest)
    if has_tools:
        raise DataError(
            f"row {row_id}: its prompt is plain text, which shows the model no tools; make it a list of messages"
        )
    if system is not None and is_explicit:
        raise DataError(
            f"row {row_id}: its prompt is plain text, which takes no system message",
            remedies=[
                "write it into the prompt",
                "make the prompt a list of messages",
                "leave --system-prompt out",
            ],
        )
    return None


def token_ids(
    rendered: Sequence[tuple[str, tuple[Message, ...] | None]], tokenizer: Tokenizer
) -> list[tuple[int, ...]]:
    """Return the token ids of each rendered prompt, in order; fast tokenizers encode all of them on all cores.

    Each comes with its messages; raw text, which has none, gets the tokenizer's start token.
    """
    ids: dict[int, tuple[int, ...]] = {}
    # a text that holds its special tokens gets none: a second start token would go unnoticed
    bos = str(tokenizer.bos_token or "")
    is_bare = [messages is None and not (bos and text.startswith(bos)) for text, messages in rendered]
    for flag in (False, True):
        indices = [index for index, bare in enumerate(is_bare) if bare is flag]
        if indices:
            texts = [rendered[index][0] for index in indices]
            encoded = tokenizer(texts, add_special_tokens=flag, verbose=False)["input_ids"]
            ids.update(zip(indices, map(tuple, encoded), strict=True))
    return [ids[index] for index in range(len(rendered))]


def apply_template(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    row_id: str,
    tools: ToolFormat | None = None,
    *,
    in_parts: bool = False,
) -> str:
    """Render messages with the chat template, up to the start of the answer; `in_parts` as for `chat_text`.

    Raises:
        DataError: the template refuses them.
        ModelError: the tokenizer has no chat template.
    """
    if tokenizer.chat_template is None:
        raise ModelError(
            f"row {row_id}: needs a chat template and the model's tokenizer has none; use a model with one, or "
            "give the prompt as plain text in a column named `prompt`"
        )
    try:
        return chat_text(tokenizer, messages, switches, tools, in_parts=in_parts)
    except ModelError as error:
        raise DataError(
            f"row {row_id}: {error.message}",
            remedies=["change them", "use --system-prompt '' where it takes no system message"],
        ) from error


def truncate(task: Task, tokenizer: Tokenizer, data: DataConfig, tools: ToolFormat | None = None) -> Task:
    """Return the task with `max_prompt_length` tokens, if it has more.

    Of plain text the start token and the end stay. Of messages everything stays up to the content of the first message
    after the system's. The end stays too: the last of the conversation, and the template's opening of the answer. A
    prompt with images is not cut.

    Raises:
        DataError: the template does not show where that is, the limit leaves no room between the two, or the prompt
            has images.
    """
    limit, ids = data.max_prompt_length, task.prompt_ids
    refuse_long_images(task, limit)
    if task.messages is None:
        start, end = int(ids[0] == tokenizer.bos_token_id), 0
    else:
        start, end = _frame(task, tokenizer, data, tools)
    if start + end >= limit:
        raise DataError(
            f"row {task.task_id}: its prompt has {len(ids)} tokens, and --max-prompt-length {limit} leaves no room for "
            f"its question next to the {start} before and {end} after it, which a cut keeps; raise the limit"
        )
    kept = (*ids[:start], *ids[len(ids) - (limit - start) :])
    return replace(task, prompt=tokenizer.decode(list(kept)), prompt_ids=kept, tokens_cut=len(ids) - limit)


def refuse_long_images(task: Task, limit: int) -> None:
    """Refuse a prompt with images that is longer than `limit`; raises a DataError."""
    if task.media and len(task.prompt_ids) > limit:
        counted = sum(media.length for media in task.media)
        raise DataError(
            f"row {task.task_id}: its prompt has {len(task.prompt_ids)} tokens, {counted} of them for images, above "
            f"--max-prompt-length {limit}, and a prompt with images is not cut",
            remedies=["raise the limit", "make its images smaller by --image-max-pixels", "set --long-prompts to drop"],
        )


def _frame(task: Task, tokenizer: Tokenizer, data: DataConfig, tools: ToolFormat | None) -> tuple[int, int]:
    """Return the number of tokens before the first content that may be cut, and behind the last."""
    messages: list[Message] = [dict(message) for message in task.messages or ()]
    undecided = DataError(
        f"row {task.task_id}: its prompt has {len(task.prompt_ids)} tokens, and the model's chat template does not "
        "show where its system message ends, which a cut keeps; raise --max-prompt-length, or remove the row"
    )

    def surrounding(index: int) -> tuple[str, str]:
        """Return what the template writes before and behind the content of one message."""
        marked = [{**message, "content": MARK} if at == index else message for at, message in enumerate(messages)]
        text = apply_template(tokenizer, marked, data.switches, task.task_id, tools)
        before, *behind = text.split(MARK)
        if len(behind) != 1:
            raise undecided
        return before, behind[0]

    system = [*takewhile(lambda message: message["role"] in ("system", "developer"), messages)]
    before, _ = surrounding(min(len(system), len(messages) - 1))
    _, behind = surrounding(len(messages) - 1)
    start, end = map(tuple, tokenizer([before, behind], add_special_tokens=False, verbose=False)["input_ids"])
    is_seen = task.prompt.startswith(before) and task.prompt_ids[: len(start)] == start and task.prompt.endswith(behind)
    if not is_seen:
        raise undecided
    return len(start), len(end)


def length_histogram(lengths: Sequence[int]) -> str:
    """Draw counts per range of tokens as bars, under a line with n, median, 95th percentile and maximum.

    Percentiles are nearest-rank: a length that occurs. Every range that holds a prompt shows at least a sliver.

    >>> print(length_histogram([3, 3, 4]))
    prompt tokens: n 3, median 3, p95 4, max 4
      3 ██████████████████████████████ 2
      4 ███████████████ 1

    Raises:
        ValueError: `lengths` is empty.
    """
    if not lengths:
        raise ValueError("lengths must not be empty")
    ordered = sorted(lengths)
    median, p95 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
    # Equally wide ranges from the smallest length on, both ends included.
    lowest, highest = ordered[0], ordered[-1]
    width = math.ceil((highest - lowest + 1) / MAX_BINS)
    counts = [0] * ((highest - lowest) // width + 1)
    for length in ordered:
        counts[(length - lowest) // width] += 1
    bounds = [(low, min(low + width - 1, highest)) for low in range(lowest, highest + 1, width)]
    labels = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in bounds]
    lines = [f"prompt tokens: n {len(ordered):,}, median {median:,}, p95 {p95:,}, max {ordered[-1]:,}"]
    for label, count in zip(labels, counts, strict=True):
        # In eighths of a character: a bar is empty only for 0.
        whole, rest = divmod(math.ceil(count / max(counts) * BAR_WIDTH * 8), 8)
        bar = BLOCKS[-1] * whole + BLOCKS[rest].strip()
        lines.append(f"  {label:>{max(map(len, labels))}} {bar} {count:,}")
    return "\n".join(lines)
