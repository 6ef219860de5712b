"""Attention by torch's batched products over a cache where rows that share a prompt are folded into the query length.

S rows, G slots (one prompt each), W rows of the largest group, L prompt length, C columns. H query heads, K key/value
heads, R = H / K, D head width. One product per key/value head serves a whole group.

All rows write their next token at the same column, whatever their age: the position is already in the rotated keys,
so a row only remembers the column that it started at. A finished row's place is taken over without moving anything.
Heads come first in every tensor: then grid order (slot by slot) and row order are the same memory in the usual case.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from paceline.engines.local.attention import Rotation, SharedAttention, causal_attention, rotated
from paceline.kernels.cpu.decoding import Heads

TILE = 8
"""Prompts and completions are read in whole tiles of columns: remainders leave the processor's vectors part empty."""
LEAST_COLUMNS = 16
"""Below this many columns torch's batched product falls back to a loop that is slower than the columns are worth."""
FIRST_COLUMNS = 64
_NO_SLOT = -1


def whole_tiles(columns: int) -> int:
    """`columns` rounded up to a multiple of TILE, at least LEAST_COLUMNS."""
    return max(LEAST_COLUMNS, -(-columns // TILE) * TILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """The columns that each row reads, derived from the cache's tables whenever rows come or go."""

    width: int
    """Rows of the largest group (W)."""
    prompt_columns: int
    """Columns of the longest prompt in use, in whole tiles (L)."""
    first_column: int
    """Oldest column of completions that a living row reads, rounded down to a whole tile."""
    row_at: Int[Tensor, " G*W"] | None
    """Row at each place of the slots-by-W grid; None: rows already lie in grid order."""
    place_of: Int[Tensor, " S"] | None
    """Place of each row in that grid."""
    bias: Float[Tensor, "S 1 L+C"]
    """0 where a row reads (its prompt, then columns from `first_column` on), else -inf; one row where all are alike."""


class SharedCache:
    """Storage and tables. Its owner writes `own_keys[layer][:, :, column]` and calls `advance` after each token."""

    def __init__(self, num_rows: int, num_layers: int, heads_and_width: tuple[int, int], *, like: Tensor) -> None:
        """`like` gives precision and device."""
        self._like, self._layers, (self._heads, self._head_width) = like, num_layers, heads_and_width
        self.own_keys, self.own_values = self._storage(num_rows, FIRST_COLUMNS), self._storage(num_rows, FIRST_COLUMNS)
        self.prompt_keys, self.prompt_values = self._storage(0, 0), self._storage(0, 0)
        self.column = 0
        self._slot_of = np.full(num_rows, _NO_SLOT)
        self._start = np.zeros(num_rows, dtype=np.int64)
        self._alive = np.zeros(num_rows, dtype=bool)
        self._prompt_length = np.zeros(0, dtype=np.int64)

    def _storage(self, places: int, columns: int) -> list[Tensor]:
        # Zeros, not empty: a masked column is multiplied by 0, and 0 * nan is nan.
        shape = (self._heads, places, columns, self._head_width)
        return [self._like.new_zeros(shape) for _ in range(self._layers)]

    def position_offsets(self) -> Int[Tensor, " S"]:
        """Position of each row's next token, less the present column."""
        lengths = np.where(self._slot_of == _NO_SLOT, 0, self._prompt_length[self._slot_of])
        return torch.from_numpy(lengths - self._start).to(self._like.device)

    def take_slots(self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> list[int]:
        """A free slot for each prompt, with room for its keys; `rows[i]` start there at the present column."""
        in_use = set(self._slot_of[self._alive].tolist())
        free = [slot for slot in range(len(self._prompt_length)) if slot not in in_use]
        more = max(0, len(prompt_lengths) - len(free))
        free += range(len(self._prompt_length), len(self._prompt_length) + more)
        self._grow_prompts(more, whole_tiles(max(prompt_lengths)))
        slots = free[: len(prompt_lengths)]
        for slot, length, members in zip(slots, prompt_lengths, rows, strict=True):
            self._prompt_length[slot] = length
            index = np.asarray(members)
            self._slot_of[index], self._start[index], self._alive[index] = slot, self.column, True
        return slots

    def _grow_prompts(self, more_slots: int, length: int) -> None:
        slots, columns = self.prompt_keys[0].shape[1:3]
        if more_slots == 0 and length <= columns:
            return
        self._prompt_length = np.concatenate([self._prompt_length, np.zeros(more_slots, dtype=np.int64)])
        for stored in (self.prompt_keys, self.prompt_values):
            for layer, grown in enumerate(self._storage(slots + more_slots, max(length, columns))):
                grown[:, :slots, :columns] = stored[layer]
                stored[layer] = grown

    def release(self, rows: Sequence[int]) -> None:
        """These rows' completions have ended."""
        self._alive[np.asarray(rows)] = False

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """Keep these rows in this order, the first `alive` living, and the prompts that they need."""
        rows = keep.cpu().numpy()
        slots, renumbered = np.unique(self._slot_of[rows[:alive]], return_inverse=True)
        self._prompt_length = self._prompt_length[slots]
        self._start = self._start[rows]
        self._alive = np.arange(len(rows)) < alive
        self._slot_of = np.full(len(rows), _NO_SLOT)
        self._slot_of[:alive] = renumbered
        kept_slots = torch.from_numpy(slots).to(keep.device)
        for stored, index in (
            (self.own_keys, keep),
            (self.own_values, keep),
            (self.prompt_keys, kept_slots),
            (self.prompt_values, kept_slots),
        ):
            for layer, tensor in enumerate(stored):
                stored[layer] = tensor.index_select(1, index)

    def advance(self) -> bool:
        """Go on to the next column; True when columns were moved, so that `sharing` and offsets changed."""
        self.column += 1
        capacity = self.own_keys[0].shape[2]
        if self.column < capacity:
            return False
        first = self._first_column()
        # Behind a quarter of dead columns moving down is enough; else half as many again are added.
        shift, columns = (first, capacity) if 4 * first >= capacity else (0, whole_tiles(capacity * 3 // 2))
        for stored in (self.own_keys, self.own_values):
            for layer, grown in enumerate(self._storage(len(self._start), columns)):
                grown[:, :, : capacity - shift] = stored[layer][:, :, shift:]
                stored[layer] = grown
        self._start -= shift
        self.column -= shift
        return True

    def _first_column(self) -> int:
        oldest = self._start[self._alive].min() if self._alive.any() else self.column
        return int(oldest) // TILE * TILE

    def sharing(self) -> Sharing:
        """The present map between rows and prompts, with its mask."""
        living = np.flatnonzero(self._alive)
        slots = self._slot_of[living]
        counts = np.bincount(slots, minlength=len(self._prompt_length))
        width = int(counts.max())
        in_grid_order = np.array_equal(self._slot_of, np.repeat(np.arange(len(counts)), width))
        row_at, place_of = (None, None) if in_grid_order else self._grid(living, slots, width)
        prompt_columns = whole_tiles(int(self._prompt_length[counts > 0].max()))
        return Sharing(
            width=width,
            prompt_columns=prompt_columns,
            first_column=self._first_column(),
            row_at=row_at,
            place_of=place_of,
            bias=self._bias(prompt_columns, living),
        )

    def _bias(self, prompt_columns: int, living: np.ndarray) -> Float[Tensor, "S 1 L+C"]:
        """-inf at every column still to be written, too: the owner opens them one by one."""
        lengths = self._prompt_length[self._slot_of][:, None]
        own = np.arange(self._first_column(), self.own_keys[0].shape[2])
        reads_own = (own >= self._start[:, None]) & (own < self.column)
        reads = np.concatenate([np.arange(prompt_columns) < lengths, reads_own], axis=1)
        if (reads[living] == reads[living[0]]).all():
            reads = reads[living[:1]]
        hidden = torch.from_numpy(~reads[:, None]).to(self._like.device)
        return self._like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)

    def _grid(self, living: np.ndarray, slots: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
        order = np.argsort(slots, kind="stable")
        rank = np.arange(len(slots)) - np.searchsorted(slots[order], slots[order])
        places = slots[order] * width + rank
        row_at = np.zeros(len(self._prompt_length) * width, dtype=np.int64)
        row_at[places] = living[order]
        place_of = np.zeros(len(self._slot_of), dtype=np.int64)
        place_of[living[order]] = places
        device = self._like.device
        return torch.from_numpy(row_at).to(device), torch.from_numpy(place_of).to(device)


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
        qkv[:, :, :turned] = rotated(qkv[:, :, :turned], norm, self._rotation.norm_eps, cosine, sine)
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
        qk = rotated(qkv[:, :-kv_heads], norm, self._rotation.norm_eps, *self._turn)
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
