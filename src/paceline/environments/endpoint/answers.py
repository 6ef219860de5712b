"""Answers of the endpoint: finished turns as bodies by OpenAI's interface, or as the events of a stream, and errors."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.environments import AgentTurn
from paceline.environments.endpoint.requests import ProgramRequest, Refusal
from paceline.types import Message

Body = dict[str, Any]

CREATED = 0
"""Seconds since 1970 in each answer: no clock, so that two runs give programs the same."""
DONE = b"data: [DONE]\n\n"


def call_id_of(turn: int, place: int) -> str:
    """Return the id of a call as the program has it: no other call of the episode has it.

    >>> call_id_of(2, 0)
    'call_2_0'
    """
    return f"call_{turn}_{place}"


def message_of(turn: AgentTurn) -> Message:
    """Return a turn as a message, in the form of `requests.messages_of`: so does a program that sends it back."""
    message: Body = {"role": "assistant", "content": turn.content}
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls
        ]
    return message


def body_of(request: ProgramRequest, turns: Sequence[AgentTurn]) -> Body:
    """Return the whole answer to a request, of as many turns as it has choices."""
    first = turns[0]
    if request.kind == "responses":
        return _response(request, first)
    is_chat = request.kind == "chat"
    body: Body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{first.number}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": CREATED,
        "model": request.model,
        "choices": [_choice(request, index, turn) for index, turn in enumerate(turns)],
        "usage": usage_of(turns),
    }
    if request.asked.wants_ids:
        body["prompt_token_ids"] = list(first.read_ids)
    return body


def usage_of(turns: Sequence[AgentTurn]) -> Body:
    """Return the number of tokens that were read and sampled."""
    sampled = sum(turn.num_sampled for turn in turns)
    read = turns[0].num_read
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _choice(request: ProgramRequest, index: int, turn: AgentTurn) -> Body:
    choice: Body = {"index": index, "finish_reason": _finish_reason(turn), "logprobs": None}
    if request.kind == "chat":
        choice["message"] = _message(turn)
    else:
        choice["text"] = turn.text
    if request.asked.wants_ids:
        choice["token_ids"] = list(turn.sampled_ids)
    return choice


def _finish_reason(turn: AgentTurn) -> str:
    return "tool_calls" if turn.calls else turn.finish_reason


def _message(turn: AgentTurn) -> Body:
    message: Body = {"role": "assistant", "content": turn.content or (None if turn.calls else "")}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = _calls(turn)
    return message


def _calls(turn: AgentTurn) -> list[Body]:
    return [
        {
            "id": call_id_of(turn.number, place),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for place, call in enumerate(turn.calls)
    ]


def _response(request: ProgramRequest, turn: AgentTurn) -> Body:
    name, is_cut, output = f"{turn.number}", turn.finish_reason == "length", list[Body]()
    if turn.content or not turn.calls:
        text = {"type": "output_text", "text": turn.content, "annotations": []}
        head = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"}
        output.append({**head, "content": [text]})
    for call in _calls(turn):
        output.append(
            {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], "status": "completed"}
            | call["function"]
        )
    usage = usage_of([turn])
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": CREATED,
        "model": request.model,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def events_of(request: ProgramRequest, turns: Sequence[AgentTurn]) -> Iterator[bytes]:
    """Yield the answer to a request as the events of a stream; the last one says that it is done."""
    body = body_of(request, turns)
    head = {key: body[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk" if request.kind == "chat" else "text_completion"
    for choice in body["choices"]:
        index, end = choice["index"], {key: one for key, one in choice.items() if key not in ("message", "text")}
        if request.kind == "text":
            yield _event({**head, "choices": [{**end, "text": choice["text"]}]})
            continue
        delta = choice["message"]
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
        yield _event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        yield _event({**head, "choices": [{**end, "delta": {}}]})
    if request.with_usage:
        yield _event({**head, "choices": [], "usage": body["usage"]})
    yield DONE


def _event(body: Body) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def error_of(refusal: Refusal) -> Body:
    """Return a refusal as OpenAI's clients read it."""
    kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}}


def models() -> Body:
    """Return the list of models: the policy."""
    return {"object": "list", "data": [{"id": "policy", "object": "model", "created": CREATED, "owned_by": "paceline"}]}
