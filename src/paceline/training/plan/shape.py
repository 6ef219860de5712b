"""The numbers of a decoder that its memory depends on, from its config.json."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ModelError
from paceline.models.families import layer_plans
from paceline.models.places import model_place, read_model_config
from paceline.models.weight_headers import read_header


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
    expert_widths: int
    """The same of the matrices of a layer's experts; 0: there are none."""
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
    layers, width, vocabulary = (described.get(n) for n in ("num_hidden_layers", "hidden_size", "vocab_size"))
    plan = layer_plans(described)[0]
    if not isinstance(layers, int) or not isinstance(width, int) or not plan.query_heads:
        return None
    heads = plan.query_heads + plan.key_value_heads
    attention = 4 * width + 2 * plan.head_dim * heads  # queries, keys, values, output
    inner = described.get("moe_intermediate_size")
    return ModelShape(
        expert_widths=plan.experts * (2 * width + 3 * (inner if isinstance(inner, int) else plan.inner)),
        parameters=parameters,
        num_layers=layers,
        num_heads=plan.query_heads,
        num_key_value_heads=plan.key_value_heads,
        head_dim=plan.head_dim,
        width=width,
        inner=plan.inner,
        linear_widths=attention + 3 * (width + plan.inner),
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
        fused=plan.trains_fused,
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
    shapes = {name: shape for header in headers for name, shape in header.shapes.items()}
    if "text_config" in described:  # what reads images or sound is not loaded
        shapes = {name: shape for name, shape in shapes.items() if re.search(r"language_model\.|^lm_head\.", name)}
    counted = sum(map(math.prod, shapes.values()))
    if not headers:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from paceline.models.pretrained import text_config

        try:
            with torch.device("meta"):
                text = text_config(AutoConfig.from_pretrained(base))
                counted = int(AutoModelForCausalLM.from_config(text).num_parameters())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise ModelError(f"--model {model}: transformers makes no model of its config.json ({reason})") from None
    return model_shape(described, parameters=counted)
