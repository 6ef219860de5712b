"""From a request to what the engine is asked, and from sampled tokens to pieces of text and a finished turn.

What pieces tell adds up to the content of the turn: whatever may still change is held back, which is the start of a
stop string or of a tag, blanks at an end, and a character whose last token has not come. Only where a model closes a
thought that it has not opened, pieces have told the thought.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from paceline.chat.call_marks import OPEN_CALL
from paceline.chat.thinking import (
    CLOSE_REASONING,
    CLOSE_THINK,
    OPEN_REASONING,
    OPEN_THINK,
    ThoughtReader,
    opening_thought,
)
from paceline.chat.turns import TurnTokens
from paceline.engines import Request, Sampled, Sampling, TrainedEngine, sample_key
from paceline.engines.requests import texts_of
from paceline.environments import AgentTurn, ModelRequest, ToolCall
from paceline.environments.endpoint.requests import ProgramRequest, Refusal
from paceline.environments.endpoint.serving import LOOK_SECONDS
from paceline.episodes.contexts import parsed_response
from paceline.serving.generations import Generation, Generations
from paceline.serving.prompts import PromptReader
from paceline.types import FinishReason

DRAWN_BY = ("temperature", "top_p", "top_k", "min_p")
"""Settings of a request that say how its tokens are drawn."""
LEAST_TEMPERATURE = 1e-4
"""Below it the most probable token is taken: another one would need a logit that is less than 0.01 lower."""
TAGS = (OPEN_THINK, CLOSE_THINK, OPEN_REASONING, CLOSE_REASONING)
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""End of a text whose last character is spread over tokens of which some have not come."""
IN_TAGS = ("hermes", "xml", "glm")
"""Forms of calls before which text can be told: a tag opens each."""
CLIENT_GONE = 499
"""Status of a request whose client has closed the connection; nobody reads it."""

AnswerPart = tuple[int, Mapping[str, Any] | AgentTurn]
"""Index of a choice, and a piece of its message or, at its end, the turn."""
Hear = Callable[["RunningAnswer", Sequence[AnswerPart] | Refusal], None]
"""Called with what is new of an answer, or with why there will be no more, in the thread of all answers: it may not
wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A model that answers requests: its engine, and what reads prompts and writes text."""

    name: str
    engine: TrainedEngine
    tokenizer: PreTrainedTokenizerBase
    end_tokens: frozenset[int]
    tokens: TurnTokens | None
    """Tokens of conversations; None: the model can hold none."""
    chat_problem: str
    """Why it can hold none, in a sentence; empty where it can."""
    sampling: Sampling
    """Sampling of a request that does not say otherwise; its limit is the length of an answer."""
    length: int
    """Tokens of a prompt and its answer, at most."""
    vocabulary: int
    """Tokens that the model has weights for."""
    generations: Generations
    prompts: PromptReader
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(int(time.time() * 1000)))
    """Numbers of answers, which go on where those of an earlier process ended."""

    def run(self) -> None:
        """Let the engine sample until `generations` is closed.

        In the thread that has loaded the model it takes a tenth less time: OpenMP keeps threads for each thread that
        computes, and with more of them than cores they sleep between any two operations.
        """
        self.generations.run(self.engine, length=self.length)

    def start(self) -> threading.Thread:
        """`run` in a thread of its own, which is returned."""
        thread = threading.Thread(target=self.run, name="engine", daemon=True)
        thread.start()
        return thread

    def begin(self, request: ProgramRequest, hear: Hear | None = None) -> "RunningAnswer":
        """Ask the engine for the answer to a request; raises Refusal.

        `hear` is told of each token where the request is for a stream.
        """
        asked, settings = request.asked, request.asked.settings
        ids, tokens = self.prompts.read(asked)
        if max(ids, default=0) >= self.vocabulary:
            said = f"the tokenizer has token {max(ids)}, and the model weights for {self.vocabulary}"
            raise Refusal(f"{said}; put the model's own tokenizer beside it", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        room = self.length - len(ids)
        if not ids or room < 1:
            said = f"the prompt must have from 1 to {self.length - 1} tokens, and has {len(ids)}"
            raise Refusal(f"{said}; send a shorter one", "messages", code="context_length_exceeded")
        stop = tuple(settings["stop"]) if "stop" in settings else self.sampling.stop
        limit = min(room, self.sampling.max_completion_length if asked.max_tokens is None else asked.max_tokens)
        drawn = {name: settings[name] for name in DRAWN_BY if name in settings}
        if "top_k" in drawn:
            drawn["top_k"] = max(0, int(drawn["top_k"]))
        seed = settings["seed"] if "seed" in settings else secrets.randbits(63)
        writing = Writing(self, asked, tokens, stop=stop, num_read=len(ids), has_logprobs=request.logprobs)
        choices = [Choice(writing, next(self.numbers), ids) for _ in range(request.choices)]
        answer = RunningAnswer(choices, hear, has_stop=bool(stop))
        answer.generation = Generation(
            Request(
                prompt_ids=ids,
                keys=tuple(sample_key(seed, "serve", "", 0, sample) for sample in range(request.choices)),
                limits=(limit,) * request.choices,
            ),
            # one limit and no stop strings, so that requests that are drawn alike are equal to the engine
            _as_drawn(replace(self.sampling, max_completion_length=self.length, stop=(), **drawn)),
            at_once=request.stream or bool(stop),
            hear=answer.take,
        )
        self.generations.add(answer.generation)
        return answer


def _as_drawn(sampling: Sampling) -> Sampling:
    """Return a sampling that can be computed: a temperature close to 0, by which logits would overflow, is 0."""
    return replace(sampling, temperature=0.0) if sampling.temperature < LEAST_TEMPERATURE else sampling


@dataclass(frozen=True)
class Writing:
    """What all choices of an answer are written by."""

    model: ServedModel
    asked: ModelRequest
    tokens: TurnTokens | None
    """None: plain text is continued."""
    stop: tuple[str, ...] = ()
    num_read: int = 0
    has_logprobs: bool = False

    @cached_property
    def reads_calls(self) -> bool:
        """True if a turn may hold calls."""
        return bool(self.asked.tools) and self.asked.reads_calls

    @cached_property
    def tells_pieces(self) -> bool:
        """True if text can be told before the turn has ended: where a call may be in it, only before one in tags."""
        return not self.reads_calls or (self.tokens is not None and self.tokens.call_format in IN_TAGS)

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Texts of which no part is told."""
        tags = () if self.tokens is None else TAGS
        return (*self.stop, *tags, *((OPEN_CALL,) if self.reads_calls else ()))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; special ones are kept where they may mark calls."""
        if not self.reads_calls or self.tokens is None:
            return texts_of(self.model.tokenizer, [ids])[0]
        return self.tokens.raw_text([token for token in ids if token not in self.model.end_tokens])


class RunningAnswer:
    """The answer to a request while it is sampled: one thread writes all answers, another one may wait for this one."""

    generation: Generation
    """What the engine samples for it."""

    def __init__(self, choices: Sequence["Choice"], hear: Hear | None, *, has_stop: bool) -> None:
        """`has_stop`: a text may end a choice, so that each token has to be looked at alone."""
        self._choices, self._hear, self._by_token = choices, hear, has_stop or hear is not None
        self.number = choices[0].number
        """Number that no other answer has."""
        self._left, self._ended = set(range(len(choices))), threading.Event()
        self._refusal: Refusal | None = None

    @property
    def turns(self) -> list[AgentTurn]:
        """The turns of the choices that have ended."""
        return [choice.turn for choice in self._choices if choice.turn is not None]

    @property
    def is_whole(self) -> bool:
        """True if all choices have ended."""
        return not self._left

    def take(self, news: Sequence[Sampled] | Refusal) -> None:
        """Go on with what was sampled, or end by why there is no more of it."""
        if self._ended.is_set():
            return
        told: Sequence[AnswerPart] | Refusal = news if isinstance(news, Refusal) else [*self._told(news)]
        if self._hear is not None and told:
            self._hear(self, told)
        if isinstance(news, Refusal):
            self._refusal = news
        if self.is_whole or self._refusal is not None:
            self._ended.set()

    def _told(self, news: Sequence[Sampled]) -> Iterator[AnswerPart]:
        for one in news if self._by_token else _joined(news):
            if one.sample not in self._left:
                continue  # sampled before the engine heard that a stop string had ended it
            choice = self._choices[one.sample]
            for piece in choice.add(one):
                yield one.sample, piece
            if choice.turn is not None:
                self._left.discard(one.sample)
                self.generation.end(one.sample)
                yield one.sample, choice.turn

    def wait(self, is_gone: Callable[[], bool]) -> list[AgentTurn]:
        """Wait for the turns of all choices; raises Refusal where the answer cannot be had.

        `is_gone` returns True if the client has left, for whom nothing needs to be sampled.
        """
        try:
            while not self._ended.wait(LOOK_SECONDS):
                if is_gone():
                    raise Refusal("the client has closed the connection", status=CLIENT_GONE)
        finally:
            self.generation.give_up()
        if self._refusal is not None:
            raise self._refusal
        return self.turns


class Choice:
    """One completion as its tokens come: its text, what of it has been told, and its turn at the end."""

    def __init__(self, writing: Writing, number: int, read_ids: tuple[int, ...]) -> None:
        self.number = number
        self.turn: AgentTurn | None = None
        """The turn once it has ended."""
        self._by, self._read_ids = writing, read_ids
        self._ids, self._logprobs = list[int](), list[float]()
        self._start = self._known = 0
        """Tokens from which a text is decoded, as one may look unlike behind others, and those whose text is known."""
        self._text, self._seen, self._told = "", 0, ""
        """Text up to now, characters of it that were looked at for what can be told, and what was told."""
        prefilled = writing.tokens is not None and writing.tokens.opens_thought
        self._thoughts = ThoughtReader(prefilled=prefilled)
        self._blanks = ""
        """Blanks that are told once something follows them."""
        self._reasoning_told = self._is_silent = False

    def add(self, one: Sampled) -> Iterator[dict[str, Any]]:
        """Take tokens; yields pieces of the message."""
        self._ids += one.token_ids
        self._logprobs += one.logprobs
        before = self._by.decode(self._ids[self._start : self._known])
        now = self._by.decode(self._ids[self._start :])
        is_last = one.finish_reason is not None
        if is_last or (len(now) > len(before) and not now.endswith(UNFINISHED)):
            self._start, self._known = self._known, len(self._ids)
            self._text += now[len(before) :]
        cut = _first(self._text, self._by.stop)
        if cut is not None:
            self._text = self._text[:cut]
        if is_last or cut is not None:
            reason: FinishReason = "stop" if cut is not None or one.finish_reason is None else one.finish_reason
            self.turn = self._ended(reason, is_cut=cut is not None)
            yield from self._rest(self.turn)
        elif self._by.tells_pieces:
            yield from self._tell()

    def _tell(self) -> Iterator[dict[str, Any]]:
        """Yield what can be told of text that nothing can change any more."""
        if self._is_silent:
            return
        new = self._text[self._seen :]
        call = new.find(OPEN_CALL) if self._by.reads_calls else -1
        self._is_silent = call >= 0
        part = new[:call] if self._is_silent else new[: len(new) - _held(new, self._by.marks)]
        self._seen += len(part)
        if self._by.tokens is None:
            said = part
        else:
            said = self._blanks + self._thoughts.visible(part)
            said = said if self._told else said.lstrip()
            kept = said.rstrip()
            self._blanks, said = said[len(kept) :], kept
        if said:
            if not self._told and self._by.tokens is not None:
                yield from self._reason(opening_thought(self._by.decode(self._ids)))
            self._told += said
            yield self._piece(said)

    def _reason(self, reasoning: str | None) -> Iterator[dict[str, Any]]:
        if reasoning is not None and not self._reasoning_told:
            self._reasoning_told = True
            yield {"role": "assistant", "reasoning_content": reasoning}

    def _piece(self, said: str) -> dict[str, Any]:
        return {"text": said} if self._by.tokens is None else {"role": "assistant", "content": said}

    def _rest(self, turn: AgentTurn) -> Iterator[dict[str, Any]]:
        """Yield what is left to tell of the content; calls are the turn's own to tell."""
        yield from self._reason(turn.reasoning)
        rest = turn.content[len(self._told) :] if turn.content.startswith(self._told) else ""
        if rest:
            self._told += rest
            yield self._piece(rest)

    def _ended(self, reason: FinishReason, *, is_cut: bool) -> AgentTurn:
        by, ids = self._by, self._ids
        text = texts_of(by.model.tokenizer, [ids])[0]
        text = text[: _first(text, by.stop)] if is_cut else text
        told = AgentTurn(
            number=self.number,
            text=text,
            content=text,
            finish_reason=reason,
            is_last=False,
            num_read=by.num_read,
            num_sampled=len(ids),
            read_ids=self._read_ids if by.asked.wants_ids else (),
            sampled_ids=tuple(ids) if by.asked.wants_ids else (),
            logprobs=tuple(zip(map(self._token, ids), self._logprobs, strict=True)) if by.has_logprobs else (),
        )
        if by.tokens is None:
            return told
        raw = by.tokens.raw_text(ids[:-1] if ids[-1] in by.tokens.stop_ids else ids)
        raw = raw[: _first(raw, by.stop)] if is_cut else raw
        parsed, reasoning = parsed_response(by.asked, by.tokens, raw=raw, text=text)
        calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in parsed.calls)
        return replace(told, content=parsed.content, calls=calls, malformed=parsed.malformed, reasoning=reasoning)

    def _token(self, token: int) -> str:
        return cast(str, self._by.model.tokenizer.decode([token]))


def _joined(news: Sequence[Sampled]) -> Iterator[Sampled]:
    """Yield what was sampled of each completion as one."""
    of_sample = dict[int, list[Sampled]]()
    for one in news:
        of_sample.setdefault(one.sample, []).append(one)
    for parts in of_sample.values():
        yield replace(
            parts[-1],
            token_ids=tuple(token for one in parts for token in one.token_ids),
            logprobs=tuple(logprob for one in parts for logprob in one.logprobs),
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
