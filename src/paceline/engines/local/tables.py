"""Attention by compiled kernels: each row reads its prompt's slot and its own columns, by tables of slots and lengths.

S rows, G slots, H query heads, K key/value heads, D head width, C columns, X lanes of the processor's vectors. A row's
own tokens begin at column 0, so a new completion takes an ended one's row by starting over. Rows without a living
completion cost nothing. Storage need not be cleared: the kernels read what the lengths say was written.
"""

from collections.abc import Sequence
from itertools import count, islice

import numpy as np
import torch
import torch.nn.functional as F
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
from paceline.kernels.cpu.compiling import STORAGE, address
from paceline.kernels.cpu.decoding import QUERIES, CpuDecodingKernels, Heads, Shape, Store

FIRST_COLUMNS = 64
_TILE = 16
"""Columns are stored in multiples of this, a multiple of every X."""
_NO_SLOT, _NO_WINDOW = -1, 1 << 60


class TableAttention(SharedAttention):
    """A `SharedAttention` on a CPU, in a precision of `STORAGE`; the rotation's tables are float32."""

    def __init__(
        self,
        num_rows: int,
        layers: Sequence[AttentionLayer],
        heads: Heads,
        *,
        dtype: torch.dtype,
        kernels: CpuDecodingKernels,
    ) -> None:
        self._heads, self._plans, self._dtype, self._kernels = heads, layers, dtype, kernels
        self._lanes = kernels.vector_width
        self._value_width = -(-heads.width // self._lanes) * self._lanes
        self._own_columns, self._prompt_columns = FIRST_COLUMNS, 0
        self._layers = [[*self._storage(num_rows, self._columns_of(plan)), *self._storage(0, 0)] for plan in layers]
        self._slot_of = np.full(num_rows, _NO_SLOT, dtype=np.int64)
        self._own_lengths = np.zeros(num_rows, dtype=np.int64)
        self._prompt_lengths, self._shifts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._stale = True

    def _columns_of(self, plan: AttentionLayer) -> int:
        """Return the columns of a row's own tokens: a window's are overwritten in turn when they are full."""
        if plan.window is None:
            return self._own_columns
        return min(self._own_columns, -(-plan.window // _TILE) * _TILE)

    def _storage(self, places: int, columns: int) -> tuple[Tensor, Tensor]:
        """Allocate keys [places, K, C / X, D, X] and values [places, K, C, D in whole vectors]."""
        keys = (places, self._heads.kv, columns // self._lanes, self._heads.width, self._lanes)
        values = (places, self._heads.kv, columns, self._value_width)
        return torch.empty(keys, dtype=self._dtype), torch.empty(values, dtype=self._dtype)

    @override
    def take_slots(
        self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]], shifts: Sequence[int] | None = None
    ) -> Int[Tensor, " P"]:
        in_use = set(self._slot_of.tolist())
        slots = list(islice((slot for slot in count() if slot not in in_use), len(prompt_lengths)))
        self._make_room(max(slots) + 1, max(prompt_lengths))
        for slot, length, members in zip(slots, prompt_lengths, rows, strict=True):
            self._prompt_lengths[slot] = length
            self._slot_of[np.asarray(members)], self._own_lengths[np.asarray(members)] = slot, 0
        self._shifts[slots] = shifts or 0
        self._stale = True
        return torch.tensor(slots)

    def _make_room(self, places: int, length: int) -> None:
        """Grow storage to at least this many slots and columns."""
        before = len(self._prompt_lengths)
        places, columns = max(before, places), max(self._prompt_columns, -(-length // _TILE) * _TILE)
        if places > before or columns > self._prompt_columns:
            more = np.zeros(places - before, dtype=np.int64)
            self._prompt_lengths = np.append(self._prompt_lengths, more)
            self._shifts = np.append(self._shifts, more)
            for stored in self._layers:
                stored[2:] = self._grown(stored[2:], places, columns)
            self._prompt_columns = columns

    def _grown(self, stored: Sequence[Tensor], places: int, columns: int) -> tuple[Tensor, Tensor]:
        grown = self._storage(places, columns)
        for old, new in zip(stored, grown, strict=True):
            new[: old.shape[0], :, : old.shape[2]] = old
        return grown

    @override
    def release(self, rows: Sequence[int]) -> None:
        self._slot_of[np.asarray(rows)] = _NO_SLOT
        self._stale = True

    @override
    def park(self, rows: Sequence[int]) -> list[Context]:
        contexts = []
        for row in rows:
            slot, length, width = self._slot_of[row], int(self._own_lengths[row]), self._heads.width
            before, layers = int(self._prompt_lengths[slot]), list[tuple[Tensor, ...]]()
            for plan, (own_keys, own_values, prompt_keys, prompt_values) in zip(self._plans, self._layers, strict=True):
                # what later tokens see, a window's oldest first
                seen = before + length if plan.window is None else min(before + length, plan.window - 1)
                first, columns = before - max(0, seen - length), own_values.shape[2]
                order = torch.arange(length - min(seen, length), length) % columns
                keys = _by_column(prompt_keys[slot], before)[:, first:], _by_column(own_keys[row], columns)[:, order]
                values = prompt_values[slot, :, first:before, :width], own_values[row, :, order, :width]
                layers.append((torch.cat(keys, dim=1), torch.cat(values, dim=1)))
            shift = int(self._shifts[slot])
            contexts.append(Context(length=before + length, layers=tuple(layers), shift=shift))
        return contexts

    @override
    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        # In time every row has a context of its own, and contexts grow: room is made for that at once.
        lengths = [context.length for context in contexts]
        grown = max(lengths) if max(lengths) <= self._prompt_columns else max(*lengths, self._prompt_columns * 3 // 2)
        self._make_room(len(self._slot_of), grown)
        slots = self.take_slots(lengths, [[row] for row in rows], [context.shift for context in contexts])
        for slot, length, context in zip(slots.tolist(), lengths, contexts, strict=True):
            for (keys, values), (_, _, prompt_keys, prompt_values) in zip(context.layers, self._layers, strict=False):
                first = length - keys.shape[1]
                start, stop = first // self._lanes, -(-length // self._lanes)
                whole = F.pad(keys, (0, 0, first - start * self._lanes, stop * self._lanes - length))
                prompt_keys[slot, :, start:stop] = whole.unflatten(1, (-1, self._lanes)).transpose(2, 3)
                prompt_values[slot, :, first:length, : self._heads.width] = values

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        rows = keep.numpy()
        slots, renumbered = np.unique(self._slot_of[rows[:alive]], return_inverse=True)
        self._prompt_lengths, self._own_lengths = self._prompt_lengths[slots], self._own_lengths[rows]
        self._shifts = self._shifts[slots]
        self._slot_of = np.full(len(rows), _NO_SLOT, dtype=np.int64)
        self._slot_of[:alive] = renumbered
        kept = torch.from_numpy(slots)
        for stored in self._layers:
            stored[:] = [
                old.index_select(0, index) for old, index in zip(stored, (keep, keep, kept, kept), strict=True)
            ]
        self._stale = True

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
        self._read_tables()
        heads = qkv.unflatten(-1, (-1, self._heads.width))
        store, norm = self._stores[layer], weights.norm
        if turns is not None:  # the kernel rotates by numbers of tokens alone
            turned = heads[:, :, : -self._heads.kv]
            turned.copy_(turned_heads(turned.float(), self._heads, self._plans[layer], norm, turns))
            store, norm = Store.from_buffer_copy(store), None
            store.turned = 0
        self._kernels.store_prompts(self._shape, store, qkv, norm, slots)
        return causal_attention(heads, self._heads, known, self._plans[layer], weights.sinks)

    @override
    def begin_step(self) -> None:
        self._read_tables()
        if self._longest < self._own_columns:
            return
        self._own_columns, self._stale = -(-self._own_columns * 3 // 2 // _TILE) * _TILE, True
        for plan, stored in zip(self._plans, self._layers, strict=True):
            if (columns := self._columns_of(plan)) > stored[1].shape[2]:
                stored[:2] = self._grown(stored[:2], len(self._slot_of), columns)
        self._read_tables()

    @override
    def end_step(self) -> None:
        self._own_lengths += 1
        self._longest += 1

    @override
    def of_step(
        self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, weights: AttentionWeights
    ) -> Float[Tensor, "S H*D"]:
        # Rows without a living completion are 0.
        self._kernels.attend(self._shape, self._stores[layer], qkv, weights.norm, weights.sinks, self._mixed)
        return self._mixed

    def _read_tables(self) -> None:
        """Make the kernels' arguments anew, after rows or storage have changed."""
        if not self._stale:
            return
        self._stale = False
        living = np.flatnonzero(self._slot_of != _NO_SLOT)
        # rows of one group whose queries fill the kernel's registers together
        rows_at_once = max(1, QUERIES * self._heads.kv // self._heads.query)
        self._rows, self._starts = blocks_of_rows(living, self._slot_of[living], rows_at_once)
        self._longest = int(self._own_lengths[living].max(initial=0))
        self._mixed = torch.zeros(len(self._slot_of), self._heads.query * self._heads.width, dtype=self._dtype)
        self._stores = [self._store(plan, stored) for plan, stored in zip(self._plans, self._layers, strict=True)]
        tables = (self._rows, self._starts, self._slot_of, self._prompt_lengths, self._own_lengths, self._shifts)
        self._shape = Shape(
            STORAGE[self._dtype],
            self._heads.query,
            self._heads.kv,
            self._heads.width,
            self._value_width,
            self._prompt_columns,
            len(self._starts) - 1,
            *(table.ctypes.data for table in tables),
            self._plans[0].rotation.norm_eps,
        )

    def _store(self, plan: AttentionLayer, stored: Sequence[Tensor]) -> Store:
        rotation = plan.rotation
        return Store(
            *map(address, stored),
            stored[1].shape[2],
            _NO_WINDOW if plan.window is None else plan.window,
            address(rotation.cosine),
            address(rotation.sine),
            rotation.cosine.shape[1],
            address(plan.query_scales),
            plan.joint_norms,
            plan.scaling or self._heads.width**-0.5,
            plan.cap or 0.0,
        )


def _by_column(keys: Float[Tensor, "K C/X D X"], count: int) -> Float[Tensor, "K count D"]:
    """Return the keys of the first `count` columns."""
    blocks = -(-count // keys.shape[-1])
    return keys[:, :blocks].transpose(2, 3).flatten(1, 2)[:, :count]


def blocks_of_rows(
    rows: Int[np.ndarray, " A"], slots: Int[np.ndarray, " A"], at_once: int
) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " B+1"]]:
    """Sort rows by slot; return them, and where each block of at most `at_once` rows of one slot begins.

    >>> blocks_of_rows(np.array([0, 1, 4, 5]), np.array([7, 2, 7, 7]), 2)
    (array([1, 0, 4, 5]), array([0, 1, 3, 4]))
    """
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    place_in_group = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    starts = np.flatnonzero(place_in_group % at_once == 0)
    return rows[order], np.append(starts, len(order))
