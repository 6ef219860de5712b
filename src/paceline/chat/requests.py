"""A request for a model's turn, the context that the model reads before the turn, and the turn as it is parsed."""

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
    """What is wrong with a call that cannot be parsed; no call of the turn is then carried out."""
    finish_reason: FinishReason
    """`length`: the turn was cut at the limit of a turn."""
    is_last: bool
    """True if no turn can follow: the model will read no observation, so none has to be made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply(AgentTurn):
    """The turn that a `ModelRequest` gets, as a client of an endpoint reads it."""

    reasoning: str | None = None
    """Thinking at the beginning of the turn, which `content` leaves out."""
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
    """A request for the model's next turn, from a program that keeps the conversation itself.

    A request that continues an earlier turn keeps all tokens up to that turn's end; only `messages` are encoded.
    """

    messages: tuple[Message, ...] = ()
    """All messages that the model is to read, or, with `after`, those that follow that turn."""
    after: int | None = None
    """Number of the turn that the request continues, the latest or an earlier one; None: a new context."""
    text: str | None = None
    """Plain text to continue without a chat template, instead of `messages`; None: there are messages."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the tools that the model is shown."""
    reads_calls: bool = True
    """False: the model is shown the tools, and whatever it writes counts as text."""
    max_tokens: int | None = None
    """Tokens of the turn, at most; None: as many as the run allows."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings that the program asks for. In training the run's settings apply, and a difference is noted."""
    wants_ids: bool = False
    """True: the reply has the ids of the tokens read and sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnContext:
    """Tokens and messages that the model reads before a turn."""

    ids: tuple[int, ...]
    """The whole context."""
    observed: tuple[int, ...] = ()
    """Tokens appended to the latest turn; empty: the context was rendered as a whole."""
    messages: tuple[Message, ...]
    """All messages of the context, with control tokens escaped."""
    observation: tuple[Message, ...]
    """Messages new since the latest turn."""
    notes: tuple[str, ...]
    """Changes made to the new messages, such as escaping or cutting, each in a few words."""


def requested_context(request: ModelRequest, tokens: TurnTokens) -> TurnContext:
    """Return the context of a request that continues no turn.

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
    """Parse the turn sampled for a request: its content and calls, and the thinking at its beginning.

    `raw`: its text with special tokens, without the end token; `text`: without any special token.
    """
    if request.text is not None:
        return ParsedTurn(content=text), None
    reasoning, prefilled = opening_thought(raw), tokens.opens_thought
    if request.tools and request.reads_calls:
        return parse_calls(raw, tokens.call_format, prefilled=prefilled, tools=request.tools), reasoning
    return ParsedTurn(content=visible_text(text, prefilled=prefilled).strip()), reasoning
