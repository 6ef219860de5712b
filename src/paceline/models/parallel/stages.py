"""A model's layers divided into pipeline stages: five layers on two ranks are 0 0 0 1 1.

Layers of other stages are stand-ins without parameters, so that names and numbers are those of the whole model.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.errors import ConfigError, ModelError

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """The stages of a pipeline, one for each of its ranks."""

    ranks: int
    rank: int
    """Index of this rank among them, from 0, which is its stage."""
    group: dist.ProcessGroup | None
    """The ranks of one pipeline, in the order of their stages."""

    @property
    def is_first(self) -> bool:
        """True if the embedding is here."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """True if the head is here."""
        return self.rank == self.ranks - 1

    def passes(self, count: int) -> int:
        """Return the fewest micro-batches, at least `count`, that the schedule can order; 0 stays 0."""
        return max(count, self.ranks) if count else 0


def divide(layers: int, stages: int) -> list[range]:
    """Divide layers evenly into stages; those at the ends may have one fewer, as embedding and head come on top.

    >>> divide(6, 4)
    [range(0, 1), range(1, 3), range(3, 5), range(5, 6)]

    Raises:
        ConfigError: there are fewer layers than stages.
    """
    if stages > layers:
        raise ConfigError(
            f"a pipeline over {stages} ranks has {stages} stages, more than the model's {layers} layers; take "
            + (f"1 to {layers} ranks" if layers > 1 else "1 rank")
        )
    fewest, more = divmod(layers, stages)
    middle_first = [*range(1, stages - 1), 0]
    sizes = [fewest + (stage in middle_first[:more]) for stage in range(stages)]
    return [range(sum(sizes[:stage]), sum(sizes[: stage + 1])) for stage in range(stages)]


class Elsewhere(nn.Module):
    """Identity in place of a layer, embedding, norm or head of another stage."""

    def __init__(self, module: nn.Module) -> None:
        """Copy plain attributes of `module`, some of which a model's own loop over layers reads."""
        super().__init__()
        self.training = module.training
        for name, value in vars(module).items():
            if isinstance(value, _PLAIN) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(self, states: Tensor, *others: Any, **options: Any) -> Tensor:
        """Return the states."""
        return states


def own_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of a model on this rank."""
    return [layer for layer in cast(nn.ModuleList, model.base_model.layers) if not isinstance(layer, Elsewhere)]


def keep_stages(model: PreTrainedModel, stages: Stages) -> None:
    """Reduce a whole model to a rank's stage. A tied embedding stays at both ends.

    ConfigError: the model has fewer layers than there are stages. ModelError: it has other parts, or its
    stages compute something else than the whole model.
    """
    base: Any = model.base_model
    head, embedding = model.get_output_embeddings(), cast(nn.Embedding, model.get_input_embeddings())
    if not isinstance(getattr(base, "layers", None), nn.ModuleList) or head is None or len(_norms(base)) != 1:
        raise ModelError(
            f"{type(model).__name__} is not an embedding, layers, a norm and a head, which is what pipeline stages are "
            "made of; train it without a pipeline"
        )
    parts = divide(len(base.layers), stages.ranks)
    if embedding.weight.device.type != "meta":
        _check_stage_by_stage(model, parts)
    is_tied = head.weight is embedding.weight
    _keep_layers(base, parts[stages.rank])
    if is_tied and stages.is_first != stages.is_last:
        embedding.is_at_both_ends = True  # type: ignore[assignment]  # torch types attributes as modules
    elif not stages.is_first and not (is_tied and stages.is_last):
        _replace(model, embedding)
    if not stages.is_last:
        for norm in _norms(base):
            _replace(model, norm)
        _replace(model, head)


def mark_both_ends(model: PreTrainedModel) -> None:
    """Mark a tied embedding of which the pipeline's other end has a copy."""
    embedding: Any = model.get_input_embeddings()
    if getattr(embedding, "is_at_both_ends", False):
        embedding.weight.is_at_both_ends = True


def is_at_both_ends(parameter: nn.Parameter) -> bool:
    """Return whether this is a tied embedding in a pipeline whose other end has the output embedding."""
    return getattr(parameter, "is_at_both_ends", False)


def _keep_layers(base: Any, kept: Collection[int]) -> None:
    base.layers = nn.ModuleList(
        [layer if number in kept else Elsewhere(layer) for number, layer in enumerate(base.layers)]
    )


def _replace(model: nn.Module, part: nn.Module) -> None:
    """Replace `part` among the model's modules by a stand-in."""
    for owner in list(model.modules()):
        for name, child in owner.named_children():
            if child is part:
                setattr(owner, name, Elsewhere(child))


def _norms(base: Any) -> list[nn.Module]:
    """Return modules with weights beside embedding and layers: the final norm, if this stage has it."""
    others = (child for child in base.children() if child not in (base.layers, base.get_input_embeddings()))
    return [child for child in others if next(child.parameters(), None) is not None]


def _check_stage_by_stage(model: PreTrainedModel, parts: Sequence[range]) -> None:
    """Refuse a model that scales the input of its first layer, or whose layers read earlier layers' results."""
    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    entering = {"input_ids": ids}
    with torch.no_grad():
        whole = model.base_model(**entering, use_cache=False).last_hidden_state
        for part in parts:
            # a shallow copy of the base model, which shares the modules of its stage
            base: Any = copy.copy(model.base_model)
            base._modules = dict(base._modules)
            _keep_layers(base, part)
            if part is not parts[-1]:
                for norm in _norms(base):
                    _replace(base, norm)
            states = base(**entering, use_cache=False).last_hidden_state
            entering = {"inputs_embeds": states}
    if states.shape != whole.shape or not torch.allclose(
        states, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())
    ):
        raise ModelError(
            f"{type(model).__name__} computes something else in pipeline stages than as a whole; train it without a "
            "pipeline"
        )
