"""Families whose rotation pairs neighbours, of all of a head or of its first part: GLM, ERNIE, Helium."""

from dataclasses import replace

from paceline.models.families.layer_plan import FULL, Family, LayerParts

_NEIGHBOURS = LayerParts(interleaved=True)
_GLM = LayerParts(interleaved=True, gate_up=("mlp.gate_up_proj",))
_GLM4 = replace(_GLM, post_norms=("post_self_attn_layernorm", "post_mlp_layernorm"))

FAMILIES = (
    Family(model_type="glm", prefix="Glm", parts={FULL: _GLM}),
    Family(model_type="glm4", prefix="Glm4", parts={FULL: _GLM4}),
    Family(model_type="ernie4_5", prefix="Ernie4_5", parts={FULL: _NEIGHBOURS}),
    Family(model_type="helium", prefix="Helium", parts={FULL: _NEIGHBOURS}),
)
