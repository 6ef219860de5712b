"""How a decoder's layers can be cut along heads and widths: the model's own plan, and the numbers of ranks that fit it.

transformers gives most decoders a plan (`base_model_tp_plan`): a layer's path to how it is cut.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from transformers import PreTrainedConfig

from paceline.errors import ModelError

LayerSplit = Literal["colwise", "rowwise", "replicated_with_grad_allreduce", "head"]
COLUMN: LayerSplit = "colwise"
"""Each rank has some of a linear layer's outputs: rows of its weight."""
ROW: LayerSplit = "rowwise"
"""Each rank has some of its inputs: columns of its weight, whose products are added up over ranks."""
PARTIAL: LayerSplit = "replicated_with_grad_allreduce"
"""Each rank has all of a norm and applies it to its own heads: its gradient is a part of the whole one."""
HEAD: LayerSplit = "head"
"""Each rank has all of a linear layer and computes one key/value head of it, as some others do. No plan has this: it
takes the place of a column cut where there are more ranks than key/value heads."""
EMBEDDING = "embed_tokens"
"""The two embeddings are cut by tokens, whatever a plan says."""
COUNTS = {"num_attention_heads": "attention heads", "intermediate_size": "elements of its feed-forward width"}
"""What the number of ranks divides."""
KEY_VALUE_HEADS = "num_key_value_heads"
"""What it divides or is a multiple of."""
KEYS, VALUES = "k_proj", "v_proj"
"""What transformers' plans call the layers whose outputs are key/value heads."""


def tensor_plan(config: PreTrainedConfig) -> Mapping[str, LayerSplit]:
    """Paths of layers in the decoder, with `*` for a layer's number, to how each is cut.

    Raises:
        ModelError: there is no plan, or it has a cut that is not known here, or layers differ in their heads.
    """
    problem = _problem(config)
    if problem:
        raise ModelError(problem)
    return cast(Mapping[str, LayerSplit], _plan(config))


def cut_of(path: str, plan: Mapping[str, LayerSplit], *, by_head: bool) -> LayerSplit | None:
    """How the layer of this path in the decoder is cut; None: the plan leaves it whole.

    Args:
        by_head: whether ranks share key/value heads, so that projections to these are not cut by columns.
    """
    cut = plan.get(re.sub(r"\.\d+\.", ".*.", path))
    return HEAD if by_head and cut == COLUMN and _name(path) in (KEYS, VALUES) else cut


def tensor_sizes(config: PreTrainedConfig) -> list[int]:
    """Over how many ranks the model can be split: what divides its attention heads and its width, and divides its
    key/value heads or is a multiple of them; 1 is always among them."""
    counts = {} if _problem(config) else _counts(config)
    key_value = counts.pop(KEY_VALUE_HEADS, None)
    most = math.gcd(*counts.values()) if counts else 1
    sizes = [size for size in range(1, most + 1) if most % size == 0]
    if key_value is None:
        return sizes
    can_share = _can_share(config)
    return [size for size in sizes if key_value % size == 0 or (can_share and size % key_value == 0)]


def check_tensor_size(config: PreTrainedConfig, size: int) -> None:
    """Refuse a number of ranks that the model cannot be split over.

    Raises:
        ModelError: the sentence names the numbers that it has to divide, and the nearest that do.
    """
    sizes = tensor_sizes(config)
    if size in sizes:
        return
    tensor_plan(config)
    near = [one for one in sizes if one < size][-1:] + [one for one in sizes if one > size][:1]
    counts = _counts(config)
    has = ", ".join(f"{counts[name]} {what}" for name, what in COUNTS.items() if name in counts)
    if KEY_VALUE_HEADS in counts:
        either = ", and divide or be a multiple of its" if _can_share(config) else ","
        has = f"{has}{either} {counts[KEY_VALUE_HEADS]} key/value heads"
    raise ModelError(
        f"a tensor size of {size} must divide what the model has: {has}; the nearest that does is "
        f"{' or '.join(map(str, near))}"
    )


def _problem(config: PreTrainedConfig) -> str:
    """Why the model cannot be split at all; empty where it can be."""
    plan, remedy = _plan(config), "use a tensor size of 1 or another family"
    cannot = f"a {config.get_text_config().model_type} model cannot be split over a tensor axis"
    if not plan:
        return f"{cannot}, because transformers has no plan for it; {remedy}"
    for path, cut in plan.items():
        if cut not in (COLUMN, ROW, PARTIAL):
            return (
                f"{cannot}, because its plan cuts {path} by {cut!r}, and {COLUMN!r}, {ROW!r} and {PARTIAL!r} are "
                f"known; {remedy}"
            )
    for name, count in _counts(config).items():
        if not isinstance(count, int):
            return f"{cannot}, because its {name} is {count} and not one number for all layers; {remedy}"
    return ""


def _plan(config: PreTrainedConfig) -> dict[str, str]:
    plan = config.get_text_config().base_model_tp_plan or {}
    return {path: cut for path, cut in plan.items() if path != EMBEDDING}


def _counts(config: PreTrainedConfig) -> dict[str, int]:
    text = config.get_text_config()
    return {name: getattr(text, name) for name in (*COUNTS, KEY_VALUE_HEADS) if hasattr(text, name)}


def _can_share(config: PreTrainedConfig) -> bool:
    """Return whether the plan says by name which layers lead to key/value heads."""
    columns = {_name(path) for path, cut in _plan(config).items() if cut == COLUMN}
    return {KEYS, VALUES} <= columns


def _name(path: str) -> str:
    return path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedHeads:
    """Attention where several ranks have queries of one key/value head, and each has queries of that one alone."""

    ranks: int
    """Size of the tensor axis, a multiple of the key/value heads."""
    query: int
    """Attention heads of the model."""
    key_value: int
    """Key/value heads of the model."""
    width: int
    """Width of a head."""

    @property
    def groups(self) -> int:
        """Attention heads that a rank has for its key/value head."""
        return self.query // self.ranks

    @property
    def out_features(self) -> int:
        """Outputs of the whole projection to keys, or to values."""
        return self.key_value * self.width

    def rows(self, place: int) -> slice:
        """Return the rows of a projection to keys or values that the rank at this place computes.

        >>> heads = SharedHeads(ranks=4, query=8, key_value=2, width=16)
        >>> [heads.rows(place) for place in (1, 2)]
        [slice(0, 16, None), slice(16, 32, None)]
        """
        head = place * self.key_value // self.ranks
        return slice(head * self.width, (head + 1) * self.width)


def shared_heads(config: PreTrainedConfig, size: int) -> SharedHeads | None:
    """How so many ranks, over which the model can be split, share key/value heads; None: each has some of its own."""
    text = config.get_text_config()
    query = text.num_attention_heads
    key_value = getattr(text, "num_key_value_heads", query)  # a family without the number has one for each query
    if key_value >= size:
        return None
    width = getattr(text, "head_dim", None) or text.hidden_size // query
    return SharedHeads(ranks=size, query=query, key_value=key_value, width=width)
