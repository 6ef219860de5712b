"""How a decoder's layers can be cut along heads and widths: the model's own plan, and the numbers of ranks that fit it.

transformers gives most decoders a plan (`base_model_tp_plan`): a layer's path to how it is cut.
"""

import math
import re
from collections.abc import Mapping
from typing import Literal, cast

from transformers import PreTrainedConfig

from paceline.errors import ModelError

Cut = Literal["colwise", "rowwise", "replicated_with_grad_allreduce"]
COLUMN: Cut = "colwise"
"""Each rank has some of a linear layer's outputs: rows of its weight."""
ROW: Cut = "rowwise"
"""Each rank has some of its inputs: columns of its weight, whose products are added up over ranks."""
PARTIAL: Cut = "replicated_with_grad_allreduce"
"""Each rank has all of a norm and applies it to its own heads: its gradient is a part of the whole one."""
EMBEDDING = "embed_tokens"
"""The two embeddings are cut by tokens, whatever a plan says."""
COUNTS = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "intermediate_size": "elements of its feed-forward width",
}


def tensor_plan(config: PreTrainedConfig) -> Mapping[str, Cut]:
    """Paths of layers in the decoder, with `*` for a layer's number, to how each is cut.

    Raises:
        ModelError: there is no plan, or it has a cut that is not known here, or layers differ in their heads.
    """
    problem = _problem(config)
    if problem:
        raise ModelError(problem)
    return cast(Mapping[str, Cut], _plan(config))


def cut_of(path: str, plan: Mapping[str, Cut]) -> Cut | None:
    """How the layer of this path in the decoder is cut; None: the plan leaves it whole."""
    return plan.get(re.sub(r"\.\d+\.", ".*.", path))


def tensor_sizes(config: PreTrainedConfig) -> list[int]:
    """Over how many ranks the model can be split: what divides its heads and its width; 1 is always among them."""
    most = 1 if _problem(config) else math.gcd(*_counts(config).values())
    return [size for size in range(1, most + 1) if most % size == 0]


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
    has = ", ".join(f"{count} {COUNTS[name]}" for name, count in _counts(config).items())
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
    return {name: getattr(text, name) for name in COUNTS if hasattr(text, name)}
