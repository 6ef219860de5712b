"""Rendering of prompts: the system message, the chat template or raw text, and the cut of one that is too long."""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from itertools import takewhile
from typing import Protocol

from paceline.base_directory import local_path
from paceline.config.sections import DataConfig
from paceline.data.tools import ToolFormat, with_call_ids
from paceline.errors import ConfigError, DataError, ModelError
from paceline.types import Message, Task

TEXT_FILES = (".txt", ".md", ".jinja")
MARK = "paceline-cuts-here-6b1f"
"""Text that no dataset has: it marks where a message's content lies in a template's output."""

RENDER_SECONDS = 20.0
"""Seconds for the first conversation that a chat template renders."""
_ENDED = set[str]()
"""Chat templates that have rendered one."""
_NO_PARAMETERS = {"type": "object", "properties": {}, "required": []}

NOON = datetime(2024, 7, 26, 12)
"""What a chat template's clock shows: the day that Llama's templates write where they have no clock."""


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
    if (given := data.system_prompt) is None:
        return default
    has_space = any(character.isspace() for character in given)
    if os.path.isfile(given) or (given.lower().endswith(TEXT_FILES) and not has_space):
        raise ConfigError(
            f"--system-prompt must be the message itself, got the name of a file {given!r}; write file:{given}"
        )
    return given if given.strip() else None


class Tokenizer(Protocol):
    """The interface of a tokenizer; those of `transformers` have it."""

    chat_template: str | dict[str, str] | None
    bos_token: str | None
    bos_token_id: int | None

    def __call__(self, text: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
        """Return the token ids of each text under `input_ids`."""

    def apply_chat_template(
        self, conversation: Sequence[Message], *, tokenize: bool, add_generation_prompt: bool, **given: object
    ) -> str:
        """Render the conversation as the model reads it; `given` has tools, another template, and its switches."""

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A prompt as the model reads it, before tokenisation."""

    text: str
    add_special_tokens: bool
    """False if the text already holds the special tokens: a second start token would go unnoticed."""
    messages: tuple[Message, ...] | None = None
    """Messages that went into the chat template, None for raw text."""


def render(
    prompt: str | list[Message],
    tokenizer: Tokenizer,
    data: DataConfig,
    *,
    system: str | None,
    row_id: str,
    tools: ToolFormat | None = None,
) -> Rendered:
    """Render one prompt.

    Messages go through the chat template. A system message that the user chose replaces the row's own; a default one
    only fills the gap. Raw text stays as it is and takes neither a system message nor `tools`.

    Raises:
        DataError: raw text with tools or a system message that the user chose, or the template refuses the messages.
        ModelError: messages, and the tokenizer has no chat template.
    """
    is_explicit = data.system_prompt is not None  # the user chose the system message, or none at all
    if isinstance(prompt, str):
        if tools is not None:
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
        starts_with_bos = bool(tokenizer.bos_token) and prompt.startswith(str(tokenizer.bos_token))
        return Rendered(text=prompt, add_special_tokens=not starts_with_bos)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"row {row_id}: needs a chat template and the model's tokenizer has none; use a model with one, or "
            "give the prompt as plain text in a column named `prompt`"
        )
    has_own, messages = prompt[0]["role"] in ("system", "developer"), prompt
    if is_explicit or not has_own:
        rest = prompt[1:] if has_own else prompt
        messages = rest if system is None else [{"role": "system", "content": system}, *rest]
    text = apply_template(tokenizer, messages, data.switches, row_id, tools)
    return Rendered(text=text, add_special_tokens=False, messages=tuple(messages))


def token_ids(rendered: Sequence[Rendered], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt, in order; fast tokenizers encode all of them on all cores."""
    ids: dict[int, tuple[int, ...]] = {}
    for flag in (False, True):
        places = [place for place, prompt in enumerate(rendered) if prompt.add_special_tokens is flag]
        if places:
            texts = [rendered[place].text for place in places]
            encoded = tokenizer(texts, add_special_tokens=flag, verbose=False)["input_ids"]
            ids.update(zip(places, map(tuple, encoded), strict=True))
    return [ids[place] for place in range(len(rendered))]


def apply_template(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    row_id: str,
    tools: ToolFormat | None = None,
) -> str:
    """Render messages with the chat template, up to the start of the answer.

    Raises:
        DataError: the template refuses them.
    """
    try:
        return chat_text(tokenizer, messages, switches, tools)
    except ModelError as error:
        raise DataError(
            f"row {row_id}: {error.message}",
            remedies=["change them", "use --system-prompt '' where it takes no system message"],
        ) from error


def chat_text(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    tools: ToolFormat | None = None,
) -> str:
    """Render messages with the chat template, up to the start of the answer, at the date of `pinned_date`.

    `switches` are what the template is given beside them, by name.

    Raises:
        ModelError: the template refuses them.
    """
    # Imported here: only transformers' templates need it, and it comes with them.
    from jinja2 import TemplateError

    written = with_call_ids(messages) if tools is None else tools.written(messages)
    given = dict(switches)
    if tools is not None and tools.shows_tools:  # an empty list is not the same as none to every template
        given["tools"] = [dict(schema) for schema in tools.schemas]
    if pinned_date(tokenizer) is not None:
        given["chat_template"] = _with_stopped_clock(_template(tokenizer, "tools" in given))
    try:
        return _rendered(
            tokenizer,
            lambda: tokenizer.apply_chat_template(written, tokenize=False, add_generation_prompt=True, **given),
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError, MemoryError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ModelError(f"the model's chat template refuses messages of the roles {roles} ({error})") from error


def left_out(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    tools: ToolFormat | None = None,
) -> list[tuple[int, str]]:
    """Return what the chat template does not show of messages: the place of each, and the key.

    They are rendered with a mark in the place of each text and in the arguments of calls: a mark that does not come
    back is of a text that the model never reads. So is a key of another type whose absence changes nothing.
    """
    marked, marks = list[Message](), dict[str, tuple[int, str]]()

    def mark(place: int, key: str) -> str:
        text = f"{MARK}-{len(marks)}-"
        marks[text] = place, key
        return text

    for place, message in enumerate(messages):
        # names and ids of results are of their calls
        is_mute = ("role", "name", "tool_call_id") if message["role"] == "tool" else ("role",)
        changed = {
            key: mark(place, key)
            for key, value in message.items()
            if isinstance(value, str) and value.strip() and key not in is_mute
        }
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and calls:
            arguments = {"place": mark(place, "tool_calls")}
            changed_calls = [{**call, "function": {**call["function"], "arguments": arguments}} for call in calls]
            marked.append({**message, **changed, "tool_calls": changed_calls})
        else:
            marked.append({**message, **changed})
    hidden = list[tuple[int, str]]()
    with suppress(ModelError):  # a template that looks at what it is given takes no marks
        text = chat_text(tokenizer, marked, switches, tools).lower()  # a template may write capitals
        hidden += [where for one, where in marks.items() if one not in text]
    whole = cache(partial(chat_text, tokenizer, messages, switches, tools))
    for place, message in enumerate(messages):
        for key in [name for name, value in message.items() if not isinstance(value, str) and name != "tool_calls"]:
            less: Message = {other: value for other, value in message.items() if other != key}
            with suppress(ModelError):  # where it needs the key
                if chat_text(tokenizer, [*messages[:place], less, *messages[place + 1 :]], switches, tools) == whole():
                    hidden.append((place, key))
    return hidden


def shape_of(messages: Sequence[Message]) -> tuple[object, ...]:
    """Return what `left_out` hangs on: roles, keys, and which texts are empty."""
    return tuple(
        (
            message["role"],
            *((key, bool(value) if isinstance(value, str) else type(value)) for key, value in message.items()),
        )
        for message in messages
    )


def _rendered(tokenizer: Tokenizer, render: Callable[[], str]) -> str:
    """Render, the first time with a template within `RENDER_SECONDS`: a stranger's may have no end.

    Raises:
        ModelError: it has not ended by then.
    """
    template = str(tokenizer.chat_template)
    if template in _ENDED:
        return render()
    outcome: Future[str] = Future()

    def attempt() -> None:
        try:
            outcome.set_result(render())
        except BaseException as error:  # noqa: BLE001 - the border: it is raised where the text is waited for
            outcome.set_exception(error)

    threading.Thread(target=attempt, name="chat template", daemon=True).start()
    try:
        text = outcome.result(RENDER_SECONDS)
    except TimeoutError:
        raise ModelError(
            f"the model's chat template has not rendered one conversation after {RENDER_SECONDS:g} s; use another model"
        ) from None
    _ENDED.add(template)
    return text


def pinned_date(tokenizer: Tokenizer) -> str | None:
    """Return the date that a chat template with a clock shows, today or not; None where it has no clock.

    A prompt that changes at midnight would not be the same when a run is resumed, nor through one conversation.
    """
    templates = tokenizer.chat_template
    texts = templates.values() if isinstance(templates, Mapping) else [templates or ""]
    return NOON.date().isoformat() if any("strftime_now" in text for text in texts) else None


def _template(tokenizer: Tokenizer, has_tools: bool) -> str:
    """Return the template that transformers takes where a model has several."""
    templates = tokenizer.chat_template
    if isinstance(templates, Mapping):
        return templates["tool_use" if has_tools and "tool_use" in templates else "default"]
    return templates or ""


def _with_stopped_clock(template: str) -> str:
    """Return a template whose clock shows `NOON`, whoever renders it."""
    formats = {
        found[1]: NOON.strftime(found[1]) for found in re.finditer(r"""strftime_now\(\s*['"](.*?)['"]""", template)
    }
    shown = f"{{{{ {formats}.get(format, {NOON.date().isoformat()!r}) }}}}"
    # templates' environment drops the break behind a block: what follows is rendered as if nothing stood before it
    return f"{{% macro strftime_now(format) %}}{shown}{{% endmacro %}}\n{template}"


def tool_format(
    tokenizer: Tokenizer, schemas: Sequence[Mapping[str, object]], switches: Mapping[str, object]
) -> ToolFormat | None:
    """Find out how the chat template shows tools; None without tools.

    It is asked to render tools, a call and its result: what does not come back in the text is not shown.
    """
    if not schemas:
        return None
    user: Message = {"role": "user", "content": "Question"}
    native = ToolFormat(schemas=tuple(schemas), shows_tools=True, takes_system=True)
    function = {"name": "paceline_tool", "arguments": {"place": f"{MARK}-argument"}}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    result: Message = {"role": "tool", "content": f"{MARK}-result"}
    schema = {"name": "paceline_tool", "description": f"{MARK}-tool", "parameters": _NO_PARAMETERS}
    probe = replace(native, schemas=({"type": "function", "function": schema},))
    try:
        text = chat_text(tokenizer, [user, call, result], switches, probe)
        shows_tools = all(f"{MARK}-{what}" in text for what in ("tool", "argument", "result"))
    except ModelError:
        shows_tools = False
    return replace(native, shows_tools=shows_tools, takes_system=takes_system(tokenizer, switches))


def takes_system(tokenizer: Tokenizer, switches: Mapping[str, object]) -> bool:
    """Return True if the chat template takes a system message and shows it."""
    messages = [{"role": "system", "content": MARK}, {"role": "user", "content": "Question"}]
    try:
        return MARK in chat_text(tokenizer, messages, switches)
    except ModelError:
        return False


def truncate(task: Task, tokenizer: Tokenizer, data: DataConfig, tools: ToolFormat | None = None) -> Task:
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
        start, end = _frame(task, tokenizer, data, tools)
    if start + end >= limit:
        raise DataError(
            f"row {task.task_id}: its prompt has {len(ids)} tokens, and --max-prompt-length {limit} leaves no room for "
            f"its question next to the {start} before and {end} after it, which a cut keeps; raise the limit"
        )
    kept = (*ids[:start], *ids[len(ids) - (limit - start) :])
    return replace(task, prompt=tokenizer.decode(list(kept)), prompt_ids=kept, tokens_cut=len(ids) - limit)


def _frame(task: Task, tokenizer: Tokenizer, data: DataConfig, tools: ToolFormat | None) -> tuple[int, int]:
    """Return the number of tokens before the first content that may be cut, and behind the last."""
    messages: list[Message] = [dict(message) for message in task.messages or ()]
    undecided = DataError(
        f"row {task.task_id}: its prompt has {len(task.prompt_ids)} tokens, and the model's chat template does not "
        "show where its system message ends, which a cut keeps; raise --max-prompt-length, or remove the row"
    )

    def around(place: int) -> tuple[str, str]:
        """Return what the template writes before and behind the content of one message."""
        marked = [{**message, "content": MARK} if at == place else message for at, message in enumerate(messages)]
        text = apply_template(tokenizer, marked, data.switches, task.task_id, tools)
        before, *behind = text.split(MARK)
        if len(behind) != 1:
            raise undecided
        return before, behind[0]

    system = [*takewhile(lambda message: message["role"] in ("system", "developer"), messages)]
    before, _ = around(min(len(system), len(messages) - 1))
    _, behind = around(len(messages) - 1)
    texts = [Rendered(text=text, add_special_tokens=False) for text in (before, behind)]
    start, end = token_ids(texts, tokenizer)
    is_seen = task.prompt.startswith(before) and task.prompt_ids[: len(start)] == start and task.prompt.endswith(behind)
    if not is_seen:
        raise undecided
    return len(start), len(end)
