"""Tokens between the turns of a conversation: what chat template and environment write behind what the model sampled.

Nothing that the model sampled is decoded and encoded again. Where a template rewrites earlier turns, a turn may instead
start a branch: a context of its own, rendered as a whole.
"""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from paceline.chat.call_records import CallFormat, calls_of
from paceline.chat.calls import parse_calls
from paceline.chat.escaping import LEFT_OUT, ChatTokenizer, PlainText
from paceline.chat.frames import (
    QUESTION,
    SAMPLED,
    ObservationRoles,
    Proof,
    bases,
    calling,
    described,
    failed,
    frame_of,
    prove_equal,
    said,
)
from paceline.chat.templates import chat_text, left_out, pinned_date, shape_of, takes_system, tool_format
from paceline.chat.thinking import CLOSE_THINK, OPEN_THINK, prefill, prefills_think
from paceline.chat.tools import with_call_ids
from paceline.errors import ConfigError, ModelError
from paceline.types import Message

OBSERVATIONS: tuple[ObservationRoles, ...] = (("user",), ("tool",), ("tool", "tool"))
"""Roles of the messages of usual observations: proven at the start, others when they first occur."""
KEPT_TOOLS = 64
"""Sets of tools whose tokens are kept: a program may ask with other tools in each request."""
THOUGHT = f"Is it four?\n{CLOSE_THINK}\n\n"

_PLAIN_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What the model reads between two of its turns."""

    ids: tuple[int, ...]
    """Tokens to append to the sampled ones, up to the start of the next turn; empty where appending is not defined."""
    messages: tuple[Message, ...]
    """The observation as it is read: harmless, cut, with the names and ids of its calls."""
    notes: tuple[str, ...]
    """What was done to the observation, each in a few words."""
    was_cut: bool
    """True if a message had more tokens than it may have."""


class TurnTokens:
    """The tokens between turns for one tokenizer, one set of tools, and one set of switches of the chat template.

    What that needs of the template is proven when it is made, see `frames.OBLIGATIONS`.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, object] = MappingProxyType({}),
        stop_ids: Iterable[int],
        history: Literal["auto", "append", "branch"] = "auto",
    ) -> None:
        """`tools` are JSON schemas, `switches` further arguments of the template, `stop_ids` tokens that end a turn,
        `history` is the option of that name.

        Raises:
            ModelError: the tokenizer has no chat template, neither appending nor rendering anew can be right, or calls
                cannot be read in the form in which the template writes them.
            ConfigError: `history` is `append`, and appending is not defined.
        """
        if tokenizer.chat_template is None:
            raise ModelError(
                "a conversation needs a chat template, and the model's tokenizer has none; use one that has"
            )
        # what others may change later: a prompt of the middle would show other tools than that of the start
        tools, switches = copy.deepcopy(list(tools)), copy.deepcopy(dict(switches))
        self._tokenizer, self._switches, self._history = tokenizer, switches, history
        self._with_tools = lru_cache(KEPT_TOOLS)(self._of_tools)
        self.plain = PlainText(tokenizer)
        """Reads what an environment says: `observed` does so, and what stands in a prompt is to be read so too."""
        self._tools = tool_format(tokenizer, [self.plain.read_message(tool)[0] for tool in tools], switches)
        self._hidden = dict[object, list[tuple[int, str]]]()
        self._names = {str(schema["function"]["name"]) for schema in tools}
        self.stop_ids = frozenset(stop_ids)
        added = tokenizer.added_tokens_decoder
        self._stops = [str(added[number].content) for number in sorted(self.stop_ids & added.keys())]
        self._proofs = dict[tuple[ObservationRoles, bool], Proof]()
        self._controls = dict[tuple[ObservationRoles, bool], Counter[int]]()
        self.shows_tools = self._tools is not None and self._tools.shows_tools
        """True: the template shows tools, calls and results; False: they are plain text within other messages."""
        self.call_format: CallFormat = self._call_format() if self.shows_tools else "hermes"
        """Form in which the model writes calls: that of the template, else the one that plain text asks for."""
        self.pinned: Mapping[str, str] = {} if (date := pinned_date(tokenizer)) is None else {"date": date}
        """What the template shows of the world outside, held fixed: part of the run's identity."""
        self.opens_thought = prefills_think(self.text([QUESTION]))
        """True if a prompt ends inside a thought, which the model goes on with."""
        self._check_tokenizer()
        systems = (False, True) if takes_system(tokenizer, switches) else (False,)
        observations = OBSERVATIONS[:1] if self._tools is None else OBSERVATIONS
        for roles in observations[:2]:
            for has_system in systems:
                self._check_shown(roles, has_system=has_system)
        proofs = [self._proof(roles, has_system=has_system) for roles in observations for has_system in systems]
        self.can_append = all(proof.frame is not None for proof in proofs)
        """True if appending is defined after every usual observation."""
        self.keeps_history = all(proof.keeps_history for proof in proofs)
        """True if appending gives the template's own rendering wherever the model wrote as the template does."""
        self.problem = next((proof.problem for proof in proofs if proof.problem is not None), None)
        """Obligation that fails and why, in a sentence; None: all hold."""
        self.branches = history != "append"
        """True if `rewritten` may start a branch."""
        if history == "append" and not self.can_append:
            raise ConfigError(
                f"--history append is not possible with this chat template: {self.problem}; use --history auto"
            )
        empty = [
            proof.frame.filled(said(roles, ["" for _ in roles]))
            for (roles, _), proof in self._proofs.items()
            if proof.frame is not None
        ]
        self.least = min((len(self.plain.encode(text)) - 1 for text in empty), default=1)
        """Tokens between two turns, at least, behind a turn that has ended with its end token."""

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> "TurnTokens":
        """Return those of another set of tools, proven when it first occurs; raises as `TurnTokens` does."""
        return self._with_tools(json.dumps(list(tools))) if tools else self

    def _of_tools(self, tools: str) -> "TurnTokens":
        return TurnTokens(
            self._tokenizer,
            tools=json.loads(tools),
            switches=self._switches,
            stop_ids=self.stop_ids,
            history=self._history,
        )

    def observed(
        self,
        sampled: Sequence[int],
        observation: Sequence[Message],
        *,
        message: Message,
        earlier: Sequence[Message],
        most: int | None,
    ) -> Observed:
        """Return what the model reads behind a turn. It costs the same however long the conversation is.

        Args:
            sampled: tokens of the turn. One without an end token (cut, or ended by a stop string) is given one.
            observation: messages of the environment; results are put in the order of their calls.
            message: the turn as it was read, with its calls.
            earlier: messages before the turn.
            most: tokens of one message, at most; None: any number.

        Raises:
            ConfigError: appending is not defined after messages of these roles, and `history` is `append`.
        """
        messages, notes, was_cut = list[Message](), list[str](), False
        for written in _in_order(message, observation):
            content, done, is_cut = self.plain.read(written["content"], most)
            messages.append({**written, "content": content} | self._name_of(written))
            notes += done
            was_cut |= is_cut
        key = tuple(str(written["role"]) for written in messages), _has_system(earlier)
        proof, ids = self._proof(key[0], has_system=key[1]), tuple[int, ...]()
        if proof.frame is None and self._history == "append":
            raise ConfigError(f"--history append is not possible: {proof.problem}; use --history auto")
        if proof.frame is not None:
            ids = self.plain.encode(proof.frame.filled(messages))
            if self.plain.controls(ids) != self._controls[key]:
                messages = [{**written, "content": LEFT_OUT} for written in messages]
                notes.append("an observation left out: it made up a control token together with the chat template")
                ids = self.plain.encode(proof.frame.filled(messages))
            ids = ids[1:] if sampled and sampled[-1] in self.stop_ids else ids
        return Observed(ids=ids, messages=tuple(messages), notes=tuple(notes), was_cut=was_cut)

    def rewritten(
        self, held: Sequence[int], observed: Sequence[int], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return the whole context of the next turn where it is not `held` followed by `observed`; None where it is.

        It is another one where appending is not defined, and where the template rewrites earlier turns and is to be
        followed. A text that the template leaves as it was sampled is never encoded again.
        """
        turn = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
        observation = messages[turn + 1 :]
        if self.proof(observation, earlier=messages).frame is None:
            return self.whole(messages)
        if self.appends(observation, earlier=messages):
            return None
        try:
            text = self.text(messages)
        except ModelError:
            return None  # the template has no rendering of its own, of two calls in one turn, say
        return None if self.raw_text([*held, *observed]) == text else self.plain.encode(text)

    def text(self, messages: Sequence[Message]) -> str:
        """Render a conversation up to the start of the next turn, as prompts with these tools are rendered.

        Raises:
            ModelError: the template refuses it.
        """
        return chat_text(self._tokenizer, messages, self._switches, self._tools)

    def whole(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of `text`.

        Raises:
            ModelError: the template refuses the messages, or does not show one of them.
        """
        shape = shape_of(messages)
        if shape not in self._hidden:
            self._hidden[shape] = left_out(self._tokenizer, messages, self._switches, self._tools)
        for index, key in self._hidden[shape]:
            if key == "tool_calls" or (key == "content" and "tool_calls" not in messages[index]):
                raise ModelError(
                    f"the model's chat template does not show the {key} of message {index + 1}, of the role "
                    f"{messages[index]['role']!r}, so the model would never read it; send it in another form"
                )
        return self.plain.encode(self.text(messages))

    def plain_prompt(self, text: str) -> tuple[int, ...]:
        """Return what the function of this name does."""
        return plain_prompt(self._tokenizer, text)

    def raw_text(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens kept and nothing tidied."""
        return self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    def appends(self, observation: Sequence[Message], *, earlier: Sequence[Message]) -> bool:
        """Return True if an observation of these roles never makes `rewritten` start a branch."""
        proof = self.proof(observation, earlier=earlier)
        return self._history == "append" or (
            self._history == "auto" and proof.frame is not None and proof.keeps_history
        )

    def proof(self, observation: Sequence[Message], *, earlier: Sequence[Message]) -> Proof:
        """Return what is proven of an observation of these roles, after these messages."""
        return self._proof(tuple(str(written["role"]) for written in observation), has_system=_has_system(earlier))

    def _name_of(self, message: Message) -> dict[str, object]:
        """Return the name to show: a tool that the model made up may have any name, and templates write it as it is."""
        name = message.get("name")
        if name is None or name in self._names or _PLAIN_NAME.fullmatch(str(name)):
            return {}
        return {"name": "unknown_tool"}

    def _call_format(self) -> CallFormat:
        """Return the form in which a call reads as it was when the template has written it."""
        roles: ObservationRoles = ("tool",)
        turn = calling(roles, SAMPLED[0], "", 1)
        before, whole = self.text([QUESTION]), self.text([QUESTION, turn, *said(roles, ["x"])])
        pairs = zip(before, whole, strict=False)
        same = next((at for at, (character, other) in enumerate(pairs) if character != other), len(before))
        written = whole[len(re.sub(r"<[^<>]*$", "", before[:same])) :]  # each may go on with a tag of its own
        written = written[: min((at for stop in self._stops if (at := written.find(stop)) >= 0), default=None)]
        forms: tuple[CallFormat, ...] = ("xml", "glm", "hermes", "deepseek", "kimi", "mistral", "llama", "openai")
        for form in forms:
            if list(parse_calls(written, form, prefilled=prefills_think(before)).calls) == calls_of(turn):
                return form
        raise ModelError(
            f"tools need a chat template that writes calls in a form that is read ({', '.join(forms)}), and this one "
            f"writes {written!r}; use a model of another family, or environments without tools"
        )

    def _check_tokenizer(self) -> None:
        """Hold template and tokenizer to what no other way of rendering can make up for."""
        encode, first = self.plain.encode, self.text([QUESTION])
        if not any(len(encode(stop)) == 1 for stop in self._stops):
            ids = ", ".join(map(str, sorted(self.stop_ids))) or "none"
            raise ModelError(failed(4, f"none of the engine's end tokens ({ids}) is an added token of the tokenizer"))
        bos = self._tokenizer.bos_token_id
        if bos is not None and encode(first)[:2] == (bos, bos):
            raise ModelError(failed(5, "the chat template and the tokenizer each write a start token"))
        if self.text([QUESTION]) != first:
            raise ModelError(failed(7, "the chat template renders one conversation in two ways"))
        if self.plain.controls(encode(LEFT_OUT)):
            raise ModelError(failed(8, "plain words are control tokens of the tokenizer"))

    def _check_shown(self, roles: ObservationRoles, *, has_system: bool) -> None:
        """Refuse a template that cannot show a turn and its observation in any way."""
        if (proof := self._proof(roles, has_system=has_system)).frame is not None:
            return
        observation = said(roles, ["paceline-answers-here-2d9a"])
        (sampled, *_), (base, *_) = SAMPLED, bases(has_system=has_system)
        turn = calling(roles, sampled, "", 1) if "tool" in roles else {"role": "assistant", "content": sampled}
        try:
            text = self.text([*base, turn, *observation])
            is_shown = sampled in text and str(observation[0]["content"]) in text
        except ModelError:
            is_shown = False
        if not is_shown:
            raise ModelError(f"{proof.problem}; no conversation can be held with this chat template")

    def _proof(self, roles: ObservationRoles, *, has_system: bool) -> Proof:
        if (known := self._proofs.get((roles, has_system))) is not None:
            return known
        try:
            frame = frame_of(self.text, roles, self._stops, has_system=has_system)
            ids = self.plain.encode(frame.filled(said(roles, ["x" for _ in roles])))
            if ids[0] not in self.stop_ids:
                raise ModelError(failed(2, "what follows the model's turn does not begin with an end token"))
            other = prove_equal(
                self.text, frame, self.plain.encode, roles, self._thoughts(roles), has_system=has_system
            )
            problem = None if other is None else failed(6, f"the chat template {other}")
            self._controls[roles, has_system] = self.plain.controls(ids)
        except ModelError as error:
            frame, problem = None, error.message
        if problem is not None:
            problem = f"{problem} (after {described(roles)}{', with a system message' if has_system else ''})"
        proof = Proof(frame=frame, keeps_history=problem is None, problem=problem)
        self._proofs[roles, has_system] = proof
        return proof

    def _thoughts(self, roles: ObservationRoles) -> list[str]:
        """Return beginnings of turns, without and with thinking, that a template may treat unlike one another."""
        if prefill(self.text([QUESTION])):
            return [THOUGHT]
        # only templates that know of thinking show text beside a call: it is no use to ask the others
        knows = CLOSE_THINK in str(self._tokenizer.chat_template)
        return ["", f"{OPEN_THINK}\n{THOUGHT}"] if knows or "tool" not in roles else [""]


def plain_prompt(tokenizer: ChatTokenizer, text: str) -> tuple[int, ...]:
    """Return the tokens of a prompt without a chat template, behind a start token where the model has one."""
    bos = tokenizer.bos_token
    ids = tokenizer([text], add_special_tokens=not (bos and text.startswith(bos)), verbose=False)
    return tuple(ids["input_ids"][0])


def _has_system(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0]["role"] == "system"


def _in_order(turn: Message, observation: Sequence[Message]) -> list[dict[str, object]]:
    """Return an observation with names and ids, its results in the order of the turn's calls."""
    asked, *numbered = with_call_ids([turn, *observation])
    calls = asked.get("tool_calls")
    positions = {call["id"]: index for index, call in enumerate(calls)} if isinstance(calls, list) else {}
    results = sorted(
        (written for written in numbered if written["role"] == "tool"),
        key=lambda written: positions.get(written["tool_call_id"], len(positions)),
    )
    return [results.pop(0) if written["role"] == "tool" else written for written in numbered]
