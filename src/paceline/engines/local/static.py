"""Attention over a cache that never moves while rows grow, end and are refilled, so that a step can be recorded.

S rows of C columns for their own tokens, G slots of L columns for prompts, H query heads, K key/value heads, D head
width. Each row's length is counted on the device, so that a step needs nothing from the host. Columns beyond a row's
length are never read: room for the longest completion costs memory and no time.
"""

from collections.abc import Sequence
from itertools import count, islice

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from paceline.engines.local.attention import (
    AttentionWeights,
    Context,
    Rotation,
    SharedAttention,
    Turns,
    causal_attention,
    rotated,
)
from paceline.kernels.cpu.decoding import Heads
from paceline.kernels.cuda.decoding import CudaDecodingKernels, RotaryTurn
from paceline.kernels.flash_attention import AttentionKernel, Spans, merged

LARGEST_SHARE = 0.5
"""Share of free device memory for the rows' own tokens; the rest is for prompts, logits and the graph's own pool."""


class _Tables:
    """Tables on the device that map rows to prompts. A recorded step reads them in place, so `fill` overwrites them."""

    def __init__(self, rows: tuple[int, int], slots: tuple[int, int], device: torch.device) -> None:
        """Make tables of zeros, given the number of rows and of slots, and the columns of each."""
        (num_rows, columns), (num_slots, prompt_columns) = rows, slots
        self.slot_of = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """Slot of each row's prompt."""
        self.row_at, self.place_of = torch.zeros_like(self.slot_of), torch.zeros_like(self.slot_of)
        """Rows sorted by slot, and the index of each row in that order."""
        self.prompt_length = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.shift = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """What is added to the numbers of tokens behind each prompt to rotate them."""
        self.each_row = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self.own_starts = self.each_row * columns
        """First column of each row in the storage of the rows' own tokens."""
        self._rows_before = torch.zeros(num_slots + 1, dtype=torch.int32, device=device)
        self.prompts = Spans(
            queries=self._rows_before,
            keys=torch.arange(num_slots + 1, dtype=torch.int32, device=device) * prompt_columns,
            # The kernel's path for one query per sequence allows none to be empty, and free slots are.
            most_queries=max(2, num_rows),
            most_keys=prompt_columns,
            causal=False,
            used_keys=self.prompt_length,
        )

    def fill(self, slot_of: np.ndarray, prompt_length: np.ndarray, shift: np.ndarray) -> None:
        """Copy the host's tables, in place."""
        order = np.argsort(slot_of, kind="stable")
        rows_by_slot = np.bincount(slot_of, minlength=len(prompt_length))
        for table, values in (
            (self.slot_of, slot_of),
            (self.row_at, order),
            (self.place_of, np.argsort(order)),
            (self.prompt_length, prompt_length),
            (self.shift, shift),
            (self._rows_before, np.concatenate([[0], np.cumsum(rows_by_slot)])),
        ):
            table.copy_(torch.from_numpy(values))


class StaticAttention(SharedAttention):
    """Attention by a variable-length kernel, in the precision and on the device of the rotation's tables."""

    def __init__(
        self,
        num_rows: int,
        num_layers: int,
        heads: Heads,
        rotation: Rotation,
        *,
        kernel: AttentionKernel,
        between: CudaDecodingKernels | None = None,
    ) -> None:
        """The rotation's length bounds a prompt and its completion together; each row gets as many columns.

        `between` rotates queries and keys and merges parts; None: torch's operations.
        """
        self._heads, self._rotation, self._kernel, self._layers = heads, rotation, kernel, num_layers
        self._between = between
        self._like, self._columns = rotation.cosine, len(rotation.cosine)
        self.moves = 0
        """Number of times that storage or tables have moved, which invalidates recorded steps."""
        self._own_keys, self._own_values = (self._storage(num_rows * self._columns) for _ in range(2))
        self._prompt_keys, self._prompt_values, self._prompt_columns = self._storage(0), self._storage(0), 0
        self._slot_of, self._alive = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=bool)
        self._prompt_length, self._shift = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._own_length = torch.zeros(num_rows, dtype=torch.int64, device=self._like.device)
        self._new: tuple[RotaryTurn, Spans] | None = None
        """Cache positions of a step's new tokens and the spans they attend to: the same for all layers."""

    def _storage(self, places: int) -> list[Tensor]:
        # Zeros, not empty: an unread column may be multiplied by 0, and 0 * nan is nan.
        return [self._like.new_zeros(places, self._heads.kv, self._heads.width) for _ in range(self._layers)]

    @override
    def take_slots(
        self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]], shifts: Sequence[int] | None = None
    ) -> Int[Tensor, " P"]:
        in_use = set(self._slot_of[self._alive].tolist())
        slots = list(islice((slot for slot in count() if slot not in in_use), len(prompt_lengths)))
        moves = self._make_room(max(slots) + 1, max(prompt_lengths))
        for slot, length, members in zip(slots, prompt_lengths, rows, strict=True):
            self._prompt_length[slot] = length
            self._slot_of[np.asarray(members)], self._alive[np.asarray(members)] = slot, True
        self._shift[slots] = shifts or 0
        self._restart(np.concatenate([np.asarray(members) for members in rows]))
        if moves:
            self._move_tables()
        self._tables.fill(self._slot_of, self._prompt_length, self._shift)
        return self._on_device(np.array(slots))

    def _make_room(self, places: int, length: int) -> bool:
        """Grow storage to at least this many slots and columns; return whether it has moved."""
        before, columns = len(self._prompt_length), max(self._prompt_columns, length)
        moves = places > before or columns > self._prompt_columns
        if moves:
            # Each slot has a length of at least 1: a row without a completion reads some prompt, whichever.
            places = max(before, places)
            self._prompt_length = np.append(self._prompt_length, np.ones(places - before, dtype=np.int64))
            self._shift = np.append(self._shift, np.zeros(places - before, dtype=np.int64))
            for stored in (self._prompt_keys, self._prompt_values):
                for layer, grown in enumerate(self._storage(places * columns)):
                    if before:
                        old = stored[layer].view(before, -1, *grown.shape[1:])
                        grown.view(places, columns, *grown.shape[1:])[:before, : old.shape[1]] = old
                    stored[layer] = grown
            self._prompt_columns = columns
        return moves

    @override
    def release(self, rows: Sequence[int]) -> None:
        self._alive[np.asarray(rows)] = False
        self._restart(np.asarray(rows))  # so that they read few columns

    def _restart(self, rows: np.ndarray) -> None:
        self._own_length.index_fill_(0, self._on_device(rows), 0)

    @override
    def park(self, rows: Sequence[int]) -> list[Context]:
        contexts = []
        own_lengths = self._own_length[self._on_device(np.asarray(rows))].tolist()
        for row, length in zip(rows, own_lengths, strict=True):
            slot = int(self._slot_of[row])
            before, first, mine = int(self._prompt_length[slot]), slot * self._prompt_columns, row * self._columns
            stored = (
                ((prompts[first : first + before], owns[mine : mine + length]) for prompts, owns in layer)
                for layer in self._of_layers()
            )
            layers = tuple(tuple(torch.cat(parts).transpose(0, 1).contiguous() for parts in layer) for layer in stored)
            contexts.append(Context(length=before + length, layers=layers, shift=int(self._shift[slot])))
        return contexts

    def _of_layers(self) -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """Return each layer's keys, of prompts and of rows, and values."""
        keys = zip(self._prompt_keys, self._own_keys, strict=True)
        values = zip(self._prompt_values, self._own_values, strict=True)
        return list(zip(keys, values, strict=True))

    @override
    def resume(self, contexts: Sequence[Context], rows: Sequence[int]) -> None:
        # A row has columns for all its tokens, and slots would move when contexts grow: of a context only the first
        # token becomes the prompt, as no slot is empty. In time every row has a slot of its own.
        places = len(self._prompt_length)
        if self._alive.sum() + len(rows) > places and self._make_room(places * 3 // 2, 1):
            self._move_tables()
        slots = self.take_slots([1] * len(rows), [[row] for row in rows], [context.shift for context in contexts])
        for slot, row, context in zip(slots.tolist(), rows, contexts, strict=True):
            length = context.length - 1
            for stored, kept in zip(self._of_layers(), context.layers, strict=False):
                for (prompts, owns), tokens in zip(stored, kept, strict=True):
                    prompts[slot * self._prompt_columns] = tokens[:, 0]
                    owns[row * self._columns : row * self._columns + length] = tokens[:, 1:].transpose(0, 1)
            self._own_length[row] = length

    @override
    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        # prompts stay where they are
        rows = keep.cpu().numpy()
        self._slot_of, self._alive = self._slot_of[rows], np.arange(len(rows)) < alive
        self._own_length = self._own_length.index_select(0, keep)
        self._own_length[alive:] = 0  # as those of `release`
        for stored in (self._own_keys, self._own_values):
            for layer, tensor in enumerate(stored):
                by_row = tensor.view(-1, self._columns, *tensor.shape[1:])
                stored[layer] = by_row.index_select(0, keep).flatten(0, 1)
        self._move_tables()
        self._tables.fill(self._slot_of, self._prompt_length, self._shift)

    def _move_tables(self) -> None:
        rows, slots = (len(self._slot_of), self._columns), (len(self._prompt_length), self._prompt_columns)
        self._tables = _Tables(rows, slots, self._like.device)
        self.moves += 1

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._like.device)

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
        # The batch may be padded beyond the longest prompt, and the slots are not.
        length, kept = qkv.shape[1], min(qkv.shape[1], self._prompt_columns)
        turned = self._heads.query + self._heads.kv
        qkv = qkv.view(*qkv.shape[:2], -1, self._heads.width)
        turns = turns or (self._rotation.cosine[:length, None], self._rotation.sine[:length, None])
        qkv[:, :, :turned] = rotated(qkv[:, :, :turned], weights.norm, self._rotation.norm_eps, *turns)
        for stored, new in (
            (self._prompt_keys, qkv[:, :, self._heads.query : turned]),
            (self._prompt_values, qkv[:, :, turned:]),
        ):
            by_slot = stored[layer].view(-1, self._prompt_columns, *new.shape[2:])
            by_slot[slots, :kept] = new[: len(slots), :kept]
        return causal_attention(qkv, self._heads, known)

    @override
    def begin_step(self) -> None:
        # Rows without a completion may grow older than any completion: they stay at the last column.
        tables, column = self._tables, self._own_length.clamp(max=self._columns - 1)
        turn = RotaryTurn(
            cosine=self._rotation.cosine,
            sine=self._rotation.sine,
            positions=(tables.prompt_length[tables.slot_of] + tables.shift[tables.slot_of] + column).clamp(
                min=0, max=self._columns - 1
            ),
            places=tables.own_starts[:-1] + column,
            query_places=tables.place_of,
        )
        spans = Spans(
            queries=tables.each_row,
            keys=tables.own_starts,
            most_queries=1,
            most_keys=self._columns,
            causal=False,
            used_keys=(column + 1).int(),
        )
        self._new = turn, spans

    @override
    def of_step(
        self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, weights: AttentionWeights
    ) -> Float[Tensor, "S H*D"]:
        norm = weights.norm
        assert self._new is not None
        turn, own_spans = self._new
        own_cache = (self._own_keys[layer], self._own_values[layer])
        prompt_cache = (self._prompt_keys[layer], self._prompt_values[layer])
        scaling, place_of = self._heads.width**-0.5, self._tables.place_of

        # Queries and keys are rotated, keys and values stored; queries come by row and by place.
        if self._between is None:
            kv_heads = self._heads.kv
            qkv = qkv.view(len(qkv), -1, self._heads.width)
            angles = (table[turn.positions][:, None] for table in (turn.cosine, turn.sine))
            qk = rotated(qkv[:, :-kv_heads], norm, self._rotation.norm_eps, *angles)
            for stored, new in zip(own_cache, (qk[:, self._heads.query :], qkv[:, -kv_heads:]), strict=True):
                stored.index_copy_(0, turn.places, new)
            query = qk[:, : self._heads.query]
            by_place = query[self._tables.row_at]
        else:
            with_eps = None if norm is None else (norm, self._rotation.norm_eps)
            query, by_place = self._between.rotate_and_store(qkv, with_eps, turn, own_cache)

        # Own tokens and prompts are attended to apart, each with its logsumexp, and merged.
        from_own = self._kernel.forward(query, *own_cache, own_spans, scaling)
        out, normaliser = self._kernel.forward(by_place, *prompt_cache, self._tables.prompts, scaling)
        if self._between is None:
            return merged(from_own, (out[place_of], normaliser[:, place_of])).flatten(1)
        return self._between.merge(from_own, (out, normaliser), place_of)

    @override
    def end_step(self) -> None:
        self._own_length.add_(1)


def room_problem(num_rows: int, length: int, *, bytes_per_token: int, free: int) -> str | None:
    """Return why rows should not be laid out for their longest completion; None if there is room.

    `bytes_per_token` counts keys and values of all layers, `free` the device's free bytes.
    """
    needed, gib = num_rows * length * bytes_per_token, 1 << 30
    if needed <= LARGEST_SHARE * free:
        return None
    return f"its cache would take {needed / gib:.1f} of {free / gib:.1f} GiB that are free, more than half"
