"""What a model is asked for, the context that it reads for it, and the turn that it samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.chat.calls import ParsedTurn, parse_calls
from paceline.chat.thinking import opening_thought, visible_text
from paceline.chat.turns import TurnTokens
from paceline.types import FinishReason, Message


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool call of a turn."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTurn:
    """A turn of the model, as its environment reads it."""

    number: int
    """Turns of the episode before this one."""
    text: str
    """Sampled text, special tokens left out."""
    content: str
    """The text without its tool calls."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls in the order of the text."""
    malformed: str | None = None
    """Problem of a call that cannot be read; the other calls of the turn are then not to be carried out."""
    finish_reason: FinishReason
    """`length`: the turn was cut at the limit of a turn."""
    is_last: bool
    """True if no turn can follow: the model will not read an observation, so nothing is to be done for one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply(AgentTurn):
    """The turn that a `ModelRequest` gets, as a client of an endpoint reads it."""

    reasoning: str | None = None
    """Thinking that the turn begins with, which is not in `content`."""
    num_read: int
    """Tokens of the turn's context."""
    read_ids: tuple[int, ...] = ()
    """The context's tokens, where the request asks for ids."""
    sampled_ids: tuple[int, ...]
    """The turn's tokens."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """Text and log-probability, in nats, of each token of the turn, where the request asks for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """A program's request for a turn, in the place of messages to add: the program holds the conversation.

    All tokens of a turn that it goes on from are read as they are; only `messages` are encoded.
    """

    messages: tuple[Message, ...] = ()
    """All messages that the model is to read, or, with `after`, those behind that turn."""
    after: int | None = None
    """Number of the turn that it goes on from, the latest or an earlier one; None: it has a context of its own."""
    text: str | None = None
    """Plain text to continue without a chat template, in the place of `messages`; None: there are messages."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the tools that the model is shown."""
    reads_calls: bool = True
    """False: tools are shown, and whatever the model writes is text."""
    max_tokens: int | None = None
    """Tokens of the turn, at most; None: as many as the run allows."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of sampling that it asks for. In training the run's own hold, and another value is noted."""
    wants_ids: bool = False
    """True: the reply has token ids."""


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
    """Return the turn that a request got as content and calls, and the thinking that it begins with.

    `raw` has the special tokens but an end token, `text` has none.
    """
    if request.text is not None:
        return ParsedTurn(content=text), None
    reasoning, prefilled = opening_thought(raw), tokens.opens_thought
    if request.tools and request.reads_calls:
        return parse_calls(raw, tokens.call_format, prefilled=prefilled, tools=request.tools), reasoning
    return ParsedTurn(content=visible_text(text, prefilled=prefilled).strip()), reasoning
