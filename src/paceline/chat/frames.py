"""What a chat template writes between two turns of the model, and the proofs that it may be appended to sampled tokens.

A frame is cut out of a rendering: it starts with the end token behind the model's turn and ends where the next turn
starts. It has places for what an environment says. Nine obligations make appending it exact; none is taken on trust.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paceline.chat.tools import CALL_ID_LENGTH
from paceline.errors import ModelError
from paceline.types import Message

OBLIGATIONS = (
    "independence", "split", "survival", "stops", "prefix", "equality", "time", "data", "growth",
)  # fmt: skip
"""Obligations by number, from 1: (1) the frame depends on nothing before it; (2) it begins with an added token, where
encoding splits; (3) what is said comes back in the text; (4) the template's end token ends a turn of the engine; (5) a
prompt starts as the model expects; (6) what is appended equals the template's own rendering; (7) no clock; (8) what is
said cannot make a control token; (9) a context only grows."""

Render = Callable[[Sequence[Message]], str]
"""Renders messages up to the start of the next turn; raises ModelError where the template refuses them."""
Encode = Callable[[str], tuple[int, ...]]
ObservationRoles = tuple[str, ...]

SAMPLED = ("paceline-sampled-here-4c7e", "Zwölf Boxkämpfer; 12 x 3")
"""Unlike contents of the model's turn, which no template has."""
QUESTION: Message = {"role": "user", "content": "How many?"}
SYSTEMS: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "system", "content": "Rate it: 7"})
TALK: tuple[Message, ...] = (
    QUESTION, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"},
)  # fmt: skip
PROBE = ' \t"q\\u é<&>\n'
"""Content that shows how a template writes content: as it is, trimmed, or as JSON."""

WRITERS: tuple[Callable[[str], str], ...] = (
    str,
    str.strip,
    str.rstrip,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
)


def failed(number: int, why: str) -> str:
    """Name an obligation that does not hold, and why.

    >>> failed(2, "it begins with a space")
    'obligation 2 (split): it begins with a space'
    """
    return f"obligation {number} ({OBLIGATIONS[number - 1]}): {why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """Text between two turns of the model, in pieces with a place between each two of them."""

    pieces: tuple[str, ...]
    places: tuple[tuple[str, int], ...]
    """Field (`content`, `name` or `tool_call_id`) and index of the message whose text is between two pieces."""
    writers: tuple[Callable[[str], str], ...]
    """How the template writes the content of each message."""

    def filled(self, observation: Sequence[Message]) -> str:
        """Return the text with what an environment says."""
        parts = [self.pieces[0]]
        for (field, index), piece in zip(self.places, self.pieces[1:], strict=True):
            text = str(observation[index][field])
            parts += [self.writers[index](text) if field == "content" else text, piece]
        return "".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What is proven of an observation's messages of certain roles, after a prompt with or without a system message."""

    frame: Frame | None
    """What to append; None: appending is not defined."""
    keeps_history: bool
    """True: appending gives the template's own rendering wherever the model wrote its turn as the template does."""
    problem: str | None
    """Obligation that fails, and why; None: all hold."""


def said(roles: ObservationRoles, contents: Sequence[str], *, name: str = "lookup{}") -> list[Message]:
    """Return an observation of these roles, with the ids that `calling` gives."""
    return [
        {"role": role, "content": content}
        | ({"name": name.format(index), "tool_call_id": _id(index)} if role == "tool" else {})
        for index, (role, content) in enumerate(zip(roles, contents, strict=True))
    ]


def described(roles: ObservationRoles) -> str:
    """Return words for an observation of these roles.

    >>> described(("user",)), described(("tool", "tool")), described(("tool", "user"))
    ('a user message', '2 tool results', 'messages of the roles tool, user')
    """
    if not roles:
        return "an empty observation"
    if set(roles) == {"tool"}:
        return "a tool result" if len(roles) == 1 else f"{len(roles)} tool results"
    return f"a {roles[0]} message" if len(roles) == 1 else f"messages of the roles {', '.join(roles)}"


def _id(index: int) -> str:
    return f"pcl{index:0{CALL_ID_LENGTH - 3}d}"


def calling(roles: ObservationRoles, argument: str, content: str, calls: int) -> Message:
    """Return a turn of the model that calls as many tools as there are results."""
    places = [index for index, role in enumerate(roles) if role == "tool"][:calls]
    made = [
        {"id": _id(index), "type": "function", "function": {"name": f"lookup{index}", "arguments": {"key": argument}}}
        for index in places
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def _turns(roles: ObservationRoles, sampled: str) -> Iterator[list[Message]]:
    """Turns of the model before an observation of these roles, by preference: some templates take one call alone."""
    if "tool" not in roles:
        yield [{"role": "assistant", "content": sampled}]
        return
    count = roles.count("tool")
    for calls in dict.fromkeys((count, 1)):
        yield [calling(roles, sampled, content, calls) for content in ("", "Let me see.")]


def bases(*, has_system: bool) -> list[list[Message]]:
    """Unlike conversations before a turn of the model."""
    systems = [[system] for system in SYSTEMS] if has_system else [[]]
    return [[*system, *talk] for system in systems for talk in ((QUESTION,), TALK)]


def frame_of(render: Render, roles: ObservationRoles, stops: Sequence[str], *, has_system: bool) -> Frame:
    """Cut the frame of an observation of these roles out of the template's renderings.

    `stops` are the texts of end tokens.

    Raises:
        ModelError: the template refuses such an observation, or obligation 1, 3 or 4 does not hold.
    """
    marked = said(roles, [f"pacelinecontent{index:05d}" for index in range(len(roles))], name="pacelinename{:05d}")
    starts = bases(has_system=has_system)
    tails = [tail for sampled in SAMPLED for base in starts for tail in _tails(render, stops, sampled, base, marked)]
    if not tails:
        raise ModelError(failed(3, "the chat template refuses such an observation"))
    if len(set(tails)) > 1:
        raise ModelError(failed(1, "what the chat template writes after a turn depends on what stands before it"))
    names = {str(message[field]): (field, index) for index, message in enumerate(marked)
             for field in ("content", "name", "tool_call_id") if field in message}  # fmt: skip
    pieces = re.split(f"({'|'.join(names)})", tails[0]) if names else [tails[0]]
    places = tuple(names[mark] for mark in pieces[1::2])
    contents = [index for field, index in places if field == "content"]
    if contents != list(range(len(roles))):
        raise ModelError(failed(3, "the chat template does not show each message once"))
    # one message at a time: what is trimmed as a whole is trimmed at the ends of its parts
    frame = Frame(pieces=tuple(pieces[::2]), places=places, writers=(str,) * len(roles))
    for index in range(len(roles)):
        probed = said(roles, [PROBE if at == index else "x" for at in range(len(roles))])
        wanted = _tails(render, stops, SAMPLED[0], starts[0], probed)
        frames = [_written(frame, index, writer) for writer in WRITERS]
        right = [frame for frame in frames if frame.filled(probed) in wanted]
        if not right:
            raise ModelError(failed(3, "the chat template writes content neither as it is, nor trimmed, nor as JSON"))
        frame = right[0]
    return frame


def _written(frame: Frame, index: int, writer: Callable[[str], str]) -> Frame:
    return replace(frame, writers=(*frame.writers[:index], writer, *frame.writers[index + 1 :]))


def _tails(
    render: Render, stops: Sequence[str], sampled: str, base: Sequence[Message], observation: Sequence[Message]
) -> list[str]:
    """What follows the model's turn, for turns with and without text beside their calls; none where it is refused."""
    for turns in _turns(tuple(str(message["role"]) for message in observation), sampled):
        tails = list[str]()
        for turn in turns:
            try:
                text = render([*base, turn, *observation])
            except ModelError:
                continue
            start = text.rfind(sampled)
            if start < 0:
                raise ModelError(failed(3, "the chat template does not show the model's own turn"))
            ends = [at for stop in stops if (at := text.find(stop, start + len(sampled))) >= 0]
            if not ends:
                raise ModelError(failed(4, "the chat template ends the model's turn with no end token of the engine"))
            tails.append(text[min(ends) :])
        if tails:
            return tails
    return []


def prove_equal(
    render: Render, frame: Frame, encode: Encode, roles: ObservationRoles, thoughts: Sequence[str], *, has_system: bool
) -> str | None:
    """Hold appending to the template's own rendering over two turns; return how that differs, None if it does not.

    `thoughts`: beginnings of the model's turn, of thinking or empty.
    """
    observation, base = said(roles, ["Four." for _ in roles]), bases(has_system=has_system)[0]
    for thought in thoughts:
        if "tool" in roles:
            turn = calling(roles, "x", thought, roles.count("tool"))
        else:
            turn = {"role": "assistant", "content": f"{thought}Yes."}
        texts, messages = list[str](), list(base)
        try:
            texts.append(render(messages))
            for _ in range(2):
                messages += [turn, *observation]
                texts.append(render(messages))
        except ModelError:  # the template has no rendering of its own for this
            return None
        for before, after in pairwise(texts):
            problem = _difference(before, after, frame.filled(observation), turn, thought)
            ids, end = encode(after), encode(frame.filled(observation))
            if problem is None and ids[len(ids) - len(end) :] != end:
                problem = "writes what is encoded otherwise as a whole than in parts"
            if problem is not None:
                return problem
    return None


def _difference(before: str, after: str, glue: str, turn: Message, thought: str) -> str | None:
    """How a rendering of one more turn differs from the one before it with the turn and its observation appended."""
    without_thinking = f"takes the {'' if thought else 'empty block of '}thinking out of earlier turns"
    if not after.startswith(before):
        same = next(
            at for at, (character, other) in enumerate(zip(before, f"{after}\0", strict=False)) if character != other
        )
        if "<think>" in before[max(0, same - 7) : same + 7]:
            return without_thinking
        return (
            "writes the start of a conversation anew after each turn: tools or a system message move, or are left out"
        )
    if not after.endswith(glue) or len(before) + len(glue) > len(after):
        return "ends the model's turn otherwise than it is sampled"
    middle = after[len(before) : len(after) - len(glue)]
    is_whole = middle.startswith(thought) if "tool_calls" in turn else middle == turn["content"]
    return None if is_whole else without_thinking if thought else "writes the model's turn otherwise than it is sampled"
