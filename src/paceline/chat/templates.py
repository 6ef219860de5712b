"""Chat templates: what they write of messages and tools, what they leave out, and the clock that they show."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from typing import Protocol

from paceline.chat.messages import is_image_part
from paceline.chat.tools import ToolFormat, with_call_ids
from paceline.errors import ModelError
from paceline.types import Message

MARK = "paceline-cuts-here-6b1f"
"""Text that no dataset has: it marks where a message's content lies in a template's output."""

RENDER_SECONDS = 20.0
"""Seconds for the first conversation that a chat template renders."""
_ENDED = set[str]()
"""Chat templates that have rendered one."""
_NO_PARAMETERS = {"type": "object", "properties": {}, "required": []}

NOON = datetime(2024, 7, 26, 12)
"""What a chat template's clock shows: the day that Llama's templates write where they have no clock."""


class Tokenizer(Protocol):
    """The interface of a tokenizer; those of `transformers` have it."""

    chat_template: str | dict[str, str] | None
    bos_token: str | None
    bos_token_id: int | None

    def __call__(self, text: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
        """Return the token ids of each text under `input_ids`."""

    def apply_chat_template(
        self, conversation: Sequence[Message], *, tokenize: bool, add_generation_prompt: bool, **options: object
    ) -> str:
        """Render the conversation as the model reads it; `given` has tools, another template, and its switches."""

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens kept."""


def chat_text(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    tools: ToolFormat | None = None,
    *,
    in_parts: bool = False,
) -> str:
    """Render messages with the chat template, up to the start of the next turn, at the date of `pinned_date`.

    `switches` are what the template is given beside them, by name. With `in_parts` every content is a list of parts,
    as templates of models that read images expect it.

    Raises:
        ModelError: the template refuses them.
    """
    # Imported here: only transformers' templates need it, and it comes with them.
    from jinja2 import TemplateError

    written = with_call_ids(messages) if tools is None else tools.written(messages)
    if in_parts:
        written = [_in_parts(message) for message in written]
    options = dict(switches)
    if tools is not None and tools.shows_tools:  # an empty list is not the same as none to every template
        options["tools"] = [dict(schema) for schema in tools.schemas]
    if pinned_date(tokenizer) is not None:
        options["chat_template"] = _with_stopped_clock(_template(tokenizer, "tools" in options))
    try:
        return _rendered(
            tokenizer,
            lambda: tokenizer.apply_chat_template(written, tokenize=False, add_generation_prompt=True, **options),
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError, MemoryError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ModelError(f"the model's chat template refuses messages of the roles {roles} ({error})") from error


def _in_parts(message: dict[str, object]) -> dict[str, object]:
    content = message["content"]
    if not isinstance(content, str) or (not content and "tool_calls" in message):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


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
        match[1]: NOON.strftime(match[1]) for match in re.finditer(r"""strftime_now\(\s*['"](.*?)['"]""", template)
    }
    shown = f"{{{{ {formats}.get(format, {NOON.date().isoformat()!r}) }}}}"
    # templates' environment drops the break behind a block: what follows is rendered as if nothing stood before it
    return f"{{% macro strftime_now(format) %}}{shown}{{% endmacro %}}\n{template}"


def left_out(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    tools: ToolFormat | None = None,
    *,
    in_parts: bool = False,
) -> list[tuple[int, str]]:
    """Return what the chat template does not show of messages: the place of each, and the key.

    They are rendered with a mark in the place of each text and in the arguments of calls: a mark that does not come
    back is of a text that the model never reads. So is a key of another type whose absence changes nothing.
    """
    marked, marks = list[Message](), dict[str, tuple[int, str]]()

    def mark(index: int, key: str) -> str:
        text = f"{MARK}-{len(marks)}-"
        marks[text] = index, key
        return text

    for index, message in enumerate(messages):
        # names and ids of results are of their calls
        is_mute = ("role", "name", "tool_call_id") if message["role"] == "tool" else ("role",)
        changed: dict[str, object] = {
            key: mark(index, key)
            for key, value in message.items()
            if isinstance(value, str) and value.strip() and key not in is_mute
        }
        if isinstance(parts := message.get("content"), list):
            changed["content"] = [
                {**part, "text": mark(index, "content")} if str(part.get("text", "")).strip() else part
                for part in parts
            ]
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and calls:
            arguments = {"place": mark(index, "tool_calls")}
            changed_calls = [{**call, "function": {**call["function"], "arguments": arguments}} for call in calls]
            marked.append({**message, **changed, "tool_calls": changed_calls})
        else:
            marked.append({**message, **changed})
    hidden = list[tuple[int, str]]()
    with suppress(ModelError):  # a template that looks at what it is given takes no marks
        text = chat_text(tokenizer, marked, switches, tools, in_parts=in_parts).lower()  # a template may write capitals
        hidden += [where for text_mark, where in marks.items() if text_mark not in text]
    render = partial(chat_text, tokenizer, switches=switches, tools=tools, in_parts=in_parts)
    whole = cache(partial(render, messages))
    for index, message in enumerate(messages):
        others = [name for name, value in message.items() if not isinstance(value, str)]
        for key in [name for name in others if name not in ("content", "tool_calls")]:
            less: Message = {other: value for other, value in message.items() if other != key}
            with suppress(ModelError):  # where it needs the key
                if render([*messages[:index], less, *messages[index + 1 :]]) == whole():
                    hidden.append((index, key))
    return hidden


def shape_of(messages: Sequence[Message]) -> tuple[object, ...]:
    """Return what `left_out` hangs on: roles, keys, and which texts are empty."""
    return tuple((message["role"], *((key, _shape(value)) for key, value in message.items())) for message in messages)


def _shape(value: object) -> object:
    """Return what counts of a text, whether it is empty, and of content in parts the kind and text of each."""
    if isinstance(value, list) and any(map(is_image_part, value)):
        return tuple((part["type"], bool(part.get("text"))) for part in value)
    return bool(value) if isinstance(value, str) else type(value)


def shows_all(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    switches: Mapping[str, object],
    tools: ToolFormat | None,
    in_parts: bool,
) -> bool:
    """Return True if the chat template takes messages in this form and shows the content of each."""
    try:
        chat_text(tokenizer, messages, switches, tools, in_parts=in_parts)
    except ModelError:
        return False
    hidden = left_out(tokenizer, messages, switches, tools, in_parts=in_parts)
    return not any(key == "content" for _, key in hidden)


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
