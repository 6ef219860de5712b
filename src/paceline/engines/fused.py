"""Fused decoder: next-token logits of Llama-like models in few operations, each prompt computed and stored once.

S rows, P prompts, L prompt length, H query heads, K key/value heads, R = H / K, D head width. Rows that share a
prompt are folded into the query length, so that one product per key/value head serves the whole group.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engines.cache import SharedCache, whole_tiles
from paceline.engines.kernels import choose_kernels
from paceline.engines.rows import rounded_up
from paceline.engines.weights import LayerWeights, read_weights

PREFILL_TOKENS = 8192
"""Prompt tokens computed at once, at most (one longer prompt is computed alone): memory only."""


class FusedDecoder:
    """A `Decoder` that reads the model's weights afresh at each `begin`, so that it never sees stale ones."""

    refills = True

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        config = model.config
        self._model, self._dtype = model, dtype
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._kernels = choose_kernels(model.device, dtype)

    def begin(self, num_rows: int, max_length: int) -> None:
        """See `Decoder`."""
        self._weights = read_weights(self._model, self._dtype)
        like = self._weights.embedding
        self._cosine, self._sine = rope_tables(self._model, whole_tiles(max_length), like)
        self._zero = like.new_zeros(1, 1, 1)
        shape = (self._kv_heads, self._head_width)
        self._cache = SharedCache(num_rows, len(self._weights.layers), shape, like=like)

    def end(self) -> None:
        """See `Decoder`."""
        del self._weights, self._cache, self._cosine, self._sine

    def release(self, rows: Sequence[int]) -> None:
        """See `Decoder`."""
        self._cache.release(rows)

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """See `Decoder`."""
        self._cache.compact(keep, alive)
        self._read_tables()

    def _read_tables(self) -> None:
        self._sharing, self._offsets = self._cache.sharing(), self._cache.position_offsets()

    @torch.inference_mode()
    def admit(self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Float[Tensor, "P V"]:
        """See `Decoder`. Prompts of similar length should be neighbours: they are padded to one length."""
        slots = self._cache.take_slots([len(prompt) for prompt in prompts], rows)
        self._read_tables()
        longest = max(len(prompt) for prompt in prompts)
        at_once = max(1, PREFILL_TOKENS // longest)
        parts = [
            self._prefill(prompts[first : first + at_once], slots[first : first + at_once])
            for first in range(0, len(prompts), at_once)
        ]
        return self._logits(torch.cat(parts))

    def _prefill(self, prompts: Sequence[Sequence[int]], slots: list[int]) -> Float[Tensor, "P width"]:
        # Sizes are rounded because oneDNN compiles a kernel for each new one, for about a millisecond.
        length = whole_tiles(max(len(prompt) for prompt in prompts))
        ids = torch.zeros(rounded_up(len(prompts)), length, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        device = self._zero.device
        last = torch.tensor([row * length + len(prompt) - 1 for row, prompt in enumerate(prompts)], device=device)
        hidden = F.embedding(ids.view(-1).to(device), self._weights.embedding)
        slot_index = torch.tensor(slots, device=device)
        for index, layer in enumerate(self._weights.layers):
            mixed = self._prompt_attention(hidden, layer, index, slot_index, ids.shape)
            if index == len(self._weights.layers) - 1:
                hidden, mixed = hidden.index_select(0, last), mixed.index_select(0, last)
            hidden = self._after_attention(hidden, mixed, layer)
        return hidden

    def _prompt_attention(
        self, hidden: Tensor, layer: LayerWeights, index: int, slots: Tensor, shape: torch.Size
    ) -> Float[Tensor, "P*L H*D"]:
        """Causal attention within padded prompts: padding lies behind every token that counts, so no mask is needed."""
        qkv = self._qkv(hidden, layer).view(*shape, -1, self._head_width)
        cosine, sine = self._cosine[: shape[1], None], self._sine[: shape[1], None]
        qk = self._rotated(qkv[:, :, : -self._kv_heads], layer, cosine, sine).transpose(1, 2)
        query, key = qk[:, : self._heads], qk[:, self._heads :]
        value = qkv[:, :, -self._kv_heads :].transpose(1, 2)
        for store, new in ((self._cache.prompt_keys, key), (self._cache.prompt_values, value)):
            store[index][:, slots, : shape[1]] = new[: len(slots)].transpose(0, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(hidden.shape[0], -1)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " S"]) -> Float[Tensor, "S V"]:
        """See `Decoder`."""
        # Rows without a completion may be older than any completion gets: their position stays within the table.
        positions = (self._offsets + self._cache.column).clamp_(max=self._cosine.shape[0] - 1)
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        hidden = F.embedding(tokens, self._weights.embedding)
        column, sharing = self._cache.column, self._sharing
        sharing.bias[:, :, sharing.prompt_columns + column - sharing.first_column] = 0
        for index, layer in enumerate(self._weights.layers):
            qkv = self._qkv(hidden, layer).view(hidden.shape[0], -1, self._head_width)
            qk = self._rotated(qkv[:, : -self._kv_heads], layer, cosine, sine)
            self._cache.own_keys[index][:, :, column] = qk[:, self._heads :].transpose(0, 1)
            self._cache.own_values[index][:, :, column] = qkv[:, -self._kv_heads :].transpose(0, 1)
            mixed = self._shared_attention(qk[:, : self._heads], index)
            hidden = self._after_attention(hidden, mixed, layer)
        if self._cache.advance():
            self._read_tables()
        return self._logits(hidden)

    def _shared_attention(self, query: Float[Tensor, "S H D"], index: int) -> Float[Tensor, "S H*D"]:
        """Attention of each row over its group's prompt (L columns) and its own tokens, under one softmax."""
        cache, sharing, rows = self._cache, self._sharing, query.shape[0]
        length, groups = sharing.prompt_columns, cache.prompt_keys[index].shape[1]
        own = slice(sharing.first_column, sharing.first_column + whole_tiles(cache.column + 1 - sharing.first_column))
        query = query.unflatten(1, (self._kv_heads, -1)).transpose(0, 1).flatten(0, 1)
        by_prompt = self._scores(self._to_grid(query, groups), cache.prompt_keys[index][:, :, :length])
        by_own = self._scores(query, cache.own_keys[index][:, :, own])
        scores = torch.cat((self._to_rows(by_prompt, rows), by_own), dim=-1)
        scores = scores.view(self._kv_heads, rows, -1, scores.shape[-1]).add_(sharing.bias[..., : scores.shape[-1]])
        exact = torch.float32 if self._dtype == torch.bfloat16 else None
        shares = scores.softmax(-1, dtype=exact).to(self._dtype).flatten(0, 1)
        prompt_values = cache.prompt_values[index][:, :, :length].flatten(0, 1)
        own_values = cache.own_values[index][:, :, own].flatten(0, 1)
        from_prompt = torch.bmm(self._to_grid(shares[..., :length], groups), prompt_values)
        mixed = torch.baddbmm(self._to_rows(from_prompt, rows), shares[..., length:], own_values)
        return mixed.view(self._kv_heads, rows, -1).transpose(0, 1).reshape(rows, -1)

    def _scores(self, query: Float[Tensor, "N X D"], keys: Float[Tensor, "K N/K T D"]) -> Float[Tensor, "N X T"]:
        keys = keys.flatten(0, 1).transpose(1, 2)
        return torch.baddbmm(self._zero, query, keys, beta=0, alpha=self._head_width**-0.5)

    def _to_grid(self, by_row: Float[Tensor, "K*S R X"], groups: int) -> Float[Tensor, "K*G W*R X"]:
        """Rows to groups: the group's rows beside each other in the query length. No copy where rows lie in order."""
        row_at = self._sharing.row_at
        if row_at is not None:
            by_row = by_row.view(self._kv_heads, -1, *by_row.shape[1:]).index_select(1, row_at)
        # with one kv head the queries are still a slice of qkv, so this may have to copy
        return by_row.reshape(self._kv_heads * groups, -1, by_row.shape[-1])

    def _to_rows(self, grid: Float[Tensor, "K*G W*R X"], rows: int) -> Float[Tensor, "K*S R X"]:
        """The inverse of `_to_grid`."""
        place_of, repeats = self._sharing.place_of, self._heads // self._kv_heads
        if place_of is not None:
            grid = grid.view(self._kv_heads, -1, repeats, grid.shape[-1]).index_select(1, place_of)
        return grid.view(self._kv_heads * rows, repeats, grid.shape[-1])

    def _qkv(self, hidden: Float[Tensor, "N width"], layer: LayerWeights) -> Tensor:
        return self._kernels.linear(rms_norm(hidden, layer.attention_norm, self._weights.norm_eps), layer.qkv)

    def _rotated(self, qk: Float[Tensor, "... H+K D"], layer: LayerWeights, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotary embedding of queries and keys in one go; `sine` carries the sign of the first half."""
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, self._weights.norm_eps)
        return torch.mul(qk, cosine).addcmul_(qk.roll(self._head_width // 2, -1), sine)

    def _after_attention(self, hidden: Tensor, mixed: Tensor, layer: LayerWeights) -> Float[Tensor, "N width"]:
        hidden = self._kernels.linear_add(mixed, layer.output, hidden)
        normed = rms_norm(hidden, layer.mlp_norm, self._weights.norm_eps)
        return self._kernels.linear_add(self._kernels.gated(normed, layer.gate, layer.up), layer.down, hidden)

    def _logits(self, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N V"]:
        normed = rms_norm(hidden, self._weights.final_norm, self._weights.norm_eps)
        return self._kernels.linear(normed, self._weights.head)


def rms_norm(x: Float[Tensor, "... D"], scale: Float[Tensor, "*heads D"], eps: float) -> Float[Tensor, "... D"]:
    """x / rms(x) * scale, where the root mean square is taken in float32 whatever the precision, as transformers does.

    In float64 that rounding is far above all others, so it is repeated operation by operation.
    """
    if x.dtype == torch.float64:
        single = x.float()
        return scale * (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + eps)).double()
    if scale.dim() == 1:
        return F.rms_norm(x, (x.shape[-1],), scale, eps)
    return F.rms_norm(x, (x.shape[-1],), None, eps).mul_(scale)


def rope_tables(model: PreTrainedModel, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [length, D] from the model's own rotary module, so that its scaling is honoured.

    The rotation of x is x * cosine + roll(x, D / 2) * sine: the sign of the rotated half sits in the table.
    """
    positions = torch.arange(length, device=like.device)[None]
    cosine, sine = model.model.rotary_emb(like, positions)
    half = sine.shape[-1] // 2
    return cosine[0].contiguous(), torch.cat((-sine[0, :, :half], sine[0, :, half:]), dim=-1)
