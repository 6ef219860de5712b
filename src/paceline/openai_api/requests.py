"""What a request may hold: bodies of `/v1/chat/completions`, `/v1/completions` and `/v1/responses` as one record.

| field | what becomes of it |
|---|---|
| `messages`, `tools`, `prompt`, `input`, `instructions` | text alone; content in parts is joined |
| `tool_choice` | `auto`, or `none`: tools are shown, and no call is read; a forced one is refused |
| `max_tokens`, `max_completion_tokens`, `max_output_tokens` | held to what is left of the episode |
| `n` | that many turns, one after the other, from the same context |
| `stream` | events of the finished turn |
| `temperature`, `top_p`, `stop`, `seed`, penalties, unknown ones | the run's own hold; another value is noted |
| `logprobs`, `logit_bias`, a `response_format` of JSON, `echo`, `suffix`, `previous_response_id` | refused |

`paceline serve` reads the same, and has no run whose settings hold:

| field | what becomes of it there |
|---|---|
| `temperature`, `top_p`, `top_k`, `min_p`, `seed`, `stop` | taken within their ranges |
| penalties other than 0, unknown fields | refused |
| `logprobs` | those of the sampled tokens; `top_logprobs` is refused |
| `n` | completions of one prompt, sampled together |
| `stream` | events as tokens are sampled |
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Literal

from paceline.chat.messages import (
    ROLES,
    MessageError,
    calls_in,
    content_parts,
    content_text,
    parsed_json,
    shown,
)
from paceline.chat.requests import ModelRequest
from paceline.chat.tools import call_id
from paceline.http.events import HttpRefusal

MOST_CHOICES = 64
"""Largest `n`."""
MOST_TOOLS = 512
"""Tools of one request, at most."""
RANGES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "temperature": ("lie in [0, 100]", lambda value: 0 <= value <= 100),
    "top_p": ("lie in (0, 1]", lambda value: 0 < value <= 1),
    "top_k": (
        "be a whole number from 1 on, or 0 or -1 for none",
        lambda value: isinstance(value, int) and -1 <= value < 1 << 31,
    ),
    "min_p": ("lie in [0, 1)", lambda value: 0 <= value < 1),
    "seed": ("be a whole number", lambda value: isinstance(value, int)),
    "stop": (
        "hold at most 16 texts of 1 to 1000 characters",
        lambda value: len(value) <= 16 and all(1 <= len(text) <= 1000 for text in value),
    ),
    "presence_penalty": ("be 0, as there is none", lambda value: value == 0),
    "frequency_penalty": ("be 0, as there is none", lambda value: value == 0),
    "parallel_tool_calls": ("be true, as a turn may call several tools", lambda value: value is True),
}
"""Settings that a server takes: what each must do, and a test of that."""

SETTINGS = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty")
READ = {
    *("model", "messages", "prompt", "input", "instructions", "tools", "tool_choice", "n", "stream", "stream_options"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "return_token_ids", "stop", "response_format"),
    *("text", "logprobs", "top_logprobs", "logit_bias", "functions", "function_call", "echo", "suffix", "best_of"),
    *("previous_response_id", "background", "conversation"),
}
"""Fields with a rule of their own."""
ABOUT_CALLERS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("include", "truncation"),
}
"""Fields that change nothing of what is sampled; they are left out without a word."""
KEPT = "it would change what is sampled, and that is the model's own choice here"

_NO_LOGPROBS = "the record of the run has them; ask for token ids by return_token_ids, or leave it out"
_NOTHING_STORED = "nothing is stored; send the whole input each time"
REFUSED = {
    "logprobs": _NO_LOGPROBS,
    "top_logprobs": _NO_LOGPROBS,
    "logit_bias": f"{KEPT}; leave it out",
    "suffix": f"{KEPT}; leave it out",
    "echo": "a response is what was sampled; put it behind the prompt",
    "functions": "it is of an older interface; send tools",
    "function_call": "it is of an older interface; send tool_choice",
    "previous_response_id": _NOTHING_STORED,
    "conversation": _NOTHING_STORED,
    "background": _NOTHING_STORED,
}
"""Fields that no response could keep to, and why."""

Interface = Literal["chat", "text", "responses"]


class Refusal(HttpRefusal):
    """Refusal of a request, in one sentence, with the field at fault."""

    def __init__(
        self, sentence: str, param: str | None = None, *, code: str | None = None, status: int = HTTPStatus.BAD_REQUEST
    ) -> None:
        super().__init__(sentence, status=status)
        self.param, self.code = param, code


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """A request that has been checked."""

    kind: Interface
    """Interface that it came by: `/v1/chat/completions`, `/v1/completions` or `/v1/responses`."""
    wanted: ModelRequest
    """What the model is asked for, as if it went on from no turn."""
    model: str
    """Name that the program has for the model; any will do."""
    choices: int = 1
    stream: bool = False
    with_usage: bool = False
    """True: the last event of a stream has the number of tokens."""
    digest: bytes
    """Hash of the body: a client that lost the response asks for the same again."""
    logprobs: bool = False
    """True: the response has the log-probability of each sampled token."""
    created: int = 0
    """Seconds since 1970 in its response; 0 in an episode: no clock, so that two runs give programs the same."""


def read_request(kind: Interface, data: bytes, *, is_served: bool = False) -> ApiRequest:
    """Read the body of a request; raises Refusal.

    `is_served`: it is sampled as it asks, so a setting that cannot be is refused. Else a run's own settings hold.
    """
    try:
        body = parsed_json(data)
        text = json.dumps(body, sort_keys=True, ensure_ascii=False).encode()
    except ValueError as error:
        raise Refusal(f"the body must be JSON, and is not ({error}); send one object in UTF-8") from error
    if not isinstance(body, dict):
        raise Refusal(f"the body must be a JSON object, got {shown(body)}; send the fields of the request in one")
    body = {name: value for name, value in body.items() if value is not None}
    logprobs = is_served and _wants_logprobs(kind, body)
    _refuse_what_cannot_be(body)
    stream = _of_type(body, "stream", bool, "true or false") or False
    options = _of_type(body, "stream_options", dict, "an object") or {}
    wanted = _MODEL_REQUESTS[kind](body, is_served)
    if is_served:
        _check_settings(wanted.settings)
    return ApiRequest(
        kind=kind,
        wanted=wanted,
        model=_of_type(body, "model", str, "the name of a model") or "policy",
        choices=_whole(body, "n", most=MOST_CHOICES) or 1,
        stream=stream,
        with_usage=options.get("include_usage") is True,
        digest=blake2b(kind.encode() + text, digest_size=16).digest(),
        logprobs=logprobs,
    )


def _chat(body: Mapping[str, Any], takes_images: bool) -> ModelRequest:
    messages = _of_type(body, "messages", list, "a list of messages")
    if not messages:
        raise Refusal("messages must hold at least one message; send the conversation", "messages")
    tools = _tools(body.get("tools", []))
    plain = messages_of(messages, takes_images=takes_images)
    return ModelRequest(messages=plain, tools=tools, reads_calls=_reads_calls(body), **_common(body))


def _text(body: Mapping[str, Any], takes_images: bool) -> ModelRequest:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise Refusal(f"prompt must be a text that is not empty, got {shown(prompt)}; send one at a time", "prompt")
    return ModelRequest(text=prompt, **_common(body))


def _responses(body: Mapping[str, Any], takes_images: bool) -> ModelRequest:
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise Refusal(f"input must be a text or a list of items, got {shown(body.get('input'))}", "input")
    instructions = _of_type(body, "instructions", str, "a text")
    messages: list[dict[str, Any]] = [] if not instructions else [{"role": "system", "content": instructions}]
    for index, item in enumerate(items):
        _add_item(messages, item, f"input[{index}]")
    schemas = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key not in ("type", "strict")}}
        if isinstance(tool, Mapping) and tool.get("type") == "function" and "function" not in tool
        else tool
        for tool in _of_type(body, "tools", list, "a list of tools") or []
    ]
    tools = _tools(schemas)
    plain = messages_of(messages, takes_images=takes_images)
    return ModelRequest(messages=plain, tools=tools, reads_calls=_reads_calls(body), **_common(body))


def _add_item(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    """Add an item of `/v1/responses` to messages: text and calls of one turn are one message."""
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "reasoning":
        return
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls = messages[-1].setdefault("tool_calls", [])
        calls.append({"type": "function", "id": item.get("call_id"), "function": function})
    elif kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    else:
        raise Refusal(f"{where} must be a message or a function's call or output, got {shown(item)}", where)


_MODEL_REQUESTS: Mapping[Interface, Callable[[Mapping[str, Any], bool], ModelRequest]] = {
    "chat": _chat,
    "text": _text,
    "responses": _responses,
}


def messages_of(messages: Sequence[Any], *, takes_images: bool = False) -> tuple[dict[str, Any], ...]:
    """Return messages in the one form in which they are compared and rendered; raises Refusal.

    `takes_images`: content of the user's messages may have parts of images as data URIs, and is then a list of parts.
    Content is text, arguments are objects, an id is made of a call's index in its turn, what says nothing is left out.
    """
    plain, call_indices = list[dict[str, Any]](), dict[str | None, int]()
    results = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            allowed = ", ".join(ROLES)
            raise Refusal(f"{where} must be an object with a role among {allowed}, got {shown(message)}", where)
        has_images = takes_images and role == "user"
        content, calls = _content_and_calls(message, where, is_turn=role == "assistant", has_images=has_images)
        plain.append({"role": "system" if role == "developer" else role, "content": content})
        if role == "tool":
            if not isinstance(of_call := message.get("tool_call_id"), str | None):
                raise Refusal(f"{where}.tool_call_id must be a text, got {shown(of_call)}", f"{where}.tool_call_id")
            plain[-1]["tool_call_id"], results = call_id(None, call_indices.get(of_call, results)), results + 1
            if isinstance(message.get("name"), str):
                plain[-1]["name"] = message["name"]
        else:
            call_indices, results = {}, 0
        if role == "assistant":
            if isinstance(thought := message.get("reasoning_content"), str) and thought:
                plain[-1]["reasoning_content"] = thought
            call_indices = {call.get("id"): number for number, call in enumerate(calls)}
            if calls:
                plain[-1]["tool_calls"] = [
                    {"type": "function", "id": call_id(None, number), "function": call["function"]}
                    for number, call in enumerate(calls)
                ]
    if plain[-1]["role"] == "assistant":
        raise Refusal("the last message must not be the assistant's; end with what it is to reply to", "messages")
    return tuple(plain)


def _content_and_calls(
    message: Mapping[str, Any], where: str, *, is_turn: bool, has_images: bool
) -> tuple[str | list[dict[str, object]], list[dict[str, Any]]]:
    read, content = content_parts if has_images else content_text, message.get("content")
    try:
        parts, calls = read(content, may_be_none=is_turn), calls_in(message) if is_turn else []
    except MessageError as error:
        raise Refusal(f"{where}.{error}", f"{where}.{error.part}") from error
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if part["type"] == "image":
            image = part.get("image")
            image = image.get("url") if isinstance(image, Mapping) else image
            if not isinstance(image, str) or not image.startswith("data:image/"):
                place = f"{where}.content[{index}]"
                problem = f"{place} must hold an image as a data URI (data:image/png;base64,...), got {shown(image)}"
                raise Refusal(f"{problem}; nothing is fetched here, so send the image itself", place)
            part["image"] = image
    return parts, calls


def _tools(schemas: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(schemas, list):
        raise Refusal(f"tools must be a list, got {shown(schemas)}", "tools")
    if len(schemas) > MOST_TOOLS:
        raise Refusal(f"tools must be at most {MOST_TOOLS}, got {len(schemas)}; send those that are needed", "tools")
    tools, names = list[dict[str, Any]](), set[str]()
    for index, tool in enumerate(schemas):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise Refusal(f"{where} must be of type function and have a name, got {shown(tool)}", where)
        if name in names:
            raise Refusal(f"{where} must have a name of its own, and {name!r} is another tool's too", where)
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        description = function.get("description") or ""
        if not isinstance(parameters, Mapping) or not isinstance(description, str):
            raise Refusal(f"{where}.function must have a text as description and a schema as parameters", where)
        names.add(name)
        schema = {"name": name, "description": description, "parameters": dict(parameters)}
        tools.append({"type": "function", "function": schema})
    return tuple(tools)


def _reads_calls(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        problem = f'tool_choice must be "auto" or "none", got {shown(choice)}'
        raise Refusal(f'{problem}: {KEPT}; send "auto" and let the reward ask for the call', "tool_choice")
    return bool(choice == "auto")


def _common(body: Mapping[str, Any]) -> dict[str, Any]:
    limits = [_whole(body, name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens")]
    settings = {name: value for name in SETTINGS if (value := _number(body, name)) is not None}
    stop = body.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise Refusal(f"stop must be a text or a list of texts, got {shown(stop)}", "stop")
    known = {*READ, *SETTINGS, *ABOUT_CALLERS}
    if body.get("parallel_tool_calls") is True:  # a turn may call several tools, whatever is asked for
        known.add("parallel_tool_calls")
    unknown = {name: shown(value) for name, value in body.items() if name not in known}
    return {
        "max_tokens": next((limit for limit in limits if limit is not None), None),
        "settings": {**settings, **({"stop": stop} if stop else {}), **unknown},
        "wants_ids": _of_type(body, "return_token_ids", bool, "true or false") or False,
    }


def _wants_logprobs(kind: Interface, body: dict[str, Any]) -> bool:
    """Take the wish for logprobs out of a body; those of other tokens than the sampled one are refused."""
    wanted, most = body.pop("logprobs", None), body.pop("top_logprobs", 0)
    is_flag = isinstance(wanted, bool)
    right = wanted is None or (kind == "chat" and is_flag) or (kind == "text" and not is_flag and wanted == 0)
    if not right or most:
        name, value = ("top_logprobs", most) if right else ("logprobs", wanted)
        form = {"chat": "logprobs true", "text": "logprobs 0", "responses": "/v1/chat/completions for logprobs"}[kind]
        problem = f"{name} is not taken, got {shown(value)}: only those of the sampled tokens are known"
        raise Refusal(f"{problem}; ask by {form}", name)
    return wanted is not None and (kind == "text" or wanted is True)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name not in RANGES:
            raise Refusal(f"{name} is not known here; leave it out", name)
        rule, holds = RANGES[name]
        if not holds(value):
            raise Refusal(f"{name} must {rule}, got {shown(value)}", name)


def _refuse_what_cannot_be(body: Mapping[str, Any]) -> None:
    """Refuse fields that no response could keep to."""
    for name, reason in REFUSED.items():
        if body.get(name):
            raise Refusal(f"{name} is not taken: {reason}", name)
    text = _of_type(body, "text", dict, "an object") or {}
    for form in (_of_type(body, "response_format", dict, "an object"), _of_type(text, "format", dict, "an object")):
        if form is not None and form.get("type") not in (None, "text"):
            problem = f"response_format must be text, got {shown(form.get('type'))}: {KEPT}"
            raise Refusal(f"{problem}; ask for JSON in a message and parse it", "response_format")


def _of_type(body: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise Refusal(f"{name} must be {what}, got {shown(value)}", name)
    return value


def _whole(body: Mapping[str, Any], name: str, *, most: int | None = None) -> int | None:
    value = body.get(name)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is not None and (not is_whole or (most is not None and value > most)):
        rule = "from 1 on" if most is None else f"from 1 to {most}"
        raise Refusal(f"{name} must be a whole number {rule}, got {shown(value)}", name)
    return value


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise Refusal(f"{name} must be a number, got {shown(value)}", name)
    return value
