"""The tokenizer behind a run's token ids: read as a file of data, without the model, its code or a network."""

from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer

from paceline.errors import ModelError
from paceline.models.embedded_models import DIRECTORIES
from paceline.reports.viewer.pieces import Pieces

FILE = "tokenizer.json"
MODELS = Path(__file__).parent.parent.parent / "models"


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
    if model is None:
        return
    if model in DIRECTORIES:
        yield MODELS / DIRECTORIES[model] / FILE
        return
    yield Path(model).expanduser() / FILE
    try:
        cached = try_to_load_from_cache(model, FILE)
    except HFValidationError:  # a path, and no name of the Hub's
        return
    if isinstance(cached, str):
        yield Path(cached)
