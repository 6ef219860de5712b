"""An episode's history: what the model reads before each turn, and how the turn is read.

An environment adds messages to the latest turn. A program sends whole requests (`ModelRequest`): one that goes on from
a turn, the latest or an earlier one, gets that turn's tokens as they are, and any other a context of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from paceline.chat.calls import ParsedTurn, assistant_message, parse_calls
from paceline.chat.requests import TurnContext, parsed_response, requested_context
from paceline.chat.thinking import opening_thought, prefills_think
from paceline.chat.turns import TurnTokens
from paceline.engines import Finished, Sampling
from paceline.environments import AgentTurn, EnvironmentSpec, ModelReply, ModelRequest, Observation, ToolCall
from paceline.environments.hosting import Outcome
from paceline.episodes.conversations import Conversations, EpisodeLimits
from paceline.episodes.waits import NextTurn
from paceline.errors import ConfigError, ModelError
from paceline.types import EpisodeEnd, Message, Span, SpanWriter, Task, Trajectory, Turn, tokens_of

Made = TypeVar("Made")


class EpisodeFailure(Exception):
    """The environment failed, or asked for what cannot be had; the text goes on from the environment's name."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        """Keep whether it failed by taking too long."""
        super().__init__(reason)
        self.timed_out = timed_out


class EpisodeChat:
    """One episode's history, and the limits that its next turn keeps."""

    def __init__(
        self, task: Task, spec: EnvironmentSpec | None, conversations: Conversations | None, sampling: Sampling
    ) -> None:
        """Start with the task's prompt; without `spec` there is one turn and no environment."""
        self._spec, self._conversations, self._sampling = spec, conversations, sampling
        self.prompt, self.prompt_ids, self.media = task.prompt, task.prompt_ids, task.media
        self.messages: tuple[Message, ...] = task.messages or ()
        """Messages up to now, those of the prompt included."""
        self.opening: tuple[Message, ...] | None = None
        """Messages of the prompt as the environment has begun them; None: it has added nothing."""
        self.request: ModelRequest | None = None
        """What the program asked for that holds the conversation; None: an environment observes turns."""
        self.is_cut = False
        """True if the latest turn was cut because the episode's tokens are used up."""
        self.failure: str | None = None
        self._spans = [Span(by="prompt", tokens=self.prompt_ids, media=self.media)]
        self._turns: list[Turn] = []
        self._read_before: list[tuple[Message, ...]] = []
        """Messages before each turn."""
        self._ids, self._used, self._room = self.prompt_ids, 0, sampling.max_completion_length
        """Context of the next turn, tokens of the episode so far, and tokens that the next turn may have for itself."""
        self._continues, self._is_done, self._is_last, self._turns_are_used_up = False, False, False, False
        self._notes: tuple[str, ...] = ()

    # --- the plot, in its order

    def begin(self, opening: str | Sequence[Message] | ModelRequest | None) -> None:
        """Take what the environment begins with: text for the prompt's last message, further messages, or a request.

        Text is read as text, whatever it holds: no control token comes of it.

        Raises:
            ConfigError: it begins with anything, and the prompt has images.
        """
        if opening and self.media:
            raise self._images_error(
                "adds to the prompt of a row that has images, and such a prompt is read as the row has it",
                "have the environment begin with nothing and say its first words in the rows' prompts",
            )
        if isinstance(opening, ModelRequest):
            self.request, self.opening = opening, opening.messages
            return
        if not opening:
            return
        plain = self._tokens_without_request.plain

        def read(content: object) -> str:
            text, notes, _ = plain.read(content, None)
            self._notes += notes
            return text

        if isinstance(opening, str):
            *before, last = self.messages
            self.messages = (*before, {**last, "content": f"{last['content']}{read(opening)}"})
        else:
            self.messages += tuple({**message, "content": read(message["content"])} for message in opening)
        self.opening = self.messages

    def open(self, *, adds_to_prompt: bool) -> None:
        """Make the first context; `adds_to_prompt`: an environment of the group has added to the prompt.

        Raises:
            EpisodeFailure: it is too long, or a program asked for what the chat template refuses.
            ConfigError: a program's tools alone make it too long.
        """
        if not adds_to_prompt:
            return
        self.prompt, context = self._shown(self._first_context)
        self._notes += context.notes
        self.prompt_ids = self._ids = context.ids
        self._spans = [Span(by="prompt", tokens=context.ids)]
        if self.request is not None:
            self.messages = self.opening = context.messages
        limit = self._limits.prompt_tokens
        if len(context.ids) > limit:
            self._check_tools(len(context.ids), limit)
            raise EpisodeFailure(
                f"makes a prompt of {len(context.ids)} tokens by its first message, above --max-prompt-length {limit}"
            )

    def next_turn(self) -> NextTurn:
        """Ask for the model's next turn, in the context that was made last."""
        return NextTurn(
            number=len(self._turns),
            prompt_ids=self._ids,
            media=self.media,
            limit=min(self._turn_limit, self._room),
            continues=self._continues,
        )

    def read(self, finished: Finished) -> AgentTurn:
        """Take a turn that has ended, and return what its environment is told of it."""
        limit, tokens, context = self._turn_limit, self._tokens, self._ids
        self._spans.append(Span(by="policy", tokens=finished.token_ids))
        self._read_before.append(self.messages)
        self._ids += finished.token_ids
        self._used += len(finished.token_ids)
        number, most = len(self._turns), self._limits.turns
        self._turns_are_used_up = most is not None and number + 1 >= most
        self._is_last = self._turns_are_used_up or self._left <= tokens.least
        is_full = finished.finish_reason == "length" and len(finished.token_ids) >= limit
        self.is_cut = is_full and self._left <= 0
        message, turn = self._read(finished, context, tokens)
        self._turns.append(Turn(finish_reason=finished.finish_reason, message=message, malformed=turn.malformed))
        self._note_unmet(limit)
        return turn

    def observe(self, observation: Observation, seconds: float) -> None:
        """Take what the environment says to the latest turn."""
        self._turns[-1] = replace(
            self._turns[-1],
            observation=observation.messages,
            reward=observation.reward,
            calls=observation.calls,
            failed_calls=observation.failed_calls,
            seconds=seconds,
        )
        self.request = observation.request
        self._is_done = observation.done

    @property
    def end(self) -> EpisodeEnd | None:
        """Why no turn can follow the latest one; None: one can."""
        if self.is_cut:
            return "length"
        if self._is_done:
            return "done"
        if self._is_last:
            return "max_turns" if self._turns_are_used_up else "length"
        return None

    def append(self) -> EpisodeEnd | None:
        """Make the context of the next turn; `length`: there is no room for it.

        Raises:
            EpisodeFailure: a program asked for what the chat template refuses.
            ConfigError: the context is written anew, and the prompt has images.
        """
        context = self._shown(self._next_context)
        if context is None:
            return "length"
        if self.media and context.ids[: len(self.prompt_ids)] != self.prompt_ids:
            raise self._images_error(
                "and the chat template write earlier turns anew, and behind a prompt with images turns can only follow",
                "give --history append, or a chat template that keeps earlier turns",
            )
        self._notes += context.notes
        observed, room = context.observed, self._limits.prompt_tokens + self._most - len(context.ids)
        if min(self._left - len(observed), room) < 1:
            return "length"
        self.messages = context.messages
        self._turns[-1] = replace(self._turns[-1], observation=context.observation)
        by: SpanWriter = "environment" if observed else "prompt"
        self._spans.append(Span(by=by, tokens=observed or context.ids, media=() if observed else self.media))
        self._used += len(observed)
        self._ids, self._room, self._continues = context.ids, room, bool(observed)
        return None

    def trajectory(self, end: EpisodeEnd, closed: Outcome) -> Trajectory:
        """Return the whole, with what the environment's end gave; the engine has yet to say what it sampled."""
        failure, reward = self.failure, None
        if failure is None:
            if closed.failure is not None:
                failure = f"environment {self._name!r} failed at its end: {closed.failure}"
                end = "timed_out" if closed.timed_out else "failed"
            else:
                rewards = [turn.reward for turn in self._turns if turn.reward is not None]
                reward = closed.value if closed.value is not None else sum(rewards) if rewards else None
        return Trajectory(
            spans=tuple(self._spans),
            finish_reason="length" if end == "length" else "stop",
            text="",
            policy_version=0,
            environment=self._name,
            turns=tuple(self._turns),
            end=end,
            reward=reward,
            failure=failure,
            notes=self._notes,
            printed=closed.printed,
        )

    # --- limits

    @property
    def _limits(self) -> EpisodeLimits:
        assert self._conversations is not None
        return self._conversations.limits

    @property
    def _most(self) -> int:
        return self._sampling.max_completion_length

    @property
    def _left(self) -> int:
        return self._most - self._used

    @property
    def _turn_limit(self) -> int:
        of_turn = self._limits.turn_tokens if self._spec is not None else None
        requested = None if self.request is None else self.request.max_tokens
        return min(limit for limit in (self._left, of_turn, requested) if limit is not None)

    # --- contexts

    def _images_error(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(f"environment {self._name!r} {problem}", remedies=[remedy])

    @property
    def _name(self) -> str:
        assert self._spec is not None
        return self._spec.name

    @property
    def _tokens_without_request(self) -> TurnTokens:
        assert self._conversations is not None
        return self._conversations.tokens[self._name]

    @property
    def _tokens(self) -> TurnTokens:
        """Tokens between turns, with the tools of the program's request.

        Raises:
            ModelError, ConfigError: the chat template cannot hold a conversation with these tools.
        """
        tokens = self._tokens_without_request
        return tokens if self.request is None else tokens.with_tools(self.request.tools)

    def _shown(self, make: Callable[[TurnTokens], Made]) -> Made:
        """Make a context; a program that asks for one which the chat template refuses has failed, not the run."""
        try:
            return make(self._tokens)
        except (ModelError, ConfigError) as error:
            if self.request is None:
                raise
            raise EpisodeFailure(f"asked for what the model cannot be shown: {error.message}") from error

    def _first_context(self, tokens: TurnTokens) -> tuple[str, TurnContext]:
        """Return the prompt as the environment has begun it, as text too."""
        if (request := self.request) is not None:
            context = requested_context(request, tokens)
            return request.text or tokens.text(context.messages), context
        text = tokens.text(self.messages)
        return text, TurnContext(ids=tokens.plain.encode(text), messages=self.messages, observation=(), notes=())

    def _check_tools(self, length: int, limit: int) -> None:
        """Refuse a program whose tools make its prompt of `length` tokens too long: every episode would fail."""
        if self.request is None or not self.request.tools:
            return
        bare = len(self._first_context(self._tokens_without_request)[1].ids)
        if bare <= limit:
            raise ConfigError(
                f"environment {self._name!r} makes a prompt of {length} tokens, of which {length - bare} are its "
                f"tools, above --max-prompt-length {limit}",
                remedies=["raise --max-prompt-length", "give the agent fewer tools, with shorter descriptions"],
            )

    def _next_context(self, tokens: TurnTokens) -> TurnContext | None:
        """Return the context behind the turns so far; None: its messages are longer than may be."""
        request, latest = self.request, len(self._turns) - 1
        if request is not None and request.after is None:
            return requested_context(request, tokens)
        after = latest if request is None or request.after is None else request.after
        if not 0 <= after <= latest:
            raise ModelError(f"a request goes on from turn {after}, and the turns are 0 to {latest}; name one of them")
        turn, earlier = self._turns[after], self._read_before[after]
        messages = turn.observation if request is None else request.messages
        context, sampled = self._context_with(after)
        # a message longer than all there is room for is not encoded; a branch may leave out what came before
        appends = after == latest and tokens.appends(messages, earlier=earlier)
        of_message = self._limits.message_tokens
        most = self._left if appends else self._limits.prompt_tokens + self._most
        is_bounded = of_message is not None and of_message <= most
        observed = tokens.observed(
            sampled, messages, message=turn.message, earlier=earlier, most=of_message if is_bounded else most
        )
        if observed.was_cut and not is_bounded:
            return None
        messages = (*earlier, turn.message, *observed.messages)
        whole = tokens.rewritten(context, observed.ids, messages) if tokens.branches else None
        return TurnContext(
            ids=context + observed.ids if whole is None else whole,
            observed=observed.ids if whole is None and after == latest else (),
            messages=messages,
            observation=observed.messages,
            notes=observed.notes,
        )

    def _context_with(self, turn: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what the model had read and sampled by the end of a turn, and what it sampled in it."""
        of_policy = [index for index, span in enumerate(self._spans) if span.by == "policy"]
        end = of_policy[turn]
        if turn == len(of_policy) - 1:
            return self._ids, self._spans[end].tokens
        start = max(index for index in range(end) if self._spans[index].by == "prompt")
        return tokens_of(self._spans[start : end + 1]), self._spans[end].tokens

    # --- turns

    def _read(self, finished: Finished, context: tuple[int, ...], tokens: TurnTokens) -> tuple[Message, AgentTurn]:
        """Return the message of a turn, and what its environment is told of it.

        Calls are read where the model was shown tools. To a program its thinking is told apart.
        """
        request, spec = self.request, self._spec
        assert spec is not None
        sampled = finished.token_ids
        kind: Callable[..., AgentTurn] = AgentTurn
        ends = bool(sampled) and sampled[-1] in tokens.stop_ids
        raw = tokens.raw_text(sampled[:-1] if ends else sampled) if spec.tools or request is not None else ""
        parsed, reasoning = ParsedTurn(content=finished.text), opening_thought(raw)
        if request is not None:
            parsed, reasoning = parsed_response(request, tokens, raw=raw, text=finished.text)
            read = context if request.wants_ids else ()
            kind = partial(ModelReply, reasoning=reasoning, num_read=len(context), read_ids=read, sampled_ids=sampled)
        elif spec.tools:
            prefilled = prefills_think(self.prompt)
            parsed = parse_calls(raw, tokens.call_format, prefilled=prefilled, tools=spec.tools)
        turn = kind(
            number=len(self._turns),
            text=finished.text,
            content=parsed.content,
            calls=tuple(ToolCall(name=name, arguments=arguments) for name, arguments in parsed.calls),
            malformed=parsed.malformed,
            finish_reason=finished.finish_reason,
            is_last=self._is_last,
        )
        return assistant_message(parsed, reasoning=reasoning), turn

    def _note_unmet(self, limit: int) -> None:
        """Note once, by name, what a program asks for and does not get: the run's sampling and limits hold."""
        request, sampling = self.request, self._sampling
        if request is None:
            return
        held = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop),
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "seed": "the run's own",
        }
        unmet = {
            name: f"{name} {_written(value)} was asked for, and is "
            + (f"{_written(held[name])} here" if name in held else "not known here")
            for name, value in request.settings.items()
            if name not in held or value != held[name]
        }
        if request.max_tokens is not None and request.max_tokens > limit:
            unmet["max_tokens"] = "max_tokens was held to the tokens that are left"
        noted = {note.partition(" ")[0] for note in self._notes}
        self._notes += tuple(note for name, note in unmet.items() if name not in noted)


def _written(value: Any) -> str:
    return (", ".join(map(repr, value)) or "none") if isinstance(value, list | tuple) else f"{value}"
