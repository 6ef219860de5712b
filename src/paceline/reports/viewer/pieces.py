"""Token ids to the pieces of text that they stand for, so that each token can be shown on its own."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer

from paceline.errors import ModelError
from paceline.models.places import DIRECTORIES

FILE = "tokenizer.json"
MODELS = Path(__file__).parent.parent.parent / "models"
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What decoders give for bytes that are no whole character."""


class TokenDecoder(Protocol):
    """A tokenizer, as far as it is needed here; `tokenizers.Tokenizer` is one."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of these tokens."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Splits completions into the texts of their tokens; what a token stands for is asked once."""

    decoder: TokenDecoder
    _known: dict[int, str] = field(default_factory=dict)

    def split(self, token_ids: Sequence[int]) -> list[str]:
        """One text per token, in order; together they are the completion, special tokens included.

        A character whose bytes are several tokens is the last one's, and the others' text is empty.
        """
        pieces = [self._piece(token) for token in token_ids]
        start = 0
        while start < len(pieces):
            end = start
            while end < len(pieces) and INCOMPLETE in pieces[end]:
                end += 1
            shown = 0
            for at in range(start, end):
                text = self.decoder.decode(token_ids[start : at + 1], skip_special_tokens=False)
                whole = len(text) if at + 1 == end else len(text.rstrip(INCOMPLETE))
                pieces[at], shown = text[shown:whole], max(shown, whole)
            start = max(end, start + 1)
        return pieces

    def is_special(self, token: int) -> bool:
        """Return True if a completion's recorded text leaves this token out."""
        return self.decoder.decode([token], skip_special_tokens=True) == "" != self._piece(token)

    def _piece(self, token: int) -> str:
        if token not in self._known:
            # the second of two, as decoders of the SentencePiece kind strip the space of a text's first token
            one, two = (self.decoder.decode([token] * count, skip_special_tokens=False) for count in (1, 2))
            self._known[token] = INCOMPLETE if INCOMPLETE in two else two[len(one) :]
        return self._known[token]


def load_pieces(run: Path, model: str | None) -> Pieces:
    """What splits the completions of a run into tokens; `model` is what its configuration names.

    Raises:
        ModelError: there is no tokenizer.json, or it cannot be read.
    """
    file = next((place for place in _places(run, model) if place.is_file()), None)
    if file is None:
        raise ModelError(
            f"no {FILE} was found in final/ and checkpoints/ of the run, nor for its model {model} on this machine; "
            "completions are shown as text, without their tokens"
        )
    try:
        return Pieces(Tokenizer.from_str(file.read_text(encoding="utf-8")))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{file} cannot be read ({str(error)[:200]}); restore it from a copy") from error


def _places(run: Path, model: str | None) -> Iterator[Path]:
    yield run / "final" / FILE
    yield from sorted(run.glob(f"checkpoints/step-*/**/{FILE}"), reverse=True)
    if model is not None and model in DIRECTORIES:
        yield MODELS / DIRECTORIES[model] / FILE
    elif model is not None:
        yield Path(model).expanduser() / FILE
        with suppress(HFValidationError):  # a path, and no name of the Hub's
            cached = try_to_load_from_cache(model, FILE)
            if isinstance(cached, str):
                yield Path(cached)
