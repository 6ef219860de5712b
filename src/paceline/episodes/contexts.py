"""What a program's request asks the model to read, and how the model's turn is read for it."""

from dataclasses import dataclass

from paceline.chat.calls import ParsedTurn, parse_calls
from paceline.chat.thinking import opening_thought, visible_text
from paceline.chat.turns import TurnTokens
from paceline.environments import ModelRequest
from paceline.types import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnContext:
    """What the model reads before a turn."""

    ids: tuple[int, ...]
    """The whole context."""
    observed: tuple[int, ...] = ()
    """Tokens behind the latest turn, which the context goes on from; empty: it is a context of its own."""
    messages: tuple[Message, ...]
    """All messages of the context, as they are read."""
    observation: tuple[Message, ...]
    """Messages new since the latest turn."""
    notes: tuple[str, ...]
    """What was done to the new messages, each in a few words."""


def requested_context(request: ModelRequest, tokens: TurnTokens) -> TurnContext:
    """Return the context of a request that goes on from no turn.

    Raises:
        ModelError: the chat template refuses its messages.
    """
    if request.text is not None:
        message: Message = {"role": "user", "content": request.text}
        return TurnContext(ids=tokens.plain_prompt(request.text), messages=(message,), observation=(message,), notes=())
    read = [tokens.plain.read_message(message) for message in request.messages]
    messages = tuple(message for message, _ in read)
    notes = tuple(dict.fromkeys(note for _, notes in read for note in notes))
    return TurnContext(ids=tokens.whole(messages), messages=messages, observation=messages, notes=notes)


def parsed_response(request: ModelRequest, tokens: TurnTokens, *, raw: str, text: str) -> tuple[ParsedTurn, str | None]:
    """Return the response to a request as content and calls, and the thinking that it begins with.

    `raw` has the special tokens but an end token, `text` has none.
    """
    if request.text is not None:
        return ParsedTurn(content=text), None
    reasoning, prefilled = opening_thought(raw), tokens.opens_thought
    if request.tools and request.reads_calls:
        return parse_calls(raw, tokens.call_format, prefilled=prefilled, tools=request.tools), reasoning
    return ParsedTurn(content=visible_text(text, prefilled=prefilled).strip()), reasoning
