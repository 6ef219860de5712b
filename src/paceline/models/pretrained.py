"""A model's tokenizer and configuration, read by transformers before the weights, and facts that follow from them."""

import copy
import json
from pathlib import Path
from typing import cast

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.hub import cached_file

from paceline.config.sections import ModelConfig
from paceline.errors import ModelError, first_line
from paceline.models.places import GET_AGAIN, model_place
from paceline.models.vision.families import family_of


def model_directory(name: str) -> str:
    """Return the directory or Hub name that transformers loads the whole model `name` from."""
    return model_place(name).base


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer, the adapter's if its directory has one; ModelError if none can be read."""
    location = model_place(config.model)
    has_tokenizer = location.adapter is not None and (location.adapter / "tokenizer_config.json").is_file()
    directory = str(location.adapter) if has_tokenizer else location.base
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=config.trust_remote_code
        )
        if tokenizer.chat_template is None:
            tokenizer.chat_template = _template_beside_images(directory)
        return tokenizer
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"--model {config.model}: its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}); "
            f"{GET_AGAIN}"
        ) from error


def _template_beside_images(directory: str) -> str | None:
    """Return the chat template that older checkpoints keep apart for images and text together; None: there is none."""
    try:
        file = cached_file(directory, "chat_template.json", local_files_only=Path(directory).is_dir())
    except OSError:
        return None
    template: str = json.loads(Path(cast(str, file)).read_text(encoding="utf-8"))["chat_template"]
    return template


def read_config(config: ModelConfig) -> PretrainedConfig:
    """Read the configuration of the model, or of its base model, with transformers and without weights.

    Of a checkpoint that also reads images or sound it is the language model's, unless this has no class of its own.
    ModelError: it cannot be read, or is not of a causal language model.
    """
    directory = model_directory(config.model)
    try:
        described = text_config(AutoConfig.from_pretrained(directory, trust_remote_code=config.trust_remote_code))
    except (OSError, ValueError, KeyError) as error:
        own_code = "custom code" in str(error) and not config.trust_remote_code
        remedy = "; read that code, then give --trust-remote-code to run it" if own_code else ""
        raise ModelError(
            f"--model {config.model}: its config.json cannot be loaded: {first_line(error)}{remedy}"
        ) from error
    if not (_has_own_class(described) or is_read_whole(described)) and (
        described.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    ):
        kind = ", ".join(described.architectures or ()) or described.model_type
        raise ModelError(
            f"--model {config.model} is a {kind}, and causal language models are trained here; name a model whose "
            "config.json has an architecture that ends in ForCausalLM"
        )
    read: PretrainedConfig = described
    return read


def text_config(described: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of the language model in a checkpoint that also reads images or sound; else `described`.

    Precision, quantisation, end tokens and whether embeddings are tied may stand beside the parts, and are copied.
    """
    text: PretrainedConfig | None = getattr(described, "text_config", None)
    if text is None or text.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or _has_own_class(described):
        return described
    part = copy.deepcopy(text)
    part.dtype = part.dtype or described.dtype
    part.tie_word_embeddings = part.tie_word_embeddings or getattr(described, "tie_word_embeddings", False)
    if (ends := getattr(described, "eos_token_id", None)) is not None:
        part.eos_token_id = ends
    if (quantised := getattr(described, "quantization_config", None)) is not None:
        part.quantization_config = quantised
    return part


def is_read_whole(described: PretrainedConfig) -> bool:
    """Return whether a model that reads images is loaded whole for text too, as its language model has no own class."""
    return family_of(described.model_type) is not None and text_config(described) is described


def is_text_part(config: ModelConfig) -> bool:
    """Return whether a model is the language model in a checkpoint that also reads images or sound.

    False too where its base model is no longer on this disk.
    """
    try:
        described = AutoConfig.from_pretrained(
            model_directory(config.model), trust_remote_code=config.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError, ModelError):
        return False
    return text_config(described) is not described


def _has_own_class(described: PretrainedConfig) -> bool:
    return "AutoModelForCausalLM" in (getattr(described, "auto_map", None) or {})


def context_length(config: ModelConfig) -> int | None:
    """Return the largest number of positions, None if the configuration does not say. Reads no weights."""
    return positions_in(read_config(config))


def positions_in(described: PretrainedConfig) -> int | None:
    """Return the largest number of positions by a configuration, None if it does not say."""
    return getattr(described.get_text_config(), "max_position_embeddings", None)


def end_token_ids(
    tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None, described: PretrainedConfig
) -> frozenset[int]:
    """Return all tokens that end a completion: those of tokenizer, generation settings and configuration.

    They can differ after fine-tuning: a template may end turns with the tokenizer's token while generation_config.json
    still has the base model's.
    """
    sources = (tokenizer, generation, described.get_text_config())
    named = [getattr(source, "eos_token_id", None) for source in sources]
    ids = [token for ids in named for token in (ids if isinstance(ids, list | tuple) else [ids])]
    return frozenset(token for token in ids if token is not None and token >= 0)  # -1 is none in some files


def read_generation_config(config: ModelConfig) -> GenerationConfig | None:
    """Read a model's generation settings; None if there are none."""
    try:
        return GenerationConfig.from_pretrained(model_directory(config.model))
    except OSError:
        return None


def vocabulary_size(config: ModelConfig) -> int | None:
    """Return the number of tokens with weights, None if the configuration does not say. Reads no weights."""
    return getattr(read_config(config).get_text_config(), "vocab_size", None)
