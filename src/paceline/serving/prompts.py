"""From a request to the tokens of its prompt, refused where they can have no room before anything is rendered."""

import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import cast

from transformers import PreTrainedTokenizerBase

from paceline.chat.escaping import ChatTokenizer
from paceline.chat.turns import TurnTokens, plain_prompt
from paceline.environments import ModelRequest
from paceline.environments.endpoint.requests import Refusal
from paceline.episodes.contexts import requested_context
from paceline.errors import ConfigError, ModelError

TOOLS_SHARE = 2
"""Tools whose JSON has more tokens than this many prompts are refused: a template may show less than all of it."""


class PromptReader:
    """Makes prompts for any number of threads."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, tokens: TurnTokens | None, *, problem: str, length: int
    ) -> None:
        """`tokens`: None where the model can hold no conversation, and `problem` says why; `length` is the number of
        tokens of a prompt and its answer, at most."""
        self._tokenizer, self._tokens, self._problem, self._length = tokenizer, tokens, problem, length
        self._most_characters = length * max(map(len, tokenizer.get_vocab()), default=1)
        self._rendering, self._proving = threading.Lock(), threading.Lock()
        """Held while a prompt is made, as what renders it keeps what it has rendered; and while the template is tried
        with new tools, which takes longer, so that other requests do not wait."""

    def read(self, asked: ModelRequest) -> tuple[tuple[int, ...], TurnTokens | None]:
        """Return the tokens of a prompt, and what reads its answer; raises Refusal."""
        tools = json.dumps(asked.tools) if asked.tools else ""
        characters = len(asked.text or "") + len(tools) + _characters(asked.messages)
        if len(asked.messages) > self._length or characters > self._most_characters:
            said = f"the prompt is longer than the {self._length} tokens that there is room for"
            raise Refusal(f"{said}; send a shorter one", "messages", code="context_length_exceeded")
        if asked.text is not None:
            with self._rendering:
                return plain_prompt(cast(ChatTokenizer, self._tokenizer), asked.text), None
        if self._tokens is None:
            raise Refusal(f"{self._problem}; ask /v1/completions", "messages")
        if tools:
            self._refuse_long_tools(tools)
        try:
            with self._proving if tools else nullcontext():
                tokens = self._tokens.with_tools(asked.tools)
            with self._rendering:
                return requested_context(asked, tokens).ids, tokens
        except (ConfigError, ModelError) as error:
            raise Refusal(str(error), "messages") from error

    def _refuse_long_tools(self, tools: str) -> None:
        count = len(self._tokenizer(tools, add_special_tokens=False, verbose=False)["input_ids"])
        if count > TOOLS_SHARE * self._length:
            said = f"the tools have {count} tokens as JSON, and there is room for {self._length} with the messages"
            raise Refusal(f"{said}; send fewer, or say less of each", "tools", code="context_length_exceeded")


def _characters(value: object) -> int:
    """Characters of all texts in a value, at any depth: a template may show each, also a thought or an argument."""
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(inner) for key, inner in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else len(str(value))
