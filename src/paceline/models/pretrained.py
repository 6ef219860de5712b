"""A model's tokenizer and configuration, read by transformers before the weights, and facts that follow from them."""

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paceline.config.sections import ModelConfig
from paceline.errors import ModelError, first_line
from paceline.models.places import GET_AGAIN, model_place

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names in transformers of the soft cap c of logits c tanh(x / c)."""
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
"""Names in transformers of a factor of the logits after the output embedding."""


def model_directory(name: str) -> str:
    """Return the directory or Hub name that transformers loads the whole model `name` from."""
    return model_place(name).base


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer, the adapter's if its directory has one; ModelError if none can be read."""
    location = model_place(config.model)
    has_tokenizer = location.adapter is not None and (location.adapter / "tokenizer_config.json").is_file()
    try:
        return AutoTokenizer.from_pretrained(
            str(location.adapter) if has_tokenizer else location.base, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"--model {config.model}: its tokenizer cannot be loaded ({type(error).__name__}: {first_line(error)}); "
            f"{GET_AGAIN}"
        ) from error


def read_config(config: ModelConfig) -> PretrainedConfig:
    """Read the configuration of the model, or of its base model, with transformers and without weights.

    ModelError: it cannot be read, or is not of a causal language model.
    """
    directory = model_directory(config.model)
    try:
        described = AutoConfig.from_pretrained(directory, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        own_code = "custom code" in str(error) and not config.trust_remote_code
        remedy = "; read that code, then give --trust-remote-code to run it" if own_code else ""
        raise ModelError(
            f"--model {config.model}: its config.json cannot be loaded: {first_line(error)}{remedy}"
        ) from error
    has_own_class = "AutoModelForCausalLM" in (getattr(described, "auto_map", None) or {})
    if not has_own_class and described.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind = ", ".join(described.architectures or ()) or described.model_type
        raise ModelError(
            f"--model {config.model} is a {kind}, and causal language models are trained here; name a model whose "
            "config.json has an architecture that ends in ForCausalLM"
        )
    read: PretrainedConfig = described
    return read


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


def soft_cap(config: PretrainedConfig) -> float | None:
    """Return c of a model whose logits are c tanh(x / c) of its output embedding's x; None: they are x."""
    text = config.get_text_config()
    caps = [value for name in SOFT_CAPS if isinstance(value := getattr(text, name, None), int | float) and value > 0]
    return float(caps[0]) if caps else None


def changed_logits(config: PretrainedConfig) -> str | None:
    """Describe the scaling of logits after the output embedding, by the configuration; None if there is none."""
    text = config.get_text_config()
    scales = [(name, value) for name in SCALES if (value := getattr(text, name, None)) != 1]
    changes = [f"{name} {value}" for name, value in scales if isinstance(value, int | float)]
    return ", ".join(changes) or None


def other_logits(how: str | None) -> str:
    """Describe why log-probabilities cannot be computed from a model's hidden states, and the remedy."""
    are_other = "gives other logits than its output embedding makes of its last hidden states"
    changed = are_other if how is None else f"changes its logits after the output embedding ({how})"
    return f"{changed}, which log-probabilities from hidden states would miss; use a model of another family"


def vocabulary_size(config: ModelConfig) -> int | None:
    """Return the number of tokens with weights, None if the configuration does not say. Reads no weights."""
    return getattr(read_config(config).get_text_config(), "vocab_size", None)
