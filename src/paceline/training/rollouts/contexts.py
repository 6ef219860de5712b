"""What the model reads before a turn, and how its turn is read, whoever holds the conversation.

An environment adds messages to the latest turn. A program sends whole requests (`ModelRequest`): one that goes on from
a turn, the latest or an earlier one, gets that turn's tokens as they are, and any other a context of its own.
"""

from dataclasses import dataclass, replace
from typing import Any

from paceline.chat.calls import ParsedTurn, assistant_message, parse_calls
from paceline.chat.requests import AgentTurn, ModelRequest, ToolCall, context_of, parsed_turn
from paceline.chat.thinking import opening_thought, prefills_think
from paceline.chat.turns import TurnTokens
from paceline.engines import Finished, Sampling
from paceline.errors import ConfigError, ModelError
from paceline.training.rollouts.conversations import EpisodeLimits
from paceline.training.rollouts.episodes import RunningEpisode
from paceline.types import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnContext:
    """What the model reads before a turn."""

    ids: tuple[int, ...]
    """All tokens of it."""
    given: tuple[int, ...] = ()
    """Those behind the latest turn, which it goes on from; empty: the context is one of its own."""
    messages: tuple[Message, ...]
    """All messages of it, as they are read."""
    answer: tuple[Message, ...]
    """Those among them that were added."""
    notes: tuple[str, ...]
    """What was done to these, each in a few words."""


def requested_context(request: ModelRequest, tokens: TurnTokens) -> TurnContext:
    """Return the context of a request that goes on from no turn.

    Raises:
        ModelError: the chat template refuses its messages.
    """
    ids, messages, notes = context_of(request, tokens)
    return TurnContext(ids=ids, messages=messages, answer=messages, notes=notes)


def first_context(episode: RunningEpisode, tokens: TurnTokens) -> tuple[str, TurnContext]:
    """Return the prompt of an episode as its environment has begun it, as text too; raises as `requested_context`."""
    if (request := episode.request) is not None:
        asked = requested_context(request, tokens)
        return request.text or tokens.text(asked.messages), asked
    text, said = tokens.text(episode.messages), episode.messages
    return text, TurnContext(ids=tokens.plain.encode(text), messages=said, answer=(), notes=())


def check_tools(episode: RunningEpisode, tokens: TurnTokens, length: int, limit: int) -> None:
    """Refuse a program whose tools make its prompt of `length` tokens too long: every episode would fail.

    `tokens` are those without its tools.

    Raises:
        ConfigError: without them the prompt would have at most `limit` tokens.
    """
    if episode.request is None or not episode.request.tools:
        return
    bare = len(first_context(episode, tokens)[1].ids)
    if bare <= limit:
        raise ConfigError(
            f"environment {episode.name!r} makes a prompt of {length} tokens, of which {length - bare} are its tools, "
            f"above --max-prompt-length {limit}",
            remedies=["raise --max-prompt-length", "give the agent fewer tools, with shorter descriptions"],
        )


def next_context(
    episode: RunningEpisode, tokens: TurnTokens, limits: EpisodeLimits, max_completion_length: int
) -> TurnContext | None:
    """Return the context of the turn that follows those of an episode; None: its messages are longer than may be.

    Raises:
        ModelError: the chat template refuses the messages of a program's request.
    """
    request, latest, total = episode.request, len(episode.turns) - 1, max_completion_length
    if request is not None and request.after is None:
        return requested_context(request, tokens)
    after = latest if request is None or request.after is None else request.after
    if not 0 <= after <= latest:
        raise ModelError(f"a request goes on from turn {after}, and the turns are 0 to {latest}; name one of them")
    turn, earlier = episode.turns[after], episode.read[after]
    answer, held = turn.answer if request is None else request.messages, episode.held_after(after)
    # a message longer than all there is room for is not encoded; a branch may leave out what came before
    appends = after == latest and tokens.appends(answer, earlier=earlier)
    own, most = limits.message_tokens, total - episode.used if appends else limits.prompt_tokens + total
    is_own = own is not None and own <= most
    said = tokens.observed(
        episode.sampled[after], answer, message=turn.message, earlier=earlier, most=own if is_own else most
    )
    if said.was_cut and not is_own:
        return None
    messages = (*earlier, turn.message, *said.messages)
    whole = tokens.rewritten(held, said.ids, messages) if tokens.branches else None
    return TurnContext(
        ids=held + said.ids if whole is None else whole,
        given=said.ids if whole is None and after == latest else (),
        messages=messages,
        answer=said.messages,
        notes=said.notes,
    )


def read_turn(one: Finished, episode: RunningEpisode, tokens: TurnTokens) -> tuple[Message, AgentTurn]:
    """Return the message of a turn that has ended, and what its environment is told of it.

    Calls are read where the model was shown tools. To a program its thinking is told apart.
    """
    request, spec = episode.request, episode.spec
    assert spec is not None
    told = AgentTurn(
        number=len(episode.turns),
        text=one.text,
        content=one.text,
        finish_reason=one.finish_reason,
        is_last=episode.is_last,
    )
    ends = bool(one.token_ids) and one.token_ids[-1] in tokens.stop_ids
    raw = tokens.raw_text(one.token_ids[:-1] if ends else one.token_ids) if spec.tools or request is not None else ""
    parsed, reasoning = ParsedTurn(content=one.text), opening_thought(raw)
    if request is not None:
        parsed, reasoning = parsed_turn(request, tokens, raw=raw, text=one.text)
    elif spec.tools:
        prefilled = prefills_think(episode.group.task.prompt)
        parsed = parse_calls(raw, tokens.call_format, prefilled=prefilled, tools=spec.tools)
    calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in parsed.calls)
    told = replace(told, content=parsed.content, calls=calls, malformed=parsed.malformed)
    if request is not None:
        read = episode.held[: len(episode.held) - len(one.token_ids)]
        told = replace(
            told,
            reasoning=reasoning,
            num_read=len(read),
            num_sampled=len(one.token_ids),
            read_ids=read if request.wants_ids else (),
            sampled_ids=one.token_ids if request.wants_ids else (),
        )
    return assistant_message(parsed, reasoning=reasoning), told


def note_unmet(episode: RunningEpisode, sampling: Sampling, limit: int) -> None:
    """Note once, by name, what a program's request asks for and does not get: the run's sampling and limits hold."""
    request = episode.request
    if request is None:
        return
    own = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop),
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "seed": "the run's own",
    }
    found = {
        name: f"{name} {_shown(value)} was asked for, and is {_shown(own[name]) if name in own else 'not known'} here"
        for name, value in request.settings.items()
        if name not in own or value != own[name]
    }
    if request.max_tokens is not None and request.max_tokens > limit:
        found["max_tokens"] = "max_tokens was held to the tokens that are left"
    known = {note.partition(" ")[0] for note in episode.notes}
    episode.notes += tuple(note for name, note in found.items() if name not in known)


def _shown(value: Any) -> str:
    return (", ".join(map(repr, value)) or "none") if isinstance(value, list | tuple) else f"{value}"
