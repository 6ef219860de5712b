"""A model's layers to stages of a pipeline, and a stage as a model of its own that shares the whole one's modules.

    2 ranks, 5 layers, one stage each        0 0 0 1 1
    2 ranks, 8 layers, two stages each       0 0 1 1 0 0 1 1

Layers that lie elsewhere are stand-ins without parameters, so that names and numbers are those of the whole model.
"""

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.config.layout import Schedule
from paceline.errors import ConfigError, ModelError

STAGES_PER_RANK = {"1f1b": 1, "interleaved": 2, "zero_bubble": 1}

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """A rank's stages of a pipeline, and the order in which micro-batches go through them."""

    ranks: int
    place: int
    """This rank's among them."""
    schedule: Schedule
    group: dist.ProcessGroup | None
    """The ranks of one pipeline, in the order of their stages."""

    @property
    def number(self) -> int:
        """All of them."""
        return self.ranks * STAGES_PER_RANK[self.schedule]

    @property
    def own(self) -> range:
        """Those of this rank."""
        return range(self.place, self.number, self.ranks)

    @property
    def has_ends(self) -> tuple[bool, bool]:
        """True if the first stage is here, and whether the last one is."""
        return 0 in self.own, self.number - 1 in self.own

    def passes(self, count: int) -> int:
        """The fewest micro-batches, at least `count`, that the schedule can order; none stay none.

        >>> Stages(ranks=4, place=0, schedule="interleaved", group=None).passes(9)
        10
        """
        if count == 0 or self.schedule == "1f1b":
            return max(count, self.ranks) if count else 0
        while count % max(1, count // self.ranks):  # rounds of equal length, each of at least one per rank
            count += 1
        return count


def divide(layers: int, stages: int) -> list[range]:
    """Divide layers evenly into stages; those at the ends may have one fewer, as embedding and head come on top.

    >>> divide(6, 4)
    [range(0, 1), range(1, 3), range(3, 5), range(5, 6)]

    Raises:
        ConfigError: there are fewer layers than stages.
    """
    if not 1 <= stages <= layers:
        raise ConfigError(f"{layers} layers make 1 to {layers} pipeline stages, not {stages}")
    fewest, more = divmod(layers, stages)
    middle_first = [*range(1, stages - 1), 0]
    sizes = [fewest + (stage in middle_first[:more]) for stage in range(stages)]
    return [range(sum(sizes[:stage]), sum(sizes[: stage + 1])) for stage in range(stages)]


def check_stages(layers: int, ranks: int, schedule: Schedule) -> None:
    """Refuse a pipeline of more stages than a model has layers.

    Raises:
        ConfigError: naming the sizes that there can be.
    """
    each = STAGES_PER_RANK[schedule]
    if ranks > 1 and ranks * each > layers:
        most = layers // each
        raise ConfigError(
            f"a pipeline over {ranks} ranks has {ranks * each} stages under the schedule {schedule}, more than the "
            f"model's {layers} layers; take " + (f"1 to {most} ranks" if most > 1 else "1 rank")
        )


class Elsewhere(nn.Module):
    """Stands where a layer, an embedding, a norm or a head of another stage belongs. Gives back what it is given."""

    def __init__(self, module: nn.Module) -> None:
        """Plain attributes of `module` stay readable, as a model's own loop asks a layer for some of them."""
        super().__init__()
        self.training = module.training
        for name, value in vars(module).items():
            if isinstance(value, _PLAIN) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(self, states: Tensor, *others: Any, **options: Any) -> Tensor:
        """The states themselves."""
        return states


def own_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a model that lie on this rank."""
    return [layer for layer in cast(nn.ModuleList, model.base_model.layers) if not isinstance(layer, Elsewhere)]


def keep_stages(model: PreTrainedModel, stages: Stages) -> None:
    """Leave a rank its stages of a whole model. An embedding that is the head's matrix too stays at both ends.

    Raises:
        ConfigError: the model has fewer layers than there are stages.
        ModelError: stage by stage the model computes something else than as a whole.
    """
    _check_plan(model)
    base: Any = model.base_model
    head, embedding = model.get_output_embeddings(), cast(nn.Embedding, model.get_input_embeddings())
    check_stages(len(base.layers), stages.ranks, stages.schedule)
    if embedding.weight.device.type != "meta":
        _check_stage_by_stage(model, stages)
    parts, (is_first, is_last) = divide(len(base.layers), stages.number), stages.has_ends
    is_tied = head.weight is embedding.weight
    _keep_layers(base, {number for stage in stages.own for number in parts[stage]})
    if is_tied and is_first != is_last:
        embedding.is_at_both_ends = True  # type: ignore[assignment]  # torch types attributes as modules
    elif not is_first and not (is_tied and is_last):
        _replace(model, embedding)
    if not is_last:
        for norm in _norms(base):
            _replace(model, norm)
        _replace(model, head)


def mark_both_ends(model: PreTrainedModel) -> None:
    """Let the parameter tell that the rank at the pipeline's other end holds a copy of it too, where that is so."""
    embedding: Any = model.get_input_embeddings()
    if getattr(embedding, "is_at_both_ends", False):
        embedding.weight.is_at_both_ends = True


def is_at_both_ends(parameter: nn.Parameter) -> bool:
    """Return whether this is a tied embedding in a pipeline whose other end has the output embedding."""
    return getattr(parameter, "is_at_both_ends", False)


def stage_of(model: PreTrainedModel, stages: Stages, stage: int) -> PreTrainedModel:
    """One stage as a base model, of a whole model or of what `keep_stages` left. It shares the model's modules."""
    base: Any = copy.copy(model.base_model)
    base._modules = dict(base._modules)
    _keep_layers(base, set(divide(len(base.layers), stages.number)[stage]))
    if stage < stages.number - 1:
        for norm in _norms(base):
            _replace(base, norm)
    stage_model: PreTrainedModel = base
    return stage_model


def _keep_layers(base: Any, kept: Collection[int]) -> None:
    base.layers = nn.ModuleList(
        [layer if number in kept else _elsewhere(layer) for number, layer in enumerate(base.layers)]
    )


def _elsewhere(module: nn.Module) -> nn.Module:
    return module if isinstance(module, Elsewhere) else Elsewhere(module)


def _replace(model: nn.Module, part: nn.Module) -> None:
    """Put a stand-in where `part` is among the model's modules."""
    for owner in list(model.modules()):
        for name, child in owner.named_children():
            if child is part:
                setattr(owner, name, Elsewhere(child))


def _norms(base: Any) -> list[nn.Module]:
    """What has weights beside embedding and layers: the final norm, or nothing where another stage has it."""
    others = (child for child in base.children() if child not in (base.layers, base.get_input_embeddings()))
    return [child for child in others if next(child.parameters(), None) is not None]


def _check_plan(model: PreTrainedModel) -> None:
    base, head = model.base_model, model.get_output_embeddings()
    if not isinstance(getattr(base, "layers", None), nn.ModuleList) or head is None or len(_norms(base)) != 1:
        raise ModelError(
            f"{type(model).__name__} is not an embedding, layers, a norm and a head, which is what pipeline stages are "
            "made of; train it without a pipeline"
        )


def _check_stage_by_stage(model: PreTrainedModel, stages: Stages) -> None:
    """Such as a model that scales whatever enters its first layer, or whose layers read what earlier ones left."""
    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        whole = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        states = stage_of(model, stages, 0)(input_ids=ids, use_cache=False).last_hidden_state
        for stage in range(1, stages.number):
            states = stage_of(model, stages, stage)(inputs_embeds=states, use_cache=False).last_hidden_state
    if states.shape != whole.shape or not torch.allclose(
        states, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())
    ):
        raise ModelError(
            f"{type(model).__name__} computes something else in pipeline stages than as a whole; train it without a "
            "pipeline"
        )
