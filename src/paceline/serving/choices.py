"""From sampled tokens to pieces of text and a finished turn, for each of a request's choices.

Pieces add up to the content of the turn: whatever may still change is held back, which is the start of a stop string
or of a tag, blanks at an end, and a character whose last token has not come. Only where a model closes a thought that
it has not opened, pieces have held the thought.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from paceline.chat.call_marks import OPEN_CALL
from paceline.chat.calls import ParsedTurn
from paceline.chat.requests import ModelReply, ModelRequest, ToolCall, parsed_response
from paceline.chat.thinking import (
    CLOSE_REASONING,
    CLOSE_THINK,
    OPEN_REASONING,
    OPEN_THINK,
    ThoughtReader,
    opening_thought,
)
from paceline.chat.turns import TurnTokens
from paceline.engines import Sampled
from paceline.engines.requests import texts_of
from paceline.http.events import GONE_SECONDS
from paceline.openai_api.requests import Refusal
from paceline.serving.generations import Generation
from paceline.types import FinishReason

TAGS = (OPEN_THINK, CLOSE_THINK, OPEN_REASONING, CLOSE_REASONING)
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""End of a text whose last character is spread over tokens of which some have not come."""
IN_TAGS = ("hermes", "xml", "glm")
"""Forms of calls before which text can be streamed: a tag opens each."""
CLIENT_GONE = 499
"""Status of a request whose client has closed the connection; nobody reads it."""

ResponsePart = tuple[int, Mapping[str, Any] | ModelReply]
"""Index of a choice, and a piece of its message or, at its end, the turn."""
OnParts = Callable[["RunningResponse", Sequence[ResponsePart] | Refusal], None]
"""Called with new parts of a response, or with why there will be no more, in the thread of all responses: it may not
wait."""


@dataclass(frozen=True)
class TextReader:
    """Reads the tokens of all choices of a request as text."""

    tokenizer: PreTrainedTokenizerBase
    end_tokens: frozenset[int]
    request: ModelRequest
    tokens: TurnTokens | None
    """Tokens of the conversation; None: plain text is continued."""
    stop: tuple[str, ...] = ()
    has_logprobs: bool = False

    @cached_property
    def reads_calls(self) -> bool:
        """True if a turn may hold calls."""
        return bool(self.request.tools) and self.request.reads_calls

    @cached_property
    def streams_text(self) -> bool:
        """True if text can be sent before the turn has ended: where a call may be in it, only before one in tags."""
        return not self.reads_calls or (self.tokens is not None and self.tokens.call_format in IN_TAGS)

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Texts of which no part is sent."""
        tags = () if self.tokens is None else TAGS
        return (*self.stop, *tags, *((OPEN_CALL,) if self.reads_calls else ()))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; special ones are kept where they may mark calls."""
        if not self.reads_calls or self.tokens is None:
            return texts_of(self.tokenizer, [ids])[0]
        return self.tokens.raw_text([token for token in ids if token not in self.end_tokens])


class RunningResponse:
    """The response to a request while it is sampled: one thread writes all responses, another may wait for this one."""

    generation: Generation
    """Completions that the engine samples for it."""

    def __init__(self, choices: Sequence["Choice"], on_parts: OnParts | None, *, has_stop: bool) -> None:
        """`has_stop`: a text may end a choice, so that each token has to be looked at alone."""
        self._choices, self._on_parts, self._by_token = choices, on_parts, has_stop or on_parts is not None
        self.number = choices[0].number
        """Number that no other response has."""
        self._left, self._ended = set(range(len(choices))), threading.Event()
        self._refusal: Refusal | None = None

    @property
    def turns(self) -> list[ModelReply]:
        """The turns of the choices that have ended."""
        return [choice.turn for choice in self._choices if choice.turn is not None]

    @property
    def is_whole(self) -> bool:
        """True if all choices have ended."""
        return not self._left

    def add(self, sampled: Sequence[Sampled] | Refusal) -> None:
        """Go on with what was sampled, or end by why there is no more of it."""
        if self._ended.is_set():
            return
        parts: Sequence[ResponsePart] | Refusal = sampled if isinstance(sampled, Refusal) else [*self._parts(sampled)]
        if self._on_parts is not None and parts:
            self._on_parts(self, parts)
        if isinstance(sampled, Refusal):
            self._refusal = sampled
        if self.is_whole or self._refusal is not None:
            self._ended.set()

    def _parts(self, sampled: Sequence[Sampled]) -> Iterator[ResponsePart]:
        for tokens in sampled if self._by_token else _joined(sampled):
            index = tokens.sample
            if index not in self._left:
                continue  # sampled before the engine knew that a stop string had ended it
            choice = self._choices[index]
            for piece in choice.add(tokens):
                yield index, piece
            if choice.turn is not None:
                self._left.discard(index)
                self.generation.end(index)
                yield index, choice.turn

    def wait(self, is_gone: Callable[[], bool]) -> list[ModelReply]:
        """Wait for the turns of all choices; raises Refusal where the response cannot be had.

        `is_gone` returns True if the client has left, for whom nothing needs to be sampled.
        """
        try:
            while not self._ended.wait(GONE_SECONDS):
                if is_gone():
                    raise Refusal("the client has closed the connection", status=CLIENT_GONE)
        finally:
            self.generation.give_up()
        if self._refusal is not None:
            raise self._refusal
        return self.turns


class Choice:
    """One completion as its tokens come: its text, what of it has been sent, and its turn at the end."""

    def __init__(self, reader: TextReader, number: int, read_ids: tuple[int, ...]) -> None:
        self.number = number
        self.turn: ModelReply | None = None
        """The turn once it has ended."""
        self._reader, self._read_ids = reader, read_ids
        self._ids, self._logprobs = list[int](), list[float]()
        self._start = self._known = 0
        """Tokens from which a text is decoded, as one may look unlike behind others, and those whose text is known."""
        self._text, self._seen, self._sent = "", 0, ""
        """Text up to now, characters of it that were looked at for what can be sent, and what was sent."""
        prefilled = reader.tokens is not None and reader.tokens.opens_thought
        self._thoughts = ThoughtReader(prefilled=prefilled)
        self._blanks = ""
        """Blanks that are sent once something follows them."""
        self._reasoning_sent = self._is_silent = False

    def add(self, sampled: Sampled) -> Iterator[dict[str, Any]]:
        """Take tokens; yields pieces of the message."""
        self._ids += sampled.token_ids
        self._logprobs += sampled.logprobs
        before = self._reader.decode(self._ids[self._start : self._known])
        now = self._reader.decode(self._ids[self._start :])
        is_last = sampled.finish_reason is not None
        if is_last or (len(now) > len(before) and not now.endswith(UNFINISHED)):
            self._start, self._known = self._known, len(self._ids)
            self._text += now[len(before) :]
        cut = _first(self._text, self._reader.stop)
        if cut is not None:
            self._text = self._text[:cut]
        if is_last or cut is not None:
            ended_by = sampled.finish_reason
            reason: FinishReason = "stop" if cut is not None or ended_by is None else ended_by
            self.turn = self._ended(reason, is_cut=cut is not None)
            yield from self._rest(self.turn)
        elif self._reader.streams_text:
            yield from self._settled()

    def _settled(self) -> Iterator[dict[str, Any]]:
        """Yield pieces of text that nothing can change any more."""
        if self._is_silent:
            return
        new = self._text[self._seen :]
        call = new.find(OPEN_CALL) if self._reader.reads_calls else -1
        self._is_silent = call >= 0
        part = new[:call] if self._is_silent else new[: len(new) - _held(new, self._reader.marks)]
        self._seen += len(part)
        if self._reader.tokens is None:
            text = part
        else:
            text = self._blanks + self._thoughts.visible(part)
            text = text if self._sent else text.lstrip()
            stripped = text.rstrip()
            self._blanks, text = text[len(stripped) :], stripped
        if text:
            if not self._sent and self._reader.tokens is not None:
                yield from self._reason(opening_thought(self._reader.decode(self._ids)))
            self._sent += text
            yield self._piece(text)

    def _reason(self, reasoning: str | None) -> Iterator[dict[str, Any]]:
        if reasoning is not None and not self._reasoning_sent:
            self._reasoning_sent = True
            yield {"role": "assistant", "reasoning_content": reasoning}

    def _piece(self, text: str) -> dict[str, Any]:
        return {"text": text} if self._reader.tokens is None else {"role": "assistant", "content": text}

    def _rest(self, turn: ModelReply) -> Iterator[dict[str, Any]]:
        """Yield the rest of the content; calls come with the turn."""
        yield from self._reason(turn.reasoning)
        rest = turn.content[len(self._sent) :] if turn.content.startswith(self._sent) else ""
        if rest:
            self._sent += rest
            yield self._piece(rest)

    def _ended(self, reason: FinishReason, *, is_cut: bool) -> ModelReply:
        reader, ids = self._reader, self._ids
        text = texts_of(reader.tokenizer, [ids])[0]
        text = text[: _first(text, reader.stop)] if is_cut else text
        parsed, reasoning = ParsedTurn(content=text), None
        if reader.tokens is not None:
            raw = reader.tokens.raw_text(ids[:-1] if ids[-1] in reader.tokens.stop_ids else ids)
            raw = raw[: _first(raw, reader.stop)] if is_cut else raw
            parsed, reasoning = parsed_response(reader.request, reader.tokens, raw=raw, text=text)
        return ModelReply(
            number=self.number,
            text=text,
            content=parsed.content,
            calls=tuple(ToolCall(name=name, arguments=arguments) for name, arguments in parsed.calls),
            malformed=parsed.malformed,
            finish_reason=reason,
            is_last=False,
            reasoning=reasoning,
            num_read=len(self._read_ids),
            read_ids=self._read_ids if reader.request.wants_ids else (),
            sampled_ids=tuple(ids),
            logprobs=tuple(zip(map(self._token, ids), self._logprobs, strict=True)) if reader.has_logprobs else (),
        )

    def _token(self, token: int) -> str:
        return cast(str, self._reader.tokenizer.decode([token]))


def _joined(sampled: Sequence[Sampled]) -> Iterator[Sampled]:
    """Join what was sampled of each completion."""
    of_sample = dict[int, list[Sampled]]()
    for tokens in sampled:
        of_sample.setdefault(tokens.sample, []).append(tokens)
    for parts in of_sample.values():
        yield replace(
            parts[-1],
            token_ids=tuple(token for part in parts for token in part.token_ids),
            logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        )


def _first(text: str, marks: Sequence[str]) -> int | None:
    """Return where the first of some texts begins in another, None where none does."""
    return min((at for mark in marks if (at := text.find(mark)) >= 0), default=None)


def _held(text: str, marks: Sequence[str]) -> int:
    """Return the number of characters at the end that may be the start of a mark.

    >>> _held("a <thi", ("<think>",)), _held("a", ("<think>",))
    (4, 0)
    """
    longest = max(map(len, marks), default=1) - 1
    starts = range(max(0, len(text) - longest), len(text))
    return next((len(text) - at for at in starts if any(mark.startswith(text[at:]) for mark in marks)), 0)
