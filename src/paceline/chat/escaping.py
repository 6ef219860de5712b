"""What an environment says is data: it is read as text, whatever it holds, and within a limit of tokens."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from paceline.chat.templates import Tokenizer
from paceline.types import Message

LEFT_OUT = "(left out: this text could not be made harmless)"
ROUNDS = 8
"""Attempts to make a text harmless: what is left of one token may be part of another."""
LONGEST_TOKEN = 64
"""Characters of a token, at most, when a long text is cut: what lies beyond as many tokens is not looked at."""
SHORT, KEPT = 200, 2048
"""Characters of a text whose tokens are kept, and how many: frames and verdicts come again, long results do not."""

_UNREADABLE = re.compile("[\0\ud800-\udfff]")


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer with what conversations need beside prompts."""

    added_tokens_decoder: Mapping[int, Any]
    """Tokens beside the vocabulary's by id, with `content` and `special`."""

    def __call__(
        self, text: list[str], *, add_special_tokens: bool, verbose: bool, return_offsets_mapping: bool = False
    ) -> dict[str, Any]:
        """Return `input_ids` and, if asked for, `offset_mapping`: where each token's characters start and end."""

    def decode(self, token_ids: list[int], *, clean_up_tokenization_spaces: bool = False) -> str:
        """Return the text of token ids, special tokens kept."""


class PlainText:
    """Encodes text, and makes text of others harmless: no control token comes of it."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = {
            number: str(token.content)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special or _is_markup(str(token.content))
        }
        self._encode_short = lru_cache(KEPT)(self._encode)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text that holds its own control tokens."""
        return self._encode_short(text) if len(text) <= SHORT else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer([text], add_special_tokens=False, verbose=False)["input_ids"][0])

    def controls(self, ids: Sequence[int]) -> Counter[int]:
        """Count each control token: the special ones, and added ones that are marks and not words."""
        return Counter(number for number in ids if number in self._control)

    def read(self, content: object, most: int | None) -> tuple[str, tuple[str, ...], bool]:
        """Return content as the model reads it, what was done to it, and whether it was cut.

        NULs and halves of surrogate pairs go; a blank behind its first character makes a control token plain; of more
        than `most` tokens those at the start stay, with a mark that says so.
        """
        text, notes = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), list[str]()
        readable = _UNREADABLE.sub("", text)
        if len(readable) < len(text):
            notes.append(f"left out of an observation: {len(text) - len(readable)} NULs or halves of surrogate pairs")
        seen = readable if most is None else readable[: most * LONGEST_TOKEN]
        plain, made_plain, count = self._harmless(seen)
        if made_plain:
            notes.append(f"control tokens in an observation made plain text: {', '.join(made_plain)}")
        unseen = len(readable) - len(seen)
        kept = plain if most is None or (count <= most and not unseen) else self._within(plain, most, unseen)
        if was_cut := kept != plain or unseen > 0:
            notes.append(f"an observation of {len(readable)} characters cut at {most} tokens")
        return kept, tuple(notes), was_cut

    def read_message(self, message: Message) -> tuple[Message, tuple[str, ...]]:
        """Return a message as the model reads it, with calls whose names and arguments are read so too, and notes."""
        notes = dict[str, None]()

        def read(value: Any) -> Any:
            if isinstance(value, str):
                text, done, _ = self.read(value, None)
                notes.update(dict.fromkeys(done))
                return text
            if isinstance(value, Mapping):
                return {read(key): read(inner) for key, inner in value.items()}
            return [read(inner) for inner in value] if isinstance(value, list) else value

        return {key: read(value) for key, value in message.items()}, tuple(notes)

    def _harmless(self, text: str) -> tuple[str, list[str], int]:
        """Return the text, the control tokens that were in it, and the number of its tokens."""
        made_plain = set[str]()
        for _ in range(ROUNDS):
            ids = self.encode(text)
            controls = {self._control[number] for number in self.controls(ids)}
            if not controls:
                return text, sorted(made_plain), len(ids)
            made_plain |= controls
            for token in sorted(controls):
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return LEFT_OUT, sorted(made_plain), len(self.encode(LEFT_OUT))

    def _within(self, text: str, most: int, unseen: int) -> str:
        """Return as much of the text's start as fits within `most` tokens with a mark behind it.

        `unseen`: characters that follow it.
        """
        encoded = self._tokenizer([text], add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        spans = encoded["offset_mapping"][0]
        for mark in ("\n[cut: {} more characters]", "[cut]", ""):
            room = most - len(self.encode(mark.format(len(text) + unseen)))
            for kept in range(min(room, len(spans)), -1, -1):
                end = spans[kept - 1][1] if kept else 0
                if kept < len(spans) and spans[kept][0] < end:
                    continue  # a border within a character
                shortened = text[:end] + mark.format(len(text) - end + unseen)
                if len(self.encode(shortened)) <= most:
                    return shortened
        return ""


def _is_markup(text: str) -> bool:
    """Return True for an added token such as `<tool_call>`; words and runs of blanks that were added are plain text."""
    return bool(re.fullmatch(r"[^\w\s].*\w.*[^\w\s]", text))
