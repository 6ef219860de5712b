"""The numbers of a decoder that its memory depends on, from its config.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ModelError
from paceline.models.places import model_place, read_model_config
from paceline.models.weight_headers import read_header

FUSED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types of `models.fused_layers`, listed again so that the planner does not load torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a decoder whose layers are alike."""

    parameters: int
    num_layers: int
    num_heads: int
    """Query heads."""
    num_key_value_heads: int
    head_dim: int
    width: int
    """Width of the hidden states between two layers."""
    inner: int
    """Width inside the feed-forward layers."""
    linear_widths: int
    """Inputs and outputs of a layer's linear maps, added up: what one rank of an adapter on all of them takes."""
    vocabulary: int
    """Tokens of the vocabulary; 0 where the configuration does not say."""
    tied: bool
    """True if embedding and head are one matrix."""
    fused: bool = False
    """True if its layers are of a family that runs through kernels in training."""

    @property
    def matrix(self) -> int:
        """Parameters of an embedding."""
        return self.vocabulary * self.width

    @property
    def embeddings(self) -> int:
        """Parameters of embedding and head."""
        return self.matrix if self.tied else 2 * self.matrix

    @property
    def layer(self) -> int:
        """Approximate parameters of a layer."""
        return max(0, self.parameters - self.embeddings) // self.num_layers

    @property
    def cached(self) -> int:
        """Numbers that a token takes in the cache: keys and values of all layers."""
        return self.num_layers * 2 * self.num_key_value_heads * self.head_dim


def model_shape(model_config: Mapping[str, object], *, parameters: int) -> ModelShape | None:
    """Return the shape that a model's config.json describes; None where it uses other names."""
    text_config = model_config.get("text_config")
    described = text_config if isinstance(text_config, Mapping) else model_config
    layers, heads, width = (described.get(n) for n in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if not isinstance(layers, int) or not isinstance(heads, int) or not isinstance(width, int):
        return None
    # Older files leave out what follows from the rest: one key/value head per head, heads that fill the width.
    inner, key_value_heads, head_dim = (
        described.get(name) for name in ("intermediate_size", "num_key_value_heads", "head_dim")
    )
    vocabulary = described.get("vocab_size")
    inner = inner if isinstance(inner, int) else 4 * width
    key_value_heads = key_value_heads if isinstance(key_value_heads, int) else heads
    head_dim = head_dim if isinstance(head_dim, int) else width // heads
    attention = 4 * width + 2 * head_dim * (heads + key_value_heads)  # queries, keys, values, output
    return ModelShape(
        parameters=parameters,
        num_layers=layers,
        num_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        width=width,
        inner=inner,
        linear_widths=attention + 3 * (width + inner),
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
        fused=described.get("model_type") in FUSED_FAMILIES,
        tied=True in (described.get("tie_word_embeddings"), model_config.get("tie_word_embeddings")),
    )


def read_shape(model: str) -> ModelShape | None:
    """Return the shape of `--model`; None where its configuration uses other names or the Hub gives none.

    Parameters are counted in the headers of its weights, where they are here; else transformers makes the model without
    memory for them, which takes some seconds.

    Raises:
        ModelError: a directory has no config.json, or it or a file of weights cannot be read.
    """
    base = Path(model_place(model, needs_weights=False).base)
    if not base.is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        try:
            base = Path(hf_hub_download(str(base), "config.json")).parent
        except (HfHubHTTPError, HFValidationError, OSError):  # there is no such name, or no way to the Hub
            return None
    described = read_model_config(base, f"--model {model}")
    headers = [read_header(file, f"--model {base}") for file in sorted(base.glob("*.safetensors"))]
    counted = sum(math.prod(shape) for header in headers for shape in header.shapes.values())
    if not headers:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        try:
            with torch.device("meta"):
                counted = int(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base)).num_parameters())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise ModelError(f"--model {model}: transformers makes no model of its config.json ({reason})") from None
    return model_shape(described, parameters=counted)
