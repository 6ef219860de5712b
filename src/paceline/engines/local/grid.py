"""Attention by torch's batched products: rows that share a prompt are folded into the query length.

S rows, G slots, W rows of the largest group, L prompt length.
H query heads, K key/value heads, R = H / K, D head width. One product per key/value head serves a whole group.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from paceline.engines.local.attention import Rotation, SharedAttention, causal_attention
from paceline.engines.local.cache import SharedCache, whole_tiles
from paceline.engines.local.operations import rms_norm
from paceline.kernels.cpu.decoding import Heads


class GridAttention(SharedAttention):
    """A `SharedAttention` for any device and precision: those of the rotation's tables."""

    def __init__(self, num_rows: int, num_layers: int, heads: Heads, rotation: Rotation) -> None:
        self._heads, self._rotation = heads, rotation
        self._zero = rotation.cosine.new_zeros(1, 1, 1)
        self._cache = SharedCache(num_rows, num_layers, (heads.kv, heads.width), like=rotation.cosine)

    @override
    def take_slots(self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> Int[Tensor, " P"]:
        slots = self._cache.take_slots(prompt_lengths, rows)
        self._read_tables()
        return torch.tensor(slots, device=self._zero.device)

    @override
    def release(self, rows: Sequence[int]) -> None:
        self._cache.release(rows)

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        self._cache.compact(keep, alive)
        self._read_tables()

    def _read_tables(self) -> None:
        self._sharing, self._offsets = self._cache.sharing(), self._cache.position_offsets()

    @override
    def of_prompts(
        self, qkv: Float[Tensor, "P L (H+2K)*D"], layer: int, norm: Tensor | None, slots: Int[Tensor, " Q"]
    ) -> Float[Tensor, "P*L H*D"]:
        length, turned = qkv.shape[1], self._heads.query + self._heads.kv
        qkv = qkv.unflatten(-1, (-1, self._heads.width))
        cosine, sine = self._rotation.cosine[:length, None], self._rotation.sine[:length, None]
        qkv[:, :, :turned] = self._rotated(qkv[:, :, :turned], norm, cosine, sine)
        for store, kept in (
            (self._cache.prompt_keys, qkv[:, :, self._heads.query : turned]),
            (self._cache.prompt_values, qkv[:, :, turned:]),
        ):
            store[layer][:, slots, :length] = kept[: len(slots)].permute(2, 0, 1, 3)
        return causal_attention(qkv, self._heads)

    @override
    def begin_step(self) -> None:
        cosine, sine = self._rotation.cosine, self._rotation.sine
        # Rows without a completion may be older than any completion gets: their position stays within the table.
        positions = (self._offsets + self._cache.column).clamp_(max=cosine.shape[0] - 1)
        self._turn = cosine[positions][:, None], sine[positions][:, None]
        sharing = self._sharing
        sharing.bias[:, :, sharing.prompt_columns + self._cache.column - sharing.first_column] = 0

    @override
    def end_step(self) -> None:
        if self._cache.advance():
            self._read_tables()

    @override
    def of_step(self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, norm: Tensor | None) -> Float[Tensor, "S H*D"]:
        column, kv_heads = self._cache.column, self._heads.kv
        qkv = qkv.view(len(qkv), -1, self._heads.width)
        qk = self._rotated(qkv[:, :-kv_heads], norm, *self._turn)
        self._cache.own_keys[layer][:, :, column] = qk[:, self._heads.query :].transpose(0, 1)
        self._cache.own_values[layer][:, :, column] = qkv[:, -kv_heads:].transpose(0, 1)
        return self._over_prompts_and_own(qk[:, : self._heads.query], layer)

    def _over_prompts_and_own(self, query: Float[Tensor, "S H D"], layer: int) -> Float[Tensor, "S H*D"]:
        """Each row over its group's prompt (L columns) and its own tokens, under one softmax."""
        cache, sharing, rows, kv_heads = self._cache, self._sharing, query.shape[0], self._heads.kv
        length, groups = sharing.prompt_columns, cache.prompt_keys[layer].shape[1]
        own = slice(sharing.first_column, sharing.first_column + whole_tiles(cache.column + 1 - sharing.first_column))
        query = query.unflatten(1, (kv_heads, -1)).transpose(0, 1).flatten(0, 1)
        by_prompt = self._scores(self._to_grid(query, groups), cache.prompt_keys[layer][:, :, :length])
        by_own = self._scores(query, cache.own_keys[layer][:, :, own])
        scores = torch.cat((self._to_rows(by_prompt, rows), by_own), dim=-1)
        scores = scores.view(kv_heads, rows, -1, scores.shape[-1]).add_(sharing.bias[..., : scores.shape[-1]])
        exact = torch.float32 if query.dtype == torch.bfloat16 else None
        shares = scores.softmax(-1, dtype=exact).to(query.dtype).flatten(0, 1)
        prompt_values = cache.prompt_values[layer][:, :, :length].flatten(0, 1)
        own_values = cache.own_values[layer][:, :, own].flatten(0, 1)
        from_prompt = torch.bmm(self._to_grid(shares[..., :length], groups), prompt_values)
        mixed = torch.baddbmm(self._to_rows(from_prompt, rows), shares[..., length:], own_values)
        return mixed.view(kv_heads, rows, -1).transpose(0, 1).reshape(rows, -1)

    def _scores(self, query: Float[Tensor, "N X D"], keys: Float[Tensor, "K N/K T D"]) -> Float[Tensor, "N X T"]:
        keys = keys.flatten(0, 1).transpose(1, 2)
        return torch.baddbmm(self._zero, query, keys, beta=0, alpha=self._heads.width**-0.5)

    def _to_grid(self, by_row: Float[Tensor, "K*S R X"], groups: int) -> Float[Tensor, "K*G W*R X"]:
        """Rows to groups: the group's rows beside each other in the query length. No copy where rows lie in order."""
        row_at = self._sharing.row_at
        if row_at is not None:
            by_row = by_row.view(self._heads.kv, -1, *by_row.shape[1:]).index_select(1, row_at)
        # with one kv head the queries are still a slice of qkv, so this may have to copy
        return by_row.reshape(self._heads.kv * groups, -1, by_row.shape[-1])

    def _to_rows(self, grid: Float[Tensor, "K*G W*R X"], rows: int) -> Float[Tensor, "K*S R X"]:
        """The inverse of `_to_grid`."""
        place_of, repeats = self._sharing.place_of, self._heads.query // self._heads.kv
        if place_of is not None:
            grid = grid.view(self._heads.kv, -1, repeats, grid.shape[-1]).index_select(1, place_of)
        return grid.view(self._heads.kv * rows, repeats, grid.shape[-1])

    def _rotated(self, qk: Float[Tensor, "... H+K D"], norm: Tensor | None, cosine: Tensor, sine: Tensor) -> Tensor:
        if norm is not None:
            qk = rms_norm(qk, norm, self._rotation.norm_eps)
        return torch.mul(qk, cosine).addcmul_(qk.roll(self._heads.width // 2, -1), sine)
