"""Attention by the formulas, where torch's own has neither sinks nor a cap of the scores: any device and precision.

B rows of T queries and U keys; H query heads, K key/value heads, widths D and E.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def dense_attention(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K U D"],
    value: Float[Tensor, "B K U E"],
    mask: Bool[Tensor, "B_or_1 1 T_or_1 U_or_1"] | None,
    scaling: float,
    cap: float | None,
    sinks: Float[Tensor, " H"] | None,
) -> Float[Tensor, "B H T E"]:
    """Attend by the formulas, with a cap of the scores and sinks; without a mask, causally over the same tokens."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    # not infinity: a row of padding alone sees nothing
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    shares = scores.softmax(-1)[..., : key.shape[2]]
    return shares.to(value.dtype) @ value


def attention_in_rows(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K U D"],
    value: Float[Tensor, "B K U E"],
    mask: Bool[Tensor, "B_or_1 1 T U"] | None,
    scaling: float,
    cap: float | None,
    sinks: Float[Tensor, " H"] | None,
) -> Float[Tensor, "B T H E"]:
    """Run transformers' attention interface over rows; the mask is that of its scaled-dot-product attention."""
    queries = query.shape[2]
    if mask is None and queries == 1:
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    elif mask is None:  # keys behind the queries are places of a cache that nothing has filled yet
        key, value = key[:, :, :queries], value[:, :, :queries]
    return dense_attention(query, key, value, mask, scaling, cap, sinks).transpose(1, 2).contiguous()
