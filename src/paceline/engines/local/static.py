"""Attention over a cache that never moves while rows grow, end and are refilled: what a recorded step goes on reading.

S rows of C columns for their own tokens, G slots of L columns for prompts, H query heads, K key/value heads, D head
width. Each row's length is counted on the device, so that a step needs nothing from the host. Columns beyond a row's
length are never read: room for the longest completion costs memory and no time.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.engines.local.attention import Rotation, causal_attention
from paceline.engines.local.operations import rms_norm
from paceline.kernels.cpu.decoding import Heads
from paceline.kernels.cuda.decoding import CudaDecodingKernels, Turn
from paceline.kernels.flash_attention import AttentionKernel, Spans, merged

LARGEST_SHARE = 0.5
"""Of the device's free memory, for the rows' own tokens; the rest is for prompts, logits and the graph's own pool."""


class StaticAttention:
    """A `SharedAttention` with an attention kernel, in the precision and on the device of the rotation's tables."""

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
        """The rotation's length is that of a prompt and its completion together, at most: the rows' columns.

        `between`: what turns queries and keys and puts parts together; None: torch's operations.
        """
        self._heads, self._rotation, self._kernel, self._layers = heads, rotation, kernel, num_layers
        self._between = between
        self._like, self._columns = rotation.cosine, len(rotation.cosine)
        self.moves = 0
        """How often storage or tables have moved: what was recorded before reads what is no longer there."""
        self._own_keys, self._own_values = (self._storage(num_rows * self._columns) for _ in range(2))
        self._prompt_keys, self._prompt_values, self._prompt_columns = self._storage(0), self._storage(0), 0
        self._slot_of, self._alive = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=bool)
        self._prompt_length = np.zeros(0, dtype=np.int64)
        self._own_length = torch.zeros(num_rows, dtype=torch.int64, device=self._like.device)

    def _storage(self, places: int) -> list[Tensor]:
        # Zeros, not empty: an unread column may be multiplied by 0, and 0 * nan is nan.
        return [self._like.new_zeros(places, self._heads.kv, self._heads.width) for _ in range(self._layers)]

    def take_slots(self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> Int[Tensor, " P"]:
        """See `SharedAttention`."""
        taken, before = set(self._slot_of[self._alive].tolist()), len(self._prompt_length)
        slots = [slot for slot in range(before) if slot not in taken][: len(prompt_lengths)]
        slots += range(before, before + len(prompt_lengths) - len(slots))
        columns = max(self._prompt_columns, *prompt_lengths)
        moves = max(slots) >= before or columns > self._prompt_columns
        if moves:
            self._grow_prompts(max(before, max(slots) + 1), columns)
        for slot, length, members in zip(slots, prompt_lengths, rows, strict=True):
            self._prompt_length[slot] = length
            self._slot_of[np.asarray(members)], self._alive[np.asarray(members)] = slot, True
        self._restart(np.concatenate([np.asarray(members) for members in rows]))
        if moves:
            self._make_tables()
        self._fill_tables()
        return self._on_device(np.array(slots))

    def _grow_prompts(self, slots: int, columns: int) -> None:
        before = len(self._prompt_length)
        # Each slot has a length of at least 1: a row without a completion reads some prompt, whichever.
        self._prompt_length = np.concatenate([self._prompt_length, np.ones(slots - before, dtype=np.int64)])
        for stored in (self._prompt_keys, self._prompt_values):
            for layer, grown in enumerate(self._storage(slots * columns)):
                if before:
                    old = stored[layer].view(before, -1, *grown.shape[1:])
                    grown.view(slots, columns, *grown.shape[1:])[:before, : old.shape[1]] = old
                stored[layer] = grown
        self._prompt_columns = columns

    def release(self, rows: Sequence[int]) -> None:
        """See `SharedAttention`. Rows without a completion read few columns from now on."""
        self._alive[np.asarray(rows)] = False
        self._restart(np.asarray(rows))

    def _restart(self, rows: np.ndarray) -> None:
        self._own_length.index_fill_(0, self._on_device(rows), 0)

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """See `SharedAttention`. Prompts stay where they are."""
        rows = keep.cpu().numpy()
        self._slot_of, self._alive = self._slot_of[rows], np.arange(len(rows)) < alive
        self._own_length = self._own_length.index_select(0, keep)
        for stored in (self._own_keys, self._own_values):
            for layer, tensor in enumerate(stored):
                by_row = tensor.view(-1, self._columns, *tensor.shape[1:])
                stored[layer] = by_row.index_select(0, keep).flatten(0, 1)
        self._make_tables()
        self._fill_tables()

    def _make_tables(self) -> None:
        self.moves += 1
        rows, slots, device = len(self._slot_of), len(self._prompt_length), self._like.device
        self._slot_table = torch.zeros(rows, dtype=torch.int64, device=device)
        self._row_at, self._place_of = torch.zeros_like(self._slot_table), torch.zeros_like(self._slot_table)
        self._length_table = torch.zeros(slots, dtype=torch.int32, device=device)
        self._rows_before = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._each_row = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._own_starts = self._each_row * self._columns
        self._prompts = Spans(
            queries=self._rows_before,
            keys=torch.arange(slots + 1, dtype=torch.int32, device=device) * self._prompt_columns,
            # The kernel's path for one query per sequence allows none to be empty, and free slots are.
            most_queries=max(2, rows),
            most_keys=self._prompt_columns,
            causal=False,
            used_keys=self._length_table,
        )

    def _fill_tables(self) -> None:
        """In place: a recorded step reads them where they are."""
        order = np.argsort(self._slot_of, kind="stable")
        counts = np.bincount(self._slot_of, minlength=len(self._prompt_length))
        for table, values in (
            (self._slot_table, self._slot_of),
            (self._row_at, order),
            (self._place_of, np.argsort(order)),
            (self._length_table, self._prompt_length),
            (self._rows_before, np.concatenate([[0], np.cumsum(counts)])),
        ):
            table.copy_(torch.from_numpy(values))

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._like.device)

    def of_prompts(
        self, qkv: Float[Tensor, "P L (H+2K)*D"], layer: int, norm: Tensor | None, slots: Int[Tensor, " Q"]
    ) -> Float[Tensor, "P*L H*D"]:
        """See `SharedAttention`."""
        # The batch may be padded beyond the longest prompt, and the slots are not.
        length, kept = qkv.shape[1], min(qkv.shape[1], self._prompt_columns)
        turned = self._heads.query + self._heads.kv
        qkv = qkv.view(*qkv.shape[:2], -1, self._heads.width)
        cosine, sine = self._rotation.cosine[:length, None], self._rotation.sine[:length, None]
        qkv[:, :, :turned] = self._rotated(qkv[:, :, :turned], norm, cosine, sine)
        for stored, new in (
            (self._prompt_keys, qkv[:, :, self._heads.query : turned]),
            (self._prompt_values, qkv[:, :, turned:]),
        ):
            by_slot = stored[layer].view(-1, self._prompt_columns, *new.shape[2:])
            by_slot[slots, :kept] = new[: len(slots), :kept]
        return causal_attention(qkv, self._heads)

    def begin_step(self) -> None:
        """See `SharedAttention`. Rows without a completion may grow older than any completion: they stay at the end."""
        column = self._own_length.clamp(max=self._columns - 1)
        positions = (self._length_table[self._slot_table] + column).clamp(max=self._columns - 1)
        self._turn = Turn(
            cosine=self._rotation.cosine,
            sine=self._rotation.sine,
            positions=positions,
            places=self._own_starts[:-1] + column,
            query_places=self._place_of,
        )
        self._own = Spans(
            queries=self._each_row,
            keys=self._own_starts,
            most_queries=1,
            most_keys=self._columns,
            causal=False,
            used_keys=(column + 1).int(),
        )

    def of_step(self, qkv: Float[Tensor, "S (H+2K)*D"], layer: int, norm: Tensor | None) -> Float[Tensor, "S H*D"]:
        """See `SharedAttention`."""
        cache, scaling = (self._own_keys[layer], self._own_values[layer]), self._heads.width**-0.5
        if self._between is None:
            query, by_place = self._rotate_and_store(qkv, norm, cache)
        else:
            with_eps = None if norm is None else (norm, self._rotation.norm_eps)
            query, by_place = self._between.rotate_and_store(qkv, with_eps, self._turn, cache)
        own = self._kernel.forward(query, *cache, self._own, scaling)
        of_layer = (self._prompt_keys[layer], self._prompt_values[layer])
        out, normaliser = self._kernel.forward(by_place, *of_layer, self._prompts, scaling)
        if self._between is None:
            return merged(own, (out[self._place_of], normaliser[:, self._place_of])).flatten(1)
        return self._between.merge(own, (out, normaliser), self._place_of)

    def _rotate_and_store(
        self, qkv: Float[Tensor, "S (H+2K)*D"], norm: Tensor | None, cache: tuple[Tensor, Tensor]
    ) -> tuple[Float[Tensor, "S H D"], Float[Tensor, "S H D"]]:
        """See `cuda.decoding.CudaDecodingKernels`."""
        kv_heads, turn = self._heads.kv, self._turn
        qkv = qkv.view(len(qkv), -1, self._heads.width)
        angles = (table[turn.positions][:, None] for table in (turn.cosine, turn.sine))
        qk = self._rotated(qkv[:, :-kv_heads], norm, *angles)
        for stored, new in zip(cache, (qk[:, self._heads.query :], qkv[:, -kv_heads:]), strict=True):
            stored.index_copy_(0, turn.places, new)
        query = qk[:, : self._heads.query]
        return query, query[self._row_at]

    def end_step(self) -> None:
        """See `SharedAttention`."""
        self._own_length.add_(1)

    def _rotated(self, qk: Float[Tensor, "... H+K D"], norm: Tensor | None, cosine: Tensor, sine: Tensor) -> Tensor:
        if norm is not None:
            qk = rms_norm(qk, norm, self._rotation.norm_eps)
        return torch.mul(qk, cosine).addcmul_(qk.roll(self._heads.width // 2, -1), sine)


def room_problem(num_rows: int, length: int, *, bytes_per_token: int, free: int) -> str | None:
    """Why rows should not be laid out for their longest completion, None when there is room.

    `bytes_per_token` is of keys and values over all layers, `free` the device's free bytes.
    """
    needed, gib = num_rows * length * bytes_per_token, 1 << 30
    if needed <= LARGEST_SHARE * free:
        return None
    return f"its cache would take {needed / gib:.1f} of {free / gib:.1f} GiB that are free, more than half"
