"""Attention by torch's batched products over a cache where rows that share a prompt are folded into the query length.

S rows, G slots (one prompt each), W rows of the largest group, L prompt length, C columns. H query heads, K key/value
heads, R = H / K, D head width. One product per key/value head serves a whole group.

All rows write their next token at the same column, whatever their age: the position is already in the rotated keys,
so a row only remembers the column that it started at. A finished row is reused without moving anything.
Heads come first in every tensor: then grid order (slot by slot) and row order are the same memory in the usual case.
"""

from collections.abc import Sequence
from itertools import count, islice

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from paceline.engines.local.attention import (
    AttentionLayer,
    AttentionWeights,
    Context,
    SharedAttention,
    Turns,
    causal_attention,
    turned_heads,
)
from paceline.kernels.cpu.decoding import Heads

TILE = 8
"""Prompts and completions are read in whole tiles of columns: remainders leave the processor's vectors part empty."""
LEAST_COLUMNS = 16
"""Below this many columns torch's batched product falls back to a loop that is slower than the columns are worth."""
FIRST_COLUMNS = 64
_NO_SLOT = -1


def whole_tiles(columns: int) -> int:
    """Round `columns` up to a multiple of TILE, at least LEAST_COLUMNS."""
    return max(LEAST_COLUMNS, -(-columns // TILE) * TILE)


class GridAttention(SharedAttention):
    """A `SharedAttention` for any device and precision: those of the rotation's tables."""

    def __init__(self, num_rows: int, layers: Sequence[AttentionLayer], heads: Heads) -> None:
        self._heads, self._plans, self._layers = heads, layers, len(layers)
        self._rotations = {id(layer.rotation): layer.rotation for layer in layers}
        self._windows = {layer.window for layer in layers}
        self._like = layers[0].rotation.cosine
        self._zero = self._like.new_zeros(1, 1, 1)
        self.own_keys, self.own_values = self._storage(num_rows, FIRST_COLUMNS), self._storage(num_rows, FIRST_COLUMNS)
        self._prompt_keys, self._prompt_values = self._storage(0, 0), self._storage(0, 0)
        self.column = 0
        """Column of every row's next token."""
        self._slot_of = np.full(num_rows, _NO_SLOT)
        self._start = np.zeros(num_rows, dtype=np.int64)
        self._alive = np.zeros(num_rows, dtype=bool)
        self._prompt_length, self._shift = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def _storage(self, places: int, columns: int) -> list[Tensor]:
        # Zeros, not empty: a masked column is multiplied by 0, and 0 * nan is nan.
        shape = (self._heads.kv, places, columns, self._heads.width)
        return [self._like.new_zeros(shape) for _ in range(self._layers)]

    @override
    def take_slots(
        self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]], shifts: Sequence[int] | None = None
    ) -> Int[Tensor, " P"]:
        in_use = set(self._slot_of[self._alive].tolist())
        slots = list(islice((slot for slot in count() if slot not in in_use), len(prompt_lengths)))
        self._make_room(max(slots) + 1, max(prompt_lengths))
        for slot, length, members in zip(slots, prompt_lengths, rows, strict=True):
            self._prompt_length[slot] = length
            index = np.asarray(members)
            self._slot_of[index], self._start[index], self._alive[index] = slot, self.column, True
        self._shift[slots] = shifts or 0
        self._read_tables()
        return torch.tensor(slots, device=self._like.device)

    def _make_room(self, places: int, length: int) -> None:
        """Grow storage to at least this many slots and columns."""
        before, columns = len(self._prompt_length), self._prompt_keys[0].shape[2]
        places, length = max(before, places), max(columns, whole_tiles(length))
        if places > before or length > columns:
            more = np.zeros(places - before, dtype=np.int64)
            self._prompt_length, self._shift = (np.append(table, more) for table in (self._prompt_length, self._shift))
            for stored in (self._prompt_keys, self._prompt_values):
                for layer, grown in enumerate(self._storage(places, length)):
                    grown[:, :before, :columns] = stored[layer]
                    stored[layer] = grown

    @override
    def release(self, rows: Sequence[int]) -> None:
        self._alive[np.asarray(rows)] = False

    @override
    def park(self, rows: Sequence[int]) -> list[Context]:
        contexts = []
        for row in rows:
            slot, columns = self._slot_of[row], slice(int(self._start[row]), self.column)
            before = int(self._prompt_length[slot])
            stored = (
                ((prompts[:, slot, :before], owns[:, row, columns]) for prompts, owns in layer)
                for layer in self._of_layers()
            )
            layers = tuple(tuple(torch.cat(parts, dim=1) for parts in layer) for layer in stored)
            length, shift = before + columns.stop - columns.start, int(self._shift[slot])
            contexts.append(Context(length=length, layers=layers, shift=shift))
        return contexts

    def _of_layers(self) -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """Return each layer's keys, of prompts and of rows, and values."""
        keys, values = (
            zip(self._prompt_keys, self.own_keys, strict=True),
            zip(self._prompt_values, self.own_values, strict=True),
        )
        return list(zip(keys, values, strict=True))

    @override
    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        lengths, columns = [context.length for context in contexts], self._prompt_keys[0].shape[2]
        if max(lengths) > columns:  # contexts grow from turn to turn
            self._make_room(0, max(*lengths, columns * 3 // 2))
        slots = self.take_slots(lengths, [[row] for row in rows], [context.shift for context in contexts])
        for slot, context in zip(slots.tolist(), contexts, strict=True):
            for stored, kept in zip(self._of_layers(), context.layers, strict=False):
                for (prompts, _), tokens in zip(stored, kept, strict=True):
                    prompts[:, slot, : context.length] = tokens

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        rows = keep.cpu().numpy()
        slots, renumbered = np.unique(self._slot_of[rows[:alive]], return_inverse=True)
        self._prompt_length, self._shift = self._prompt_length[slots], self._shift[slots]
        self._start = self._start[rows]
        self._alive = np.arange(len(rows)) < alive
        self._slot_of = np.full(len(rows), _NO_SLOT)
        self._slot_of[:alive] = renumbered
        kept_slots = torch.from_numpy(slots).to(keep.device)
        for stored, index in (
            (self.own_keys, keep),
            (self.own_values, keep),
            (self._prompt_keys, kept_slots),
            (self._prompt_values, kept_slots),
        ):
            for layer, tensor in enumerate(stored):
                stored[layer] = tensor.index_select(1, index)
        if alive:
            self._read_tables()

    def _read_tables(self) -> None:
        """Derive masks and positions from the tables, after rows or columns have changed."""
        living, device = np.flatnonzero(self._alive), self._like.device
        slots = self._slot_of[living]
        counts = np.bincount(slots, minlength=len(self._prompt_length))
        self._first_column = self._oldest_column()
        # L: columns of the longest prompt in use
        self._prompt_columns = whole_tiles(int(self._prompt_length[counts > 0].max()))
        # position of each row's next token, less the present column
        lengths = np.where(self._slot_of == _NO_SLOT, 0, self._prompt_length[self._slot_of])
        shifts = np.where(self._slot_of == _NO_SLOT, 0, self._shift[self._slot_of])
        self.position_offsets, self._turned_by = (
            torch.from_numpy(table).to(device) for table in (lengths - self._start, shifts)
        )

        # the row at each place of the grid and the place of each row; None where rows already lie in grid order
        width = int(counts.max())
        self._row_at: Int[Tensor, " G*W"] | None = None
        self._place_of: Int[Tensor, " S"] | None = None
        if not np.array_equal(self._slot_of, np.repeat(np.arange(len(counts)), width)):
            order = np.argsort(slots, kind="stable")
            rank = np.arange(len(slots)) - np.searchsorted(slots[order], slots[order])
            places = slots[order] * width + rank
            row_at, place_of = np.zeros(len(counts) * width, dtype=np.int64), np.zeros_like(self._slot_of)
            row_at[places], place_of[living[order]] = living[order], places
            self._row_at, self._place_of = (torch.from_numpy(table).to(device) for table in (row_at, place_of))

        # 0 where a row reads, else -inf, also at columns still to be written: `begin_step` opens them one by one
        columns = np.arange(self._first_column, self.own_keys[0].shape[2])
        reads_own = (columns >= self._start[:, None]) & (columns < self.column)
        of_prompt = np.arange(self._prompt_columns) < self._prompt_length[self._slot_of][:, None]
        reads = np.concatenate([of_prompt, reads_own], axis=1)
        if (reads[living] == reads[living[0]]).all():
            reads = reads[living[:1]]
        hidden = torch.from_numpy(~reads[:, None]).to(device)
        self._bias: Float[Tensor, "S 1 L+C"] = self._like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        # positions of the tokens in these columns, for layers that look back over a window
        of_own = (lengths - self._start)[:, None] + columns
        of_prompts = np.broadcast_to(np.arange(self._prompt_columns), (len(lengths), self._prompt_columns))
        self._positions: Int[Tensor, "S L+C"] = torch.from_numpy(np.concatenate([of_prompts, of_own], axis=1)).to(
            device
        )

    def _oldest_column(self) -> int:
        """Return the oldest column of completions that a living row reads, rounded down to a whole tile."""
        oldest = self._start[self._alive].min() if self._alive.any() else self.column
        return int(oldest) // TILE * TILE

    @override
    def of_prompts(
        self,
        qkv: Float[Tensor, "P L (H+2K)*D"],
        layer: int,
        weights: AttentionWeights,
        slots: Int[Tensor, " Q"],
        known: int,
        turns: Turns | None = None,
    ) -> Float[Tensor, "P L-known H*D"]:
        length, turned, plan = qkv.shape[1], self._heads.query + self._heads.kv, self._plans[layer]
        qkv = qkv.unflatten(-1, (-1, self._heads.width))
        turn = turns or (plan.rotation.cosine[:length, None], plan.rotation.sine[:length, None])
        qkv[:, :, :turned] = turned_heads(qkv[:, :, :turned], self._heads, plan, weights.norm, turn)
        if plan.query_scales is not None:
            qkv[:, :, : self._heads.query].mul_(plan.query_scales[:length, None, None])
        for store, kept in (
            (self._prompt_keys, qkv[:, :, self._heads.query : turned]),
            (self._prompt_values, qkv[:, :, turned:]),
        ):
            store[layer][:, slots, :length] = kept[: len(slots)].permute(2, 0, 1, 3)
        return causal_attention(qkv, self._heads, known, plan, weights.sinks)

    @override
    def begin_step(self) -> None:
        # Rows without a completion may be older than any completion gets: their position stays within the table.
        self._now = (self.position_offsets + self.column).clamp_(max=len(self._like) - 1)
        turned = (self._now + self._turned_by).clamp_(min=0)
        self._turns = {
            number: (rotation.cosine[turned][:, None], rotation.sine[turned][:, None])
            for number, rotation in self._rotations.items()
        }
        self._bias[:, :, self._prompt_columns + self.column - self._first_column] = 0
        self._biases = {window: self._bias for window in self._windows}
        for window in self._windows:
            if window is not None:
                left = self._positions <= (self._now - window)[:, None]
                self._biases[window] = self._bias.masked_fill(left[:, None], -torch.inf)

    @override
    def end_step(self) -> None:
        self.column += 1
        capacity = self.own_keys[0].shape[2]
        if self.column < capacity:
            return
        first = self._oldest_column()
        # Behind a quarter of dead columns moving down is enough; else half as many again are added.
        shift, columns = (first, capacity) if 4 * first >= capacity else (0, whole_tiles(capacity * 3 // 2))
        for stored in (self.own_keys, self.own_values):
            for layer, grown in enumerate(self._storage(len(self._start), columns)):
                grown[:, :, : capacity - shift] = stored[layer][:, :, shift:]
                stored[layer] = grown
        self._start -= shift
        self.column -= shift
        self._read_tables()

    @override
    def of_step(
        self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, weights: AttentionWeights
    ) -> Float[Tensor, "S H*D"]:
        column, kv_heads, rows, plan = self.column, self._heads.kv, len(qkv), self._plans[layer]
        own_keys, own_values = self.own_keys[layer], self.own_values[layer]
        qkv = qkv.view(rows, -1, self._heads.width)
        qk = turned_heads(qkv[:, :-kv_heads], self._heads, plan, weights.norm, self._turns[id(plan.rotation)])
        own_keys[:, :, column] = qk[:, self._heads.query :].transpose(0, 1)
        own_values[:, :, column] = qkv[:, -kv_heads:].transpose(0, 1)

        # Each row attends to its group's prompt (L columns) and its own tokens, under one softmax.
        query = qk[:, : self._heads.query]
        if plan.query_scales is not None:
            query = query * plan.query_scales[self._now][:, None, None]
        query = query.unflatten(1, (kv_heads, -1)).transpose(0, 1).flatten(0, 1)
        length, groups = self._prompt_columns, self._prompt_keys[layer].shape[1]
        columns = slice(self._first_column, self._first_column + whole_tiles(column + 1 - self._first_column))
        scaling = plan.scaling or self._heads.width**-0.5
        by_prompt = self._scores(self._to_grid(query, groups), self._prompt_keys[layer][:, :, :length], scaling)
        by_own = self._scores(query, own_keys[:, :, columns], scaling)
        scores = torch.cat((self._to_rows(by_prompt, rows), by_own), dim=-1)
        if plan.cap is not None:
            scores.div_(plan.cap).tanh_().mul_(plan.cap)
        width = scores.shape[-1]
        scores = scores.view(kv_heads, rows, -1, width).add_(self._biases[plan.window][..., :width])
        if weights.sinks is not None:
            sinks = weights.sinks.to(scores.dtype).view(kv_heads, 1, -1, 1).expand(-1, rows, -1, -1)
            scores = torch.cat((scores, sinks), dim=-1)
        exact = torch.float32 if query.dtype == torch.bfloat16 else None
        shares = scores.softmax(-1, dtype=exact)[..., :width].to(query.dtype).flatten(0, 1)
        prompt_values = self._prompt_values[layer][:, :, :length].flatten(0, 1)
        from_prompt = torch.bmm(self._to_grid(shares[..., :length], groups), prompt_values)
        mixed = torch.baddbmm(
            self._to_rows(from_prompt, rows), shares[..., length:], own_values[:, :, columns].flatten(0, 1)
        )
        return mixed.view(kv_heads, rows, -1).transpose(0, 1).reshape(rows, -1)

    def _scores(
        self, query: Float[Tensor, "N X D"], keys: Float[Tensor, "K N/K T D"], scaling: float
    ) -> Float[Tensor, "N X T"]:
        keys = keys.flatten(0, 1).transpose(1, 2)
        return torch.baddbmm(self._zero, query, keys, beta=0, alpha=scaling)

    def _to_grid(self, by_row: Float[Tensor, "K*S R X"], groups: int) -> Float[Tensor, "K*G W*R X"]:
        """Fold rows of a group into the query length. No copy if rows are in order."""
        if self._row_at is not None:
            by_row = by_row.view(self._heads.kv, -1, *by_row.shape[1:]).index_select(1, self._row_at)
        # with one kv head the queries are still a slice of qkv, so this may have to copy
        return by_row.reshape(self._heads.kv * groups, -1, by_row.shape[-1])

    def _to_rows(self, grid: Float[Tensor, "K*G W*R X"], rows: int) -> Float[Tensor, "K*S R X"]:
        """Invert `_to_grid`."""
        repeats = self._heads.query // self._heads.kv
        if self._place_of is not None:
            grid = grid.view(self._heads.kv, -1, repeats, grid.shape[-1]).index_select(1, self._place_of)
        return grid.view(self._heads.kv * rows, repeats, grid.shape[-1])
