"""What transformers reads of a model before its weights: tokenizer and configuration, and what that says of it."""

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paceline.config.sections import ModelConfig
from paceline.errors import ModelError, first_line
from paceline.models.places import GET_AGAIN, model_place

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""What families of transformers call the number c of a soft cap: their logits are c tanh(x / c)."""
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
"""What they call a factor of the logits after the output embedding."""


def model_directory(name: str) -> str:
    """The place that transformers loads the whole model `name` from: the package's own for an embedded one."""
    return model_place(name).base


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer, the adapter's own where its directory has one; ModelError if none can be read."""
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


def read_config(config: ModelConfig) -> PretrainedConfig:
    """Read the configuration of the model, or of its base model, with transformers and without weights.

    ModelError: it cannot be read, or is of a model that does not write text after text.
    """
    place = model_directory(config.model)
    try:
        found = AutoConfig.from_pretrained(place, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        own_code = "custom code" in str(error) and not config.trust_remote_code
        remedy = "; read that code, then give --trust-remote-code to run it" if own_code else ""
        raise ModelError(
            f"--model {config.model}: its config.json cannot be loaded: {first_line(error)}{remedy}"
        ) from error
    has_own_class = "AutoModelForCausalLM" in (getattr(found, "auto_map", None) or {})
    if not has_own_class and found.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind = ", ".join(found.architectures or ()) or found.model_type
        raise ModelError(
            f"--model {config.model} is a {kind}, and causal language models are trained here; name a model whose "
            "config.json has an architecture that ends in ForCausalLM"
        )
    read: PretrainedConfig = found
    return read


def context_length(config: ModelConfig) -> int | None:
    """Positions that the model can tell apart, None where its configuration does not say. Reads no weights."""
    return positions_in(read_config(config))


def positions_in(described: PretrainedConfig) -> int | None:
    """As `context_length`, from a configuration that is there."""
    return getattr(described.get_text_config(), "max_position_embeddings", None)


def end_token_ids(
    tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None, described: PretrainedConfig
) -> frozenset[int]:
    """Every token that ends a completion: what the tokenizer, the generation settings or the configuration names.

    They differ where a fine-tuning has changed one of them: its template ends turns with the tokenizer's token, say,
    and generation_config.json still has the base model's.
    """
    sources = (tokenizer, generation, described.get_text_config())
    named = [getattr(source, "eos_token_id", None) for source in sources]
    ids = [token for ids in named for token in (ids if isinstance(ids, list | tuple) else [ids])]
    return frozenset(token for token in ids if token is not None and token >= 0)  # -1 is none in some files


def read_generation_config(config: ModelConfig) -> GenerationConfig | None:
    """Read the generation settings that lie beside a model; None where there are none."""
    try:
        return GenerationConfig.from_pretrained(model_directory(config.model))
    except OSError:
        return None


def soft_cap(config: PretrainedConfig) -> float | None:
    """The number c where a model's logits are c tanh(x / c) of what its output embedding gives; None: they are that."""
    text = config.get_text_config()
    found = [value for name in SOFT_CAPS if isinstance(value := getattr(text, name, None), int | float) and value > 0]
    return float(found[0]) if found else None


def changed_logits(config: PretrainedConfig) -> str | None:
    """How a model scales its logits after the output embedding, by its configuration; None where that is silent."""
    text = config.get_text_config()
    scales = [(name, value) for name in SCALES if (value := getattr(text, name, None)) != 1]
    found = [f"{name} {value}" for name, value in scales if isinstance(value, int | float)]
    return ", ".join(found) or None


def other_logits(how: str | None) -> str:
    """What is wrong with a model whose log-probabilities cannot be computed from hidden states, and the remedy."""
    are_other = "gives other logits than its output embedding makes of its last hidden states"
    changed = are_other if how is None else f"changes its logits after the output embedding ({how})"
    return f"{changed}, which log-probabilities from hidden states would miss; use a model of another family"


def vocabulary_size(config: ModelConfig) -> int | None:
    """Tokens that the model has weights for, None where its configuration does not say. Reads no weights."""
    return getattr(read_config(config).get_text_config(), "vocab_size", None)
