"""The plan of a decoder's layers: what each computes, how large it is, and where its modules lie. Without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FULL, WINDOW = "full_attention", "sliding_attention"
"""transformers' names (`layer_types` of a configuration) for attention to all earlier tokens, and to the last few."""
ATTENTION = "attention"
"""Kind of a mixer that caches keys and values."""
DELTA_RULE, MAMBA_2, SHORT_CONVOLUTION = "gated_delta", "mamba2", "convolution"
"""Kinds of mixers that keep a state: gated delta rule and Mamba-2, behind a convolution, and a convolution alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParts:
    """Paths of a layer's modules, and how they are put together: a mixer of tokens, then feed-forward layers.

    Each of the two reads the residual stream behind a norm, and adds what it gives, perhaps behind another norm.
    """

    mixer_norm: str | None = "input_layernorm"
    """Norm before the mixer; None: there is none."""
    mixer: str = "self_attn"
    """Module that mixes tokens."""
    mixer_kind: str = ATTENTION
    """`ATTENTION`, or the kind of a mixer that keeps a state of fixed size instead of keys and values."""
    projections: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Linear layers at the mixer's entry: attention's queries, keys and values, or one layer that gives all of them."""
    head_norms: tuple[str, str] | None = None
    """Norms of queries and keys before the rotation: over each head, or over all heads together."""
    output: str = "self_attn.o_proj"
    output_gate: bool = False
    """The first projection gives each head's query and its gate: attention's output is times sigmoid(gate)."""
    sinks: str | None = None
    """Parameter with the score of one more key for each head, whose value is 0."""
    cap: str | None = None
    """Attribute with the cap of attention's scores."""
    rotates: str | None = None
    """Attribute that says whether queries and keys are rotated; None: they are."""
    interleaved: bool = False
    """The rotation pairs neighbours in a head; else its halves."""
    query_scale: bool = False
    """Queries grow with their position, as in Llama 4: by `llama_4_scaling_beta` of the rotation's parameters."""
    feed_forward_norm: str | None = "post_attention_layernorm"
    feed_forward: str = "mlp"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gate and up, or one layer that gives both."""
    down: str = "mlp.down_proj"
    experts: str | None = None
    """Module with a router and experts: in place of the gated layers where these are missing, else beside them."""
    post_norms: tuple[str | None, str | None] = (None, None)
    """Norms of what the mixer and the feed-forward layers give, before it is added."""
    multiplier: str | None = None
    """Attribute with the factor of what is added."""
    parallel: bool = False
    """Mixer and feed-forward layers read the same norm, and both are added at once."""

    @property
    def norms(self) -> tuple[str, ...]:
        """Paths of all norms."""
        paths = (self.mixer_norm, self.feed_forward_norm, *(self.head_norms or ()), *self.post_norms)
        return tuple(path for path in paths if path is not None)

    @property
    def attends(self) -> bool:
        """True if the mixer is attention."""
        return self.mixer_kind == ATTENTION

    @property
    def linear(self) -> tuple[str, ...]:
        """Paths of all linear layers of the mixer and of gated feed-forward layers."""
        return (*self.projections, self.output, *self.gate_up, self.down)

    @property
    def is_plain(self) -> bool:
        """True if the layer differs from Llama's at most in norms over each head: the training kernels compute it."""
        return replace(self, head_norms=None) == LayerParts()


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models of one module of transformers. Each file of this package lists its own as `FAMILIES`."""

    model_type: str
    """Name in config.json, and of the module `modeling_<model_type>`."""
    prefix: str
    """Prefix of the module's classes."""
    module_prefix: str = ""
    """Prefix of the classes of layers and their parts; empty: the same."""
    parts: Mapping[str, LayerParts] = field(default_factory=lambda: {FULL: LayerParts()})
    """Parts of each kind of layer that the kernels compute; a layer of another kind takes the model's own pass."""
    norm_offset: float = 0.0
    """What norms add to their weights."""
    centred: bool = False
    """Norms subtract the mean first."""
    final_norm: str = "norm"
    """Norm before the head, in the decoder."""
    embedding_multiplier: str | None = None
    """Attribute of the decoder with the factor of embeddings."""

    @property
    def architecture(self) -> str:
        """Class of the whole model."""
        return f"{self.prefix}ForCausalLM"

    def made(self, module: object, part: str) -> bool:
        """Return whether `module` is this part of a layer, such as "MLP", by its exact class: a subclass is not."""
        kind = type(module)
        is_ours = kind.__module__ == f"transformers.models.{self.model_type}.modeling_{self.model_type}"
        return is_ours and kind.__name__ == (self.module_prefix or self.prefix) + part


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
    experts_per_token: int = 0
    expert_inner: int = 0
    """Width of an expert."""
    shared_inner: int = 0
    """Width of the experts that every token passes, all together."""
    state: int = 0
    """Numbers in the cache of a layer with a state, the same for a row of any length; 0: keys and values are cached."""
    activation: str | None = None
    """Name of the feed-forward layers' activation."""
    family: Family | None = None
    """Family with a file in this package; None: there is none."""

    @property
    def parts(self) -> LayerParts | None:
        """Where the layer's modules lie; None: only the model's own pass knows."""
        return None if self.family is None else self.family.parts.get(self.kind)

    @property
    def attends_plainly(self) -> bool:
        """True if the layer has Llama's attention, with norms over each head at most."""
        return self.window is None and self.parts is not None and replace(self.parts, experts=None).is_plain

    @property
    def trains_fused(self) -> bool:
        """True if the training kernels compute the layer."""
        family, parts = self.family, self.parts
        return family is not None and parts is not None and parts.is_plain and not (family.norm_offset or self.window)
