"""The plan of a decoder's layers: what each computes, how large it is, and where its modules lie. Without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FULL, WINDOW = "full_attention", "sliding_attention"
"""transformers' names (`layer_types` of a configuration) for attention to all earlier tokens, and to the last few."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParts:
    """Paths of a layer's modules: attention behind a norm, then gated feed-forward layers behind another one."""

    attention_norm: str = "input_layernorm"
    attention: str = "self_attn"
    projections: tuple[str, str, str] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Queries, keys and values."""
    head_norms: tuple[str, str] | None = None
    """Norms over each query and each key head, before the rotation."""
    output: str = "self_attn.o_proj"
    feed_forward_norm: str = "post_attention_layernorm"
    feed_forward: str = "mlp"
    gate_up: tuple[str, str] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"

    @property
    def norms(self) -> tuple[str, ...]:
        """Paths of all norms."""
        return (self.attention_norm, self.feed_forward_norm, *(self.head_norms or ()))

    @property
    def linear(self) -> tuple[str, ...]:
        """Paths of all linear layers."""
        return (*self.projections, self.output, *self.gate_up, self.down)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models of one module of transformers. Each file of this package lists its own as `FAMILIES`."""

    model_type: str
    """Name in config.json, and of the module `modeling_<model_type>`."""
    prefix: str
    """Prefix of the module's classes."""
    parts: Mapping[str, LayerParts] = field(default_factory=lambda: {FULL: LayerParts()})
    """Parts of each kind of layer that the kernels compute; a layer of another kind takes the model's own pass."""

    @property
    def architecture(self) -> str:
        """Class of the whole model."""
        return f"{self.prefix}ForCausalLM"

    def made(self, module: object, part: str) -> bool:
        """Return whether `module` is this part of a layer, such as "MLP", by its exact class: a subclass is not."""
        kind = type(module)
        is_ours = kind.__module__ == f"transformers.models.{self.model_type}.modeling_{self.model_type}"
        return is_ours and kind.__name__ == self.prefix + part


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """One decoder layer. A size is 0 where the configuration does not name it."""

    kind: str
    """`FULL`, `WINDOW` or another of transformers' names, such as `linear_attention` for a recurrent layer."""
    window: int | None
    """A token at position p attends to the keys t with p - window < t <= p; None: to all earlier ones."""
    query_heads: int
    key_value_heads: int
    head_dim: int
    inner: int
    """Width of the feed-forward layers."""
    experts: int
    """Number of experts that a router chooses from; 0: there is no router."""
    state: int = 0
    """Numbers in a recurrent layer's cache, the same for a row of any length; 0: keys and values are cached."""
    activation: str | None = None
    """Name of the feed-forward layers' activation."""
    family: Family | None = None
    """Family with a file in this package; None: there is none."""

    @property
    def parts(self) -> LayerParts | None:
        """Where the layer's modules lie; None: only the model's own pass knows."""
        return None if self.family is None else self.family.parts.get(self.kind)
