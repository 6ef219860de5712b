"""Tensor parallelism: each rank has some heads and some of the width of every layer, and some tokens' embeddings.

| layer | a rank has |
|---|---|
| queries, keys, values, gate, up | rows of the weight and of the bias |
| output of attention and of the feed-forward layers | columns of the weight |
| embedding, output embedding | rows; all where their number cannot be divided |
| keys, values, where ranks share key/value heads | all, and computes rows of one head |
| experts | some of them, each whole |
| norms, routers, biases added to a sum | all |
| adapter beside a layer with some rows | A whole, rows of B |
| adapter beside a layer with some columns | columns of A, B whole |
| adapter beside a layer with rows of one head | A and B whole, and computes the same rows of B |

transformers gives most decoders a plan (`base_model_tp_plan`): a layer's path to how it is cut. A block whose plan has
a cut that is not known here, such as attention with norms over its whole width, stays whole on every rank.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError
from paceline.kernels.linear import ProductLinear
from paceline.models.attention import NAME
from paceline.models.experts import experts_by
from paceline.models.families import layer_plans
from paceline.models.parallel.mesh import Mesh
from paceline.models.parallel.tensor_layers import (
    AXIS,
    Block,
    ColumnLinear,
    ExpertsBlock,
    HeadLinear,
    PartialGradients,
    RowLinear,
    VocabularyEmbedding,
    combined,
)

LayerSplit = Literal["colwise", "rowwise", "replicated_with_grad_allreduce", "moe_tp_experts", "head"]
COLUMN: LayerSplit = "colwise"
"""Each rank has some of a linear layer's outputs: rows of its weight."""
ROW: LayerSplit = "rowwise"
"""Each rank has some of its inputs: columns of its weight, whose products are added up over ranks."""
PARTIAL: LayerSplit = "replicated_with_grad_allreduce"
"""Each rank has all of a norm and applies it to its own heads: its gradient is a part of the whole one."""
EXPERTS: LayerSplit = "moe_tp_experts"
"""Each rank has some experts, each of them whole; their outputs are added up over ranks. In transformers' plans each
rank has a part of every expert, by entries below this one, which are not read."""
HEAD: LayerSplit = "head"
"""Each rank has all of a linear layer and computes one key/value head of it, as some others do. No plan has this: it
replaces a column split where there are more ranks than key/value heads."""
KNOWN = (COLUMN, ROW, PARTIAL, EXPERTS)
"""Cuts of plans that can be made here."""
EMBEDDINGS = ("embed_tokens", "embeddings")
"""The two embeddings are cut by tokens, whatever a plan says."""
MIXTURE = "experts"
COUNTS = {
    "num_attention_heads": "attention heads",
    "intermediate_size": "elements of its feed-forward width",
    MIXTURE: "experts",
}
"""What the number of ranks divides."""
KEY_VALUE_HEADS = "num_key_value_heads"
"""What it divides or is a multiple of."""
KEYS, VALUES = "k_proj", "v_proj"
"""What transformers' plans call the layers whose outputs are key/value heads."""
ROWS = {"weight": 0, "bias": 0}
COLUMNS = {"weight": 1}
"""Parameters to the dimension that they are cut along."""
HEAD_COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads")
GROUPS = "num_key_value_groups"
"""Where transformers' attention has the number of attention heads for each key/value head."""


def tensor_plan(config: PreTrainedConfig) -> Mapping[str, LayerSplit]:
    """Return paths of layers in the decoder, with `*` for a layer's number, to how each is cut.

    ModelError: there is no plan, or it has a cut that is not known here, or layers differ in their heads.
    """
    plan, remedy, text = _plan(config), "use a tensor size of 1 or another family", config.get_text_config()
    cannot = f"a {text.model_type} model cannot be split over a tensor axis"
    if not plan:
        raise ModelError(f"{cannot}, because transformers has no plan for it; {remedy}")
    if getattr(text, "is_heterogeneous", False):  # it refuses to give numbers that differ between layers
        raise ModelError(f"{cannot}, because its layers differ in the number or the width of their heads; {remedy}")
    unknown = {path: cut for path, cut in plan.items() if cut not in KNOWN}
    whole = {path.rpartition(".")[0] for path in unknown}
    plan = {path: cut for path, cut in plan.items() if path.rpartition(".")[0] not in whole or cut == EXPERTS}
    if not plan:
        path, cut = next(iter(unknown.items()))
        known = ", ".join(map(repr, KNOWN))
        raise ModelError(f"{cannot}, because its plan cuts {path} by {cut!r}, and {known} are known; {remedy}")
    for name, count in _counts(config).items():
        if not isinstance(count, int):
            raise ModelError(f"{cannot}, because its {name} is {count} and not one number for all layers; {remedy}")
    return cast(Mapping[str, LayerSplit], plan)


def tensor_sizes(config: PreTrainedConfig) -> list[int]:
    """Return the tensor sizes, 1 among them, that divide attention heads and width and fit the key/value heads.

    A size fits if it divides the key/value heads or is a multiple of them.
    """
    try:
        tensor_plan(config)
    except ModelError:
        return [1]
    counts = _counts(config)
    key_value = counts.pop(KEY_VALUE_HEADS, None)
    most = math.gcd(*counts.values()) if counts else 1
    sizes = [size for size in range(1, most + 1) if most % size == 0]
    if key_value is None:
        return sizes
    can_share = _can_share(config)
    return [size for size in sizes if key_value % size == 0 or (can_share and size % key_value == 0)]


def check_tensor_size(config: PreTrainedConfig, size: int) -> None:
    """Refuse a tensor size that the model cannot be split over, with a ModelError that names the nearest sizes."""
    sizes = tensor_sizes(config)
    if size in sizes:
        return
    tensor_plan(config)
    near = [divisor for divisor in sizes if divisor < size][-1:] + [divisor for divisor in sizes if divisor > size][:1]
    counts = _counts(config)
    has = ", ".join(f"{counts[name]} {what}" for name, what in COUNTS.items() if name in counts)
    if KEY_VALUE_HEADS in counts:
        either = ", and divide or be a multiple of its" if _can_share(config) else ","
        has = f"{has}{either} {counts[KEY_VALUE_HEADS]} key/value heads"
    raise ModelError(
        f"a tensor size of {size} must divide what the model has: {has}; the nearest that does is "
        f"{' or '.join(map(str, near))}"
    )


def _plan(config: PreTrainedConfig) -> dict[str, str]:
    plan = config.get_text_config().base_model_tp_plan or {}
    below = tuple(f"{path}." for path, cut in plan.items() if cut == EXPERTS)
    return {path: cut for path, cut in plan.items() if path not in EMBEDDINGS and not path.startswith(below)}


def _counts(config: PreTrainedConfig) -> dict[str, int]:
    text = config.get_text_config()
    counts = {name: getattr(text, name) for name in (*COUNTS, KEY_VALUE_HEADS) if hasattr(text, name)}
    if EXPERTS in _plan(config).values() and (experts := max(plan.experts for plan in layer_plans(text))):
        counts[MIXTURE] = experts
    return counts


def _can_share(config: PreTrainedConfig) -> bool:
    """Return whether the plan says by name which layers lead to key/value heads."""
    columns = {path.rpartition(".")[2] for path, cut in _plan(config).items() if cut == COLUMN}
    return {KEYS, VALUES} <= columns


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

    def rows(self, rank: int) -> slice:
        """Return the rows of a projection to keys or values that a rank of the tensor axis computes.

        >>> heads = SharedHeads(ranks=4, query=8, key_value=2, width=16)
        >>> [heads.rows(rank) for rank in (1, 2)]
        [slice(0, 16, None), slice(16, 32, None)]
        """
        head = rank * self.key_value // self.ranks
        return slice(head * self.width, (head + 1) * self.width)


def shared_heads(config: PreTrainedConfig, size: int) -> SharedHeads | None:
    """Return how `size` ranks share key/value heads; None if each has heads of its own."""
    text = config.get_text_config()
    query = text.num_attention_heads
    key_value = getattr(text, "num_key_value_heads", query)  # a family without the number has one for each query
    if key_value >= size:
        return None
    width = getattr(text, "head_dim", None) or text.hidden_size // query
    return SharedHeads(ranks=size, query=query, key_value=key_value, width=width)


def split_over_tensor(model: PreTrainedModel, mesh: Mesh) -> None:
    """Reduce a model, or a pipeline stage of it, adapter included, to this rank's part.

    Every rank has the same model before. ModelError: it cannot be split over so many ranks, and is left unchanged.
    """
    axis, decoder = mesh.devices[AXIS], model.base_model
    check_tensor_size(model.config, axis.size())
    plan, heads = tensor_plan(model.config), shared_heads(model.config, axis.size())
    layers = dict[str, tuple[nn.Module, LayerSplit]]()
    for path, module in decoder.named_modules():
        cut = plan.get(re.sub(r"\.\d+\.", ".*.", path))
        if cut is not None:
            by_head = heads is not None and cut == COLUMN and path.rpartition(".")[2] in (KEYS, VALUES)
            layers[path] = module, HEAD if by_head else cut
    cut_apart = dict.fromkeys(path.rpartition(".")[0] for path, (_, cut) in layers.items() if cut != EXPERTS)
    blocks = {path: decoder.get_submodule(path) for path in cut_apart}
    for path, (module, cut) in layers.items():
        _check_layer(path, module, cut, axis.size(), heads)
    for path, block in blocks.items():
        _check_block(path, block, layers, heads)
    for module, cut in layers.values():
        _cut_layer(module, cut, axis, heads)
    for block in blocks.values():
        if heads is not None and hasattr(block, GROUPS):
            setattr(block, GROUPS, heads.groups)
        block.__class__ = combined(Block, type(block))  # type: ignore[arg-type]  # mypy takes a class for unhashable
        setattr(block, "tensor_axis", axis)  # noqa: B010  # torch types a module's attributes as modules
    _cut_vocabulary(model, axis)


def _check_layer(path: str, module: Any, cut: LayerSplit, size: int, heads: SharedHeads | None) -> None:
    if cut == EXPERTS:
        _check_experts(path, module, size)
    if cut not in (COLUMN, ROW, HEAD):
        return
    base = _base(module)
    if type(base) not in (nn.Linear, ProductLinear):
        raise ModelError(f"{path} is a {type(base).__name__}, and plain linear layers alone can be split over ranks")
    if base is not module:
        # low-rank matrices beside the layer, and nothing else, are a sum that can be split
        others = {name.split(".")[0] for name, _ in module.named_parameters()} - {"base_layer", "lora_A", "lora_B"}
        variants: Any = getattr(module, "lora_variant", None)
        if others or variants:
            kind = ", ".join(sorted(others)) or ", ".join(type(variant).__name__ for variant in variants.values())
            raise ModelError(
                f"the adapter of {path} has {kind}, which cannot be split over ranks; use plain LoRA or a "
                "tensor size of 1"
            )
    width: int = base.weight.shape[1 if cut == ROW else 0]
    if cut == HEAD:
        assert heads is not None
        if width != heads.out_features:
            raise ModelError(
                f"{path} has {width} outputs, and the model's key/value heads, which {size} ranks would share, have "
                f"{heads.key_value} x {heads.width}; use a tensor size that divides {heads.key_value}"
            )
    elif width % size:
        raise ModelError(f"{path} has a width of {width}, which a tensor size of {size} must divide")


def _check_experts(path: str, module: Any, size: int) -> None:
    if _base(module) is not module:
        raise ModelError(f"{path} has an adapter beside its experts, which cannot be split; use a tensor size of 1")
    if experts_by(module) != NAME:
        raise ModelError(f"{path} computes its experts by itself, which takes all of them; use a tensor size of 1")
    if module.num_experts % size:
        raise ModelError(f"{path} has {module.num_experts} experts, which a tensor size of {size} must divide")


def _check_block(
    path: str, block: nn.Module, layers: Mapping[str, tuple[nn.Module, LayerSplit]], heads: SharedHeads | None
) -> None:
    """Check that every parameter of a block is in the plan: between column and row layers only parts are computed."""
    cuts = {name.removeprefix(f"{path}."): cut for name, (_, cut) in layers.items() if name.startswith(f"{path}.")}
    if COLUMN not in cuts.values() or ROW not in cuts.values():
        raise ModelError(f"the plan of {path} has no column layers, or no row layer to add up what they lead to")
    for name, _ in block.named_parameters():
        if name.split(".")[0] not in cuts:
            raise ModelError(f"the plan of {path} leaves out {name}, whose gradient would be that of a part")
    counted = [name for name in HEAD_COUNTS if hasattr(block, name)]
    if counted:
        raise ModelError(f"{path} computes with {counted[0]}, which would be that of the whole model")
    projections = sum(cut == HEAD for cut in cuts.values())
    if heads is not None and projections != (2 if hasattr(block, GROUPS) else 0):
        raise ModelError(
            f"which layers of {path} lead to {heads.key_value} key/value heads cannot be told, and several ranks would "
            f"have to share these; use a tensor size that divides {heads.key_value}"
        )


def _cut_layer(module: Any, cut: LayerSplit, axis: DeviceMesh, heads: SharedHeads | None) -> None:
    base = _base(module)
    if cut == EXPERTS:
        _cut_parameters(module, dict.fromkeys(module._parameters, 0), axis)
        module.__class__, module.tensor_axis = combined(ExpertsBlock, type(module)), axis  # type: ignore[arg-type]
    elif cut in (COLUMN, ROW, HEAD):
        _cut_linear(base, cut, axis, heads)
    else:
        _mark_partial(module)
    if base is module:
        return
    for first in module.lora_A.values():
        if cut == ROW:
            _cut_linear(first, cut, axis, heads)
        else:
            _mark_partial(first)
    for second in module.lora_B.values():
        if cut in (COLUMN, HEAD):
            _cut_linear(second, cut, axis, heads)


def _cut_linear(linear: Any, cut: LayerSplit, axis: DeviceMesh, heads: SharedHeads | None) -> None:
    if cut == HEAD:
        assert heads is not None
        linear.rows = heads.rows(axis.get_local_rank())
    else:
        _cut_parameters(linear, ROWS if cut == COLUMN else COLUMNS, axis)
    linear.__class__ = {COLUMN: ColumnLinear, ROW: RowLinear, HEAD: HeadLinear}[cut]


def _mark_partial(module: nn.Module) -> None:
    module.__class__ = combined(PartialGradients, type(module))  # type: ignore[arg-type]  # mypy takes a class for unhashable


def _cut_vocabulary(model: PreTrainedModel, axis: DeviceMesh) -> None:
    """Split both embeddings, which may be tied. The output's keeps its class, which `MeshLayout.logit_passes` reads."""
    head: Any = model.get_output_embeddings()
    embedding = _base(model.get_input_embeddings())
    there = [end for end in (embedding, head) if hasattr(end, "weight")]  # the others are another rank's of a pipeline
    cut = [end for end in there if len(end.weight) % axis.size() == 0]
    if len(cut) == 2 and embedding.weight is head.weight:
        _cut_parameters(head, ROWS, axis)
        embedding.weight = head.weight
    else:
        for end in cut:
            _cut_parameters(end, ROWS, axis)
    if embedding in cut:
        kind = type(embedding)
        embedding.__class__ = (
            VocabularyEmbedding if kind is nn.Embedding else combined(kind, VocabularyEmbedding)  # type: ignore[arg-type]
        )


def _cut_parameters(module: nn.Module, dimensions: Mapping[str, int], axis: DeviceMesh) -> None:
    for name, dimension in dimensions.items():
        whole = getattr(module, name, None)
        if whole is not None:
            part = whole.detach().chunk(axis.size(), dimension)[axis.get_local_rank()]
            part = part.clone(memory_format=torch.contiguous_format)  # a view would hold the whole
            part = DTensor.from_local(part, axis, [Shard(dimension)], run_check=False)
            setattr(module, name, nn.Parameter(part, requires_grad=whole.requires_grad))


def _base(module: nn.Module) -> Any:
    """Return the layer that one of peft's wraps; any other is returned as it is."""
    return module.base_layer if type(module).__module__.startswith("peft.") else module
