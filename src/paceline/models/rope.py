"""Rotary frequencies that do not depend on the batch: those of the run's longest sequence, for all tokens.

transformers chooses the frequencies of `longrope` and `dynamic` by the largest position of each call. A token's logits
then change with its neighbours, while keys in a cache keep the frequencies of an earlier call. vLLM chooses them by the
longest sequence that it is configured for, as here.
"""

from typing import Any, cast

import torch
from torch import nn

BY_LENGTH = frozenset({"longrope", "dynamic"})
"""Types of rotary embeddings whose frequencies depend on the sequence's length in transformers."""


def fix_rope(model: nn.Module, longest: int) -> None:
    """Make every rotary module compute as in a sequence of `longest` tokens, whatever the positions."""
    for module in model.modules():
        if _types(module) & BY_LENGTH:
            if not hasattr(module, "longest_sequence"):
                module.register_forward_pre_hook(_with_last_position, with_kwargs=True)
                module.register_forward_hook(lambda _, __, tables: tuple(table[..., :-1, :] for table in tables))
            setattr(module, "longest_sequence", longest)  # noqa: B010  # torch types a module's attributes as modules


def rope_by_length(model: nn.Module) -> str | None:
    """Describe in a sentence the `longrope` factors fixed for a run; None if the model has none."""
    for module in model.modules():
        if "longrope" in _types(module):
            longest, parameters = cast(int, module.longest_sequence), cast(Any, module).config.rope_parameters
            kinds = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
            # tokens that the short factors hold up to
            (original, *_) = (
                kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"
            )
            which = "long" if longest > original else "short"
            return (
                f"longrope: the {which} factors for every sequence, as a prompt with its completion may have {longest} "
                f"tokens and the short ones hold up to {original}"
            )
    return None


def _types(module: nn.Module) -> set[str]:
    """Return the types of rotary embeddings that a module computes: one, or one per type of layer."""
    kinds = getattr(module, "rope_type", None)
    return set(kinds.values()) if isinstance(kinds, dict) else {kinds} if isinstance(kinds, str) else set()


def _with_last_position(
    module: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Append the last position of the longest sequence to the requested ones."""
    states, positions, *others = *arguments, *([options.pop("position_ids")] if "position_ids" in options else [])
    last = torch.full_like(positions[..., :1], module.longest_sequence - 1)
    return (states, torch.cat([positions, last], dim=-1), *others), options
