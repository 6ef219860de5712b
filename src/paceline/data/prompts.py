"""Rendering of prompts: the chat template is applied, raw text is left as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.config.sections import DataConfig
from paceline.data.formats import Message
from paceline.data.system_message import is_explicit
from paceline.errors import DataError, ModelError


class Tokenizer(Protocol):
    """The interface of a tokenizer; those of `transformers` have it."""

    chat_template: str | dict[str, str] | None
    bos_token: str | None
    bos_token_id: int | None

    def __call__(self, text: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
        """Return the token ids of each text under `input_ids`."""

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool, **switches: bool
    ) -> str:
        """Render the conversation as the model reads it."""

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A prompt as the model reads it, before tokenisation."""

    text: str
    add_special_tokens: bool
    """False if the text already holds the special tokens: a second start token would go unnoticed."""
    messages: tuple[Message, ...] | None = None
    """Messages that went into the chat template, None for raw text."""


def render(
    prompt: str | list[Message], tokenizer: Tokenizer, data: DataConfig, *, system: str | None, row_id: str
) -> Rendered:
    """Render one prompt.

    Messages go through the chat template. A system message that the user chose replaces the row's own; a default one
    only fills the gap. Raw text stays as it is and takes no system message.

    Raises:
        DataError: raw text with a system message that the user chose, or the template refuses the messages.
        ModelError: messages, and the tokenizer has no chat template.
    """
    if isinstance(prompt, str):
        return _raw(prompt, tokenizer, data, system=system, row_id=row_id)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"row {row_id}: needs a chat template and the model's tokenizer has none; use a model with one, or "
            "give the prompt as plain text in a column named `prompt`"
        )
    messages = _with_system(prompt, system, replace=is_explicit(data))
    text = apply_template(tokenizer, messages, data.enable_thinking, row_id)
    return Rendered(text=text, add_special_tokens=False, messages=tuple(messages))


def token_ids(rendered: Sequence[Rendered], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt, in order; fast tokenizers encode all of them on all cores."""
    ids: dict[int, tuple[int, ...]] = {}
    for flag in (False, True):
        places = [place for place, prompt in enumerate(rendered) if prompt.add_special_tokens is flag]
        if places:
            texts = [rendered[place].text for place in places]
            encoded = tokenizer(texts, add_special_tokens=flag, verbose=False)["input_ids"]
            ids.update(zip(places, map(tuple, encoded), strict=True))
    return [ids[place] for place in range(len(rendered))]


def _raw(text: str, tokenizer: Tokenizer, data: DataConfig, *, system: str | None, row_id: str) -> Rendered:
    if system is not None and is_explicit(data):
        raise DataError(
            f"row {row_id}: its prompt is plain text, which takes no system message; write it into the prompt, "
            "make the prompt a list of messages, or leave --system-prompt out"
        )
    starts_with_bos = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    return Rendered(text=text, add_special_tokens=not starts_with_bos)


def _with_system(messages: list[Message], system: str | None, *, replace: bool) -> list[Message]:
    has_own = messages[0]["role"] in ("system", "developer")
    if has_own and not replace:
        return messages
    rest = messages[1:] if has_own else messages
    return rest if system is None else [{"role": "system", "content": system}, *rest]


def apply_template(tokenizer: Tokenizer, messages: list[Message], enable_thinking: bool | None, row_id: str) -> str:
    """Render messages with the chat template, up to the start of the answer.

    Raises:
        DataError: the template refuses them.
    """
    # Imported here: only transformers' templates need it, and it comes with them.
    from jinja2 import TemplateError

    switches = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switches)
    except TemplateError as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise DataError(
            f"row {row_id}: the model's chat template refuses messages of the roles {roles} ({error}); change them, or "
            "use --system-prompt '' where it takes no system message"
        ) from error
