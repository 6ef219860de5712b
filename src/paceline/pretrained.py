"""What transformers reads of a model before its weights: tokenizer and configuration."""

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from paceline.config import ModelConfig
from paceline.errors import ModelError, first_line
from paceline.model_places import GET_AGAIN, model_place


def model_directory(name: str) -> str:
    """The place that transformers loads the whole model `name` from: the package's own for an embedded one."""
    return model_place(name).base


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer: the adapter's own where its directory has one, else the base model's.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    place = model_place(config.model)
    own = place.adapter is not None and (place.adapter / "tokenizer_config.json").is_file()
    try:
        return AutoTokenizer.from_pretrained(
            str(place.adapter) if own else place.base, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"--model {config.model}: its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}); "
            f"{GET_AGAIN}"
        ) from error


def context_length(config: ModelConfig) -> int | None:
    """Positions that the model can tell apart, None where its configuration does not say. Reads no weights."""
    place = model_directory(config.model)
    try:
        loaded = AutoConfig.from_pretrained(place, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        own_code = "custom code" in str(error) and not config.trust_remote_code
        remedy = "; read that code, then give --trust-remote-code to run it" if own_code else ""
        raise ModelError(
            f"--model {config.model}: its config.json cannot be loaded: {first_line(error)}{remedy}"
        ) from error
    return getattr(loaded.get_text_config(), "max_position_embeddings", None)


def vocabulary_size(config: ModelConfig) -> int | None:
    """Tokens that the model has weights for, None where its configuration does not say. Reads no weights."""
    loaded = AutoConfig.from_pretrained(model_directory(config.model), trust_remote_code=config.trust_remote_code)
    return getattr(loaded.get_text_config(), "vocab_size", None)
