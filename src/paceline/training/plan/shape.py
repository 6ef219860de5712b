"""What memory depends on: the numbers of a decoder, from its config.json, and the devices that a run is planned for."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.errors import ModelError
from paceline.models.families import layer_plans
from paceline.models.places import model_place, read_model_config
from paceline.models.weight_headers import read_header
from paceline.training.plan.images import VisionShape, vision_shape
from paceline.types import Task

BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16")
"""Flags of processors that multiply bfloat16 in hardware, as in `kernels`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device that trains."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory: int | None = None
    """Bytes that a run may take; None: not known."""
    fast_bfloat16: bool = False
    """True if the precision `auto` may be bfloat16; on CUDA it always is."""
    float8: bool = True
    """False if it is known that it does not multiply in eight bits."""


CPU = Device(name="a CPU", kind="cpu")


def _gpu(name: str, mib: int, *, float8: bool = True) -> Device:
    return Device(name=name, kind="cuda", memory=mib << 20, fast_bfloat16=True, float8=float8)


GPUS: Mapping[str, Device] = {
    "l4": _gpu("NVIDIA L4", 23_034),
    "rtx-4090": _gpu("NVIDIA GeForce RTX 4090", 24_564),
    "rtx-5090": _gpu("NVIDIA GeForce RTX 5090", 32_607),
    "a100-40gb": _gpu("NVIDIA A100 40GB", 40_960, float8=False),
    "l40s": _gpu("NVIDIA L40S", 46_068),
    "a100-80gb": _gpu("NVIDIA A100 80GB", 81_920, float8=False),
    "h100": _gpu("NVIDIA H100 80GB HBM3", 81_559),
    "h200": _gpu("NVIDIA H200", 143_771),
    "b200": _gpu("NVIDIA B200", 183_359),
}
"""Devices by the name that `--gpu` takes."""


def gpu_of(driver_name: str, mib: int) -> Device:
    """Return the device with this name in the driver's list.

    >>> gpu_of("NVIDIA A100-SXM4-80GB", 81920).float8, gpu_of("NVIDIA GeForce GTX 1080", 8192).float8
    (False, True)
    """
    words = _words(driver_name.lower())
    return _gpu(driver_name, mib, float8=all(gpu.float8 for name, gpu in GPUS.items() if _words(name) <= words))


def _words(name: str) -> set[str]:
    return set(name.replace("-", " ").split())


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a decoder whose layers are alike, but for what they cache; of a mixture, all layers have experts."""

    parameters: int
    num_layers: int
    num_heads: int
    """Query heads."""
    num_key_value_heads: int
    head_dim: int
    width: int
    """Width of the hidden states between two layers."""
    inner: int
    """Width inside the feed-forward layers; of a mixture, of the experts that a token passes, all together."""
    linear_widths: int
    """Inputs and outputs of a layer's linear maps, added up: what one rank of an adapter on all of them takes."""
    expert_widths: int
    """The same of the matrices of a layer's experts; 0: there are none."""
    vocabulary: int
    """Tokens of the vocabulary; 0 where the configuration does not say."""
    experts_per_token: int = 0
    """Experts that a router chooses for a token; 0: there is no router."""
    windows: tuple[int, ...] = ()
    """Window of each layer that looks back over one."""
    state_layers: int = 0
    """Number of layers that keep a state of fixed size instead of keys and values."""
    state: int = 0
    """Numbers in the states of a row, in all layers."""
    tied: bool
    """True if embedding and head are one matrix."""
    fused: bool = False
    """True if its layers are of a family that runs through kernels in training."""
    planned: bool = False
    """True if the engine has a plan of all its layers."""
    vision: VisionShape | None = None
    """What reads images beside it; None: prompts are text."""

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
        """Numbers that a token takes in the cache: keys and values of all layers that have them."""
        return (self.num_layers - self.state_layers) * self.cached_by_layer

    @property
    def cached_by_layer(self) -> int:
        """Numbers of a token's keys and values in a layer."""
        return 2 * self.num_key_value_heads * self.head_dim


def model_shape(model_config: Mapping[str, object], *, parameters: int) -> ModelShape | None:
    """Return the shape that a model's config.json describes; None where it uses other names."""
    text_config = model_config.get("text_config")
    described = text_config if isinstance(text_config, Mapping) else model_config
    layers, width, vocabulary = (described.get(n) for n in ("num_hidden_layers", "hidden_size", "vocab_size"))
    plans = layer_plans(described)
    plan = plans[0]
    if not isinstance(layers, int) or not isinstance(width, int) or not plan.query_heads:
        return None
    heads = plan.query_heads + plan.key_value_heads
    attention = 4 * width + 2 * plan.head_dim * heads  # queries, keys, values, output
    # the layers that every token passes: in a mixture only those beside the experts, if there are any
    dense = plan.shared_inner if plan.experts else plan.inner
    # where a configuration does not say which layers have a window, all may be without
    windows = [layer.window for layer in plans if layer.window is not None] if "layer_types" in described else []
    return ModelShape(
        expert_widths=plan.experts * (2 * width + 3 * plan.expert_inner),
        experts_per_token=plan.experts_per_token,
        windows=tuple(windows),
        state_layers=sum(layer.state > 0 for layer in plans),
        state=sum(layer.state for layer in plans),
        parameters=parameters,
        num_layers=layers,
        num_heads=plan.query_heads,
        num_key_value_heads=plan.key_value_heads,
        head_dim=plan.head_dim,
        width=width,
        inner=dense + plan.experts_per_token * plan.expert_inner,
        linear_widths=attention + (3 * (width + dense) if dense else 0),
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
        fused=plan.trains_fused,
        planned=all(layer.parts is not None for layer in plans),
        tied=True in (described.get("tie_word_embeddings"), model_config.get("tie_word_embeddings")),
    )


def read_shape(model: str, tasks: Sequence[Task] = ()) -> ModelShape | None:
    """Return the shape of `--model`; None where its configuration uses other names or the Hub gives none.

    `tasks`: those whose images it reads.

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
    vision = vision_shape(described, shapes, tasks)
    if "text_config" in described:  # what reads images or sound is not loaded
        shapes = {
            name: shape
            for name, shape in shapes.items()
            if re.search(r"(language_model|text_model)\.|^lm_head\.", name)
        }
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
    shape = model_shape(described, parameters=counted)
    return None if shape is None else replace(shape, vision=vision)
