"""Responses of OpenAI's interface: turns as bodies, or as the events of a stream, and errors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson

from paceline.chat.requests import ModelReply
from paceline.http.events import HttpRefusal
from paceline.openai_api.requests import ApiRequest, Refusal
from paceline.types import Message

Body = dict[str, Any]

DONE = b"data: [DONE]\n\n"


def call_id_of(turn: int, index: int) -> str:
    """Return the id of a call as the program has it: no other call of the episode has it.

    >>> call_id_of(2, 0)
    'call_2_0'
    """
    return f"call_{turn}_{index}"


def message_of(turn: ModelReply) -> Message:
    """Return a turn as a message, in the form of `requests.messages_of`: so does a program that sends it back."""
    message: Body = {"role": "assistant", "content": turn.content}
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls
        ]
    return message


def body_of(request: ApiRequest, turns: Sequence[ModelReply]) -> Body:
    """Return the whole response to a request, of as many turns as it has choices."""
    first = turns[0]
    if request.kind == "responses":
        return _response(request, first.number, first)
    body: Body = {
        **_head(request, first.number, is_whole=True),
        "choices": [_choice(request, index, turn) for index, turn in enumerate(turns)],
        "usage": usage_of(turns),
    }
    if request.wanted.wants_ids:
        body["prompt_token_ids"] = list(first.read_ids)
    return body


def _head(request: ApiRequest, number: int, *, is_whole: bool) -> Body:
    """Return what responses and events begin with; `number` is that of the first turn."""
    is_chat = request.kind == "chat"
    kind = ("chat.completion" if is_whole else "chat.completion.chunk") if is_chat else "text_completion"
    name = "chatcmpl" if is_chat else "cmpl"
    return {"id": f"{name}-{number}", "object": kind, "created": request.created, "model": request.model}


def usage_of(turns: Sequence[ModelReply]) -> Body:
    """Return the number of tokens that were read and sampled."""
    sampled = sum(len(turn.sampled_ids) for turn in turns)
    read = turns[0].num_read
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _choice(request: ApiRequest, index: int, turn: ModelReply) -> Body:
    logprobs = _logprobs(request, turn) if request.logprobs else None
    choice: Body = {"index": index, "finish_reason": _finish_reason(turn), "logprobs": logprobs}
    if request.kind == "chat":
        choice["message"] = _message(turn)
    else:
        choice["text"] = turn.text
    if request.wanted.wants_ids:
        choice["token_ids"] = list(turn.sampled_ids)
    return choice


def _logprobs(request: ApiRequest, turn: ModelReply) -> Body:
    if request.kind == "chat":
        tokens = [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in turn.logprobs
        ]
        return {"content": tokens, "refusal": None}
    texts = [text for text, _ in turn.logprobs]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for _, logprob in turn.logprobs],
        "top_logprobs": None,
        "text_offset": [*accumulate(map(len, texts), initial=0)][: len(texts)],
    }


def _finish_reason(turn: ModelReply) -> str:
    return "tool_calls" if turn.calls else turn.finish_reason


def _message(turn: ModelReply) -> Body:
    message: Body = {"role": "assistant", "content": turn.content or (None if turn.calls else "")}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = _calls(turn)
    return message


def _calls(turn: ModelReply) -> list[Body]:
    return [
        {
            "id": call_id_of(turn.number, index),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for index, call in enumerate(turn.calls)
    ]


def _response(request: ApiRequest, number: int, turn: ModelReply | None) -> Body:
    """Return the response of `/v1/responses`; None: the turn has not ended."""
    status = "in_progress" if turn is None else "incomplete" if turn.finish_reason == "length" else "completed"
    usage = None if turn is None else usage_of([turn])
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": request.created,
        "model": request.model,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": [] if turn is None else _items(turn),
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": None
        if usage is None
        else {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _items(turn: ModelReply) -> list[Body]:
    """Return what a turn has put out, as `/v1/responses` names it: a message and calls."""
    items = [_message_item(turn.number, [_text_part(turn.content)])] if turn.content or not turn.calls else []
    return items + [
        {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], "status": "completed"}
        | call["function"]
        for call in _calls(turn)
    ]


def _message_item(number: int, content: list[Body]) -> Body:
    status = "completed" if content else "in_progress"
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status, "content": content}


def _text_part(text: str) -> Body:
    return {"type": "output_text", "text": text, "annotations": []}


def events_of(request: ApiRequest, turns: Sequence[ModelReply]) -> Iterator[bytes]:
    """Yield the response to a request as the events of a stream; the last one says that it is done."""
    events = stream_events(request, turns[0].number, is_streamed=False)
    for index, turn in enumerate(turns):
        yield from events.of(index, turn)
    yield from events.last(turns)


def stream_events(request: ApiRequest, number: int, *, is_streamed: bool) -> "ChoiceEvents | ResponseEvents":
    """Return what writes the events of a stream by the request's interface.

    `number` is that of the first turn. `is_streamed`: pieces have held the text of a turn by its end.
    """
    if request.kind == "responses":
        return ResponseEvents(request, number)
    return ChoiceEvents(request, number, is_streamed=is_streamed)


class ChoiceEvents:
    """The events of a stream of chat or of text: pieces of choices, how each ends, and that all have."""

    def __init__(self, request: ApiRequest, number: int, *, is_streamed: bool) -> None:
        self._request, self._number, self._is_streamed = request, number, is_streamed

    def of(self, index: int, part: Mapping[str, Any] | ModelReply) -> Iterator[bytes]:
        """Yield the events of a piece of a choice, or of its turn that has ended."""
        if isinstance(part, ModelReply):
            yield from self._ended(index, part)
        else:
            yield self._piece(index, part)

    def _piece(self, index: int, piece: Mapping[str, Any]) -> bytes:
        """Return the event of a piece: of chat the parts of a message, else its `text`."""
        is_text = self._request.kind == "text"
        content = {"text": piece["text"], "logprobs": None} if is_text else {"delta": dict(piece)}
        return self._chunk([{"index": index, **content, "finish_reason": None}])

    def _ended(self, index: int, turn: ModelReply) -> Iterator[bytes]:
        choice = _choice(self._request, index, turn)
        end = {key: value for key, value in choice.items() if key not in ("message", "text")}
        if self._request.kind == "text":
            yield self._chunk([{**end, "text": "" if self._is_streamed else choice["text"]}])
            return
        delta = choice["message"]
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
        if self._is_streamed:
            delta = {key: value for key, value in delta.items() if key == "tool_calls"}
        if delta:
            yield self._piece(index, delta)
        yield self._chunk([{**end, "delta": {}}])

    def last(self, turns: Sequence[ModelReply]) -> Iterator[bytes]:
        """Yield what follows the events of all turns."""
        if self._request.with_usage:
            yield self._chunk([], usage=usage_of(turns))
        yield DONE

    def _chunk(self, choices: list[Body], **fields: Any) -> bytes:
        return _event({**_head(self._request, self._number, is_whole=False), "choices": choices, **fields})


class ResponseEvents:
    """The events of a stream of `/v1/responses`, which are numbered and name each thing that begins and ends."""

    def __init__(self, request: ApiRequest, number: int) -> None:
        """`number` is that of the turn."""
        self._request, self._number, self._count, self._text_sent = request, number, 0, ""

    def of(self, index: int, part: Mapping[str, Any] | ModelReply) -> Iterator[bytes]:
        """Yield the events of a piece of the message, or of the turn that has ended; thinking has no event here.

        `index` is 0, as there is one choice.
        """
        if not self._count:
            yield self._event("created", response=_response(self._request, self._number, None))
        if isinstance(part, ModelReply):
            yield from self._ended(part)
        elif "content" in part:
            yield from self._text(part["content"])

    def _text(self, text: str) -> Iterator[bytes]:
        if not self._text_sent:
            yield self._event("output_item.added", output_index=0, item=_message_item(self._number, []))
            yield self._event("content_part.added", part=_text_part(""), **self._content_part)
        self._text_sent += text
        yield self._event("output_text.delta", delta=text, logprobs=[], **self._content_part)

    def _ended(self, turn: ModelReply) -> Iterator[bytes]:
        body = _response(self._request, self._number, turn)
        for index, item in enumerate(body["output"]):
            if item["type"] == "message":
                (part,) = item["content"]
                if not self._text_sent:
                    yield from self._text(part["text"])
                yield self._event("output_text.done", text=part["text"], logprobs=[], **self._content_part)
                yield self._event("content_part.done", part=part, **self._content_part)
            else:
                empty = {**item, "arguments": "", "status": "in_progress"}
                of_item = {"item_id": item["id"], "output_index": index}
                yield self._event("output_item.added", output_index=index, item=empty)
                yield self._event("function_call_arguments.delta", delta=item["arguments"], **of_item)
                done = {"name": item["name"], "arguments": item["arguments"], **of_item}
                yield self._event("function_call_arguments.done", **done)
            yield self._event("output_item.done", output_index=index, item=item)
        yield self._event(body["status"], response=body)

    def last(self, turns: Sequence[ModelReply]) -> Iterator[bytes]:
        """Yield nothing: the event of the turn's end is the last one."""
        return iter(())

    @property
    def _content_part(self) -> Body:
        return {"item_id": f"msg_{self._number}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": f"response.{kind}", "sequence_number": self._count, **fields}
        self._count += 1
        return f"event: response.{kind}\n".encode() + _event(body)


def error_event(refusal: Refusal) -> bytes:
    """Return the event by which a stream breaks off, as OpenAI's clients read it."""
    return _event(error_of(refusal))


def _event(body: Body) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def error_of(refusal: HttpRefusal) -> Body:
    """Return a refusal as OpenAI's clients read it."""
    kinds = {401: "authentication_error", 500: "server_error", 503: "server_error"}
    kind = kinds.get(refusal.status, "invalid_request_error")
    param, code = (refusal.param, refusal.code) if isinstance(refusal, Refusal) else (None, None)
    return {"error": {"message": str(refusal), "type": kind, "param": param, "code": code}}


def models(name: str, created: int) -> Body:
    """Return the list of models, which has one."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "paceline"}]}
