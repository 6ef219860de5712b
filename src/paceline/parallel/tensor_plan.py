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
WHOLE: Cut = "replicated_with_grad_allreduce"
"""Each rank has all of a norm, and applies it to its own heads."""
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
        ModelError: there is no plan, or it has a cut that is not known here.
    """
    text = config.get_text_config()
    plan = {path: cut for path, cut in (text.base_model_tp_plan or {}).items() if path != EMBEDDING}
    if not plan:
        raise ModelError(
            f"a {text.model_type} model cannot be split over a tensor axis, because transformers has no plan for it; "
            "use a tensor size of 1 or another family"
        )
    for path, cut in plan.items():
        if cut not in (COLUMN, ROW, WHOLE):
            raise ModelError(
                f"a {text.model_type} model cannot be split over a tensor axis, because its plan cuts {path} by "
                f"{cut!r}, and {COLUMN!r}, {ROW!r} and {WHOLE!r} are known; use a tensor size of 1 or another family"
            )
    return cast(Mapping[str, Cut], plan)


def cut_of(path: str, plan: Mapping[str, Cut]) -> Cut | None:
    """How the layer of this path in the decoder is cut; None: the plan leaves it whole."""
    return plan.get(re.sub(r"\.\d+\.", ".*.", path))


def tensor_sizes(config: PreTrainedConfig) -> list[int]:
    """Over how many ranks the model's heads and width can be split evenly, 1 among them.

    Raises:
        ModelError: heads or width differ from layer to layer.
    """
    most = math.gcd(*_counts(config).values())
    return [size for size in range(1, most + 1) if most % size == 0]


def check_tensor_size(config: PreTrainedConfig, size: int) -> None:
    """Refuse a number of ranks that the model cannot be split over.

    Raises:
        ModelError: the sentence names the numbers that it has to divide, and the nearest that do.
    """
    if size == 1:
        return
    tensor_plan(config)
    counts, sizes = _counts(config), tensor_sizes(config)
    if size in sizes:
        return
    near = [max(one for one in sizes if one < size), *(one for one in sizes if one > size)][:2]
    has = ", ".join(f"{count} {COUNTS[name]}" for name, count in counts.items())
    raise ModelError(
        f"a tensor size of {size} must divide what the model has: {has}; the nearest that does is "
        f"{' or '.join(map(str, near))}"
    )


def _counts(config: PreTrainedConfig) -> dict[str, int]:
    text = config.get_text_config()
    counts = {name: getattr(text, name) for name in COUNTS if hasattr(text, name)}
    for name, count in counts.items():
        if not isinstance(count, int):
            raise ModelError(
                f"a {text.model_type} model cannot be split over a tensor axis, because its {name} is {count} and not "
                "one number for all layers; use a tensor size of 1 or another family"
            )
    return counts
