"""Keys and values of rows that share prompts: each prompt once per group, each completion in its row.

S rows, G slots (one prompt each), K key/value heads, D head width, C columns, W rows of the largest group.
All rows write their next token at the same column, whatever their age: the position is already in the rotated keys,
so a row only remembers the column that it started at; columns before `first_column` are read by no living row. A finished row's place is taken over without moving anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

FIRST_COLUMNS = 64
_NO_ROW = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """Which row reads which prompt: derived from the cache's tables whenever rows come or go."""

    width: int
    """Rows of the largest group (W)."""
    num_slots: int
    """Slots in use, with any unused ones between them."""
    prompt_length: int
    """Tokens of the longest prompt in use."""
    row_at: Int[Tensor, " slots*W"] | None
    """Row at each place of the slots-by-W grid; None: rows already lie in grid order."""
    place_of: Int[Tensor, " S"] | None
    """Place of each row in that grid."""
    prompt_bias: Float[Tensor, "slots*K 1 prompt"] | None
    """-inf behind each prompt's end; None: all are equally long."""
    own_bias: Float[Tensor, "S*K 1 C"] | None
    """-inf before each row's first column; None: all rows started together."""


class SharedCache:
    """Storage and tables. Its owner writes `own_keys[layer][:, :, column]` and calls `advance` after each token."""

    def __init__(
        self, num_rows: int, num_layers: int, heads_and_width: tuple[int, int], *, like: Tensor, max_columns: int
    ) -> None:
        """`like` gives precision and device; `max_columns` is the length of the longest completion."""
        self._like, self._layers, self._heads, self._head_width = like, num_layers, *heads_and_width
        self.own_keys = self._storage(num_rows, min(FIRST_COLUMNS, max_columns))
        self.own_values = self._storage(num_rows, min(FIRST_COLUMNS, max_columns))
        self.prompt_keys, self.prompt_values = self._storage(0, 0), self._storage(0, 0)
        self.column = 0
        self.first_column = 0
        self._slot_of = np.full(num_rows, _NO_ROW)
        self._start = np.zeros(num_rows, dtype=np.int64)
        self._alive = np.zeros(num_rows, dtype=bool)
        self._prompt_length = np.zeros(0, dtype=np.int64)

    def _storage(self, places: int, columns: int) -> list[Tensor]:
        # Zeros, not empty: a masked column is multiplied by 0, and 0 * nan is nan.
        shape = (places, self._heads, columns, self._head_width)
        return [self._like.new_zeros(shape) for _ in range(self._layers)]

    def _find_first_column(self) -> None:
        self.first_column = int(self._start[self._alive].min()) if self._alive.any() else self.column

    def position_offsets(self) -> Int[Tensor, " S"]:
        """Position of each row's next token, less the present column."""
        lengths = np.where(self._slot_of == _NO_ROW, 0, self._prompt_length[self._slot_of])
        return torch.from_numpy(lengths - self._start).to(self._like.device)

    def take_slots(self, prompt_lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> list[int]:
        """A free slot for each prompt, with room for its keys; `rows[i]` start there at the present column."""
        in_use = set(self._slot_of[self._alive].tolist())
        free = [slot for slot in range(len(self._prompt_length)) if slot not in in_use]
        self._grow_prompts(len(prompt_lengths) - len(free), max(prompt_lengths))
        free += range(len(self._prompt_length) - max(0, len(prompt_lengths) - len(free)), len(self._prompt_length))
        slots = free[: len(prompt_lengths)]
        for slot, length, members in zip(slots, prompt_lengths, rows, strict=True):
            self._prompt_length[slot] = length
            index = np.asarray(members)
            self._slot_of[index], self._start[index], self._alive[index] = slot, self.column, True
        self._find_first_column()
        return slots

    def _grow_prompts(self, more_slots: int, length: int) -> None:
        slots, columns = len(self._prompt_length), self.prompt_keys[0].shape[2]
        if more_slots <= 0 and length <= columns:
            return
        self._prompt_length = np.concatenate([self._prompt_length, np.zeros(max(0, more_slots), dtype=np.int64)])
        for kind in ("prompt_keys", "prompt_values"):
            grown = self._storage(len(self._prompt_length), max(length, columns))
            for new, old in zip(grown, getattr(self, kind), strict=True):
                new[:slots, :, :columns] = old
            setattr(self, kind, grown)

    def release(self, rows: Sequence[int]) -> None:
        """These rows' completions have ended."""
        self._alive[np.asarray(rows)] = False
        self._find_first_column()

    def compact(self, keep: Int[Tensor, " R"], alive: int) -> None:
        """Keep these rows in this order, the first `alive` living, and the prompts that they need."""
        rows = keep.cpu().numpy()
        slots, renumbered = np.unique(self._slot_of[rows[:alive]], return_inverse=True)
        self._prompt_length = self._prompt_length[slots]
        self._start = self._start[rows]
        self._alive = np.arange(len(rows)) < alive
        self._slot_of = np.full(len(rows), _NO_ROW)
        self._slot_of[:alive] = renumbered
        kept_slots = torch.from_numpy(slots).to(keep.device)
        for kind, index in (("own", keep), ("prompt", kept_slots)):
            for part in ("keys", "values"):
                stored = getattr(self, f"{kind}_{part}")
                for layer, tensor in enumerate(stored):
                    stored[layer] = tensor.index_select(0, index)

    def advance(self) -> bool:
        """Go on to the next column; True when columns were moved, so that `position_offsets` changed."""
        self.column += 1
        capacity = self.own_keys[0].shape[2]
        if self.column < capacity:
            return False
        first = self.first_column
        moved = first >= capacity // 4
        shift, columns = (first, capacity) if moved else (0, capacity + capacity // 2 + 1)
        for stored in (self.own_keys, self.own_values):
            for layer, tensor in enumerate(stored):
                stored[layer] = tensor.new_zeros(*tensor.shape[:2], columns, tensor.shape[3])
                stored[layer][:, :, : capacity - shift] = tensor[:, :, shift:]
        self._start -= shift
        self.column -= shift
        self.first_column -= shift
        return True

    def sharing(self) -> Sharing:
        """The present map between rows and prompts, with its masks."""
        living = np.flatnonzero(self._alive)
        slots = self._slot_of[living]
        counts = np.bincount(slots)
        width, lengths = int(counts.max()), self._prompt_length[: len(counts)]
        in_grid_order = np.array_equal(self._slot_of, np.repeat(np.arange(len(counts)), width))
        row_at, place_of = (None, None) if in_grid_order else self._grid(living, slots, width)
        longest = int(lengths[counts > 0].max())
        starts = self._start[living]
        return Sharing(
            width=width,
            num_slots=len(counts),
            prompt_length=longest,
            row_at=row_at,
            place_of=place_of,
            prompt_bias=None if (lengths == longest).all() else self._bias(np.arange(longest) >= lengths[:, None]),
            own_bias=None if (starts == starts[0]).all() else self._own_bias(),
        )

    def _own_bias(self) -> Tensor:
        columns = np.arange(self.own_keys[0].shape[2])
        return self._bias((columns < self._start[:, None]) & self._alive[:, None])

    def _bias(self, hidden: np.ndarray) -> Tensor:
        mask = torch.from_numpy(np.repeat(hidden, self._heads, axis=0)[:, None]).to(self._like.device)
        return self._like.new_zeros(mask.shape).masked_fill_(mask, -torch.inf)

    def _grid(self, living: np.ndarray, slots: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
        order = np.argsort(slots, kind="stable")
        rank = np.arange(len(slots)) - np.searchsorted(slots[order], slots[order])
        places = slots[order] * width + rank
        row_at = np.zeros((slots.max() + 1) * width, dtype=np.int64)
        row_at[places] = living[order]
        place_of = np.zeros(len(self._slot_of), dtype=np.int64)
        place_of[living[order]] = places
        device = self._like.device
        return torch.from_numpy(row_at).to(device), torch.from_numpy(place_of).to(device)
