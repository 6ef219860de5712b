"""Bindings of decoding.c and sharing.c: one new token per row, and the cache of prompts.

N or S rows, H query heads, K key/value heads, D head width, V vocabulary, C columns of a cache. All tensors are
contiguous, on the CPU, in one precision of `compiling.STORAGE` where nothing else is said; all sums are float32.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paceline.kernels.cpu.compiling import STORAGE, address, declared, library

QUERIES = 8
"""Largest number of queries that the attention kernel computes at once (sharing.c)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heads:
    """Heads of an attention layer."""

    query: int
    """Query heads, H."""
    kv: int
    """Key/value heads, K, a divisor of H."""
    width: int
    """Width of a head, D, even."""


class Shape(ctypes.Structure):
    """Parameters that the attention of all layers of a step shares: the fields of `shape` in sharing.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("type", "heads", "kv_heads", "width", "value_width")),
        *((name, ctypes.c_int64) for name in ("prompt_columns", "num_blocks")),
        *((name, ctypes.c_void_p) for name in ("rows", "starts", "slots", "prompt_lengths", "own_lengths", "shifts")),
        ("eps", ctypes.c_double),
    )


class Store(ctypes.Structure):
    """Keys and values of one layer, of completions and prompts, and what it computes: `store` in sharing.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("own_keys", "own_values", "prompt_keys", "prompt_values")),
        *((name, ctypes.c_int64) for name in ("own_columns", "window")),
        *((name, ctypes.c_void_p) for name in ("cosine", "sine")),
        ("turned", ctypes.c_int64),
        ("query_scales", ctypes.c_void_p),
        ("joint_norms", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("scale", "cap")),
    )


class CpuDecodingKernels:
    """The compiled functions with their signatures, made once per process by `decoding_kernels`."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._add_norm = declared(functions, "add_norm", "pppp ii f i")
        self._silu_mul = declared(functions, "silu_mul", "pp i p iii i")
        self._draw = declared(functions, "draw", "pppp ii d i")
        self._attend = declared(functions, "attend_shared", "pppppp")
        self._store_prompts = declared(functions, "store_prompts", "ppppp ii")
        width = ctypes.c_int64()
        declared(functions, "vector_width", "p")(ctypes.addressof(width))
        self.vector_width = width.value
        """Columns of a block of keys; values are padded to a multiple of it."""

    def add_norm(
        self,
        residual: Float[Tensor, "N W"],
        update: Float[Tensor, "N W"] | None,
        scale: Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> Float[Tensor, "N W"]:
        """Add `update` to `residual` in place; return residual / rms(residual) * scale.

        `residual` and `scale` [W] are float32, `update` and the result in `dtype`; `eps` is added to the mean square.
        """
        normed = torch.empty_like(residual, dtype=dtype)
        places = (address(residual), address(update), address(scale), address(normed))
        self._add_norm(*places, *residual.shape, eps, STORAGE[dtype])
        return normed

    def silu_mul(
        self, gate: Float[Tensor, "N I"], up: Float[Tensor, "N I"] | None = None, *, gelu: bool = False
    ) -> Float[Tensor, "N I"]:
        """Return silu(gate) * up, or gelu(gate) * up by tanh; without `up`, of the two halves of `gate` [N, 2 I]."""
        width = gate.shape[1] if up is not None else gate.shape[1] // 2
        second = gate.data_ptr() + width * gate.element_size() if up is None else address(up)
        out = gate.new_empty(gate.shape[0], width)
        sizes = gate.shape[0], width, int(gelu), STORAGE[gate.dtype]
        self._silu_mul(address(gate), second, gate.shape[1], address(out), *sizes)
        return out

    def draw(
        self, logits: Float[Tensor, "S V"], uniform: Float[Tensor, " S"], temperature: float
    ) -> tuple[Int[Tensor, " S"], Float[Tensor, " S"]]:
        """Draw one token per row from softmax(logits / temperature); at 0 the most probable one, with logprobs at
        temperature 1.

        `uniform` (float64 in (0, 1)) is the place in the cumulative distribution. Logprobs are float32, in nats, and
        not finite where the logits are not.
        """
        rows, vocabulary = logits.shape
        tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        places = (address(logits), address(uniform), address(tokens), address(logprobs))
        self._draw(*places, rows, vocabulary, temperature, STORAGE[logits.dtype])
        return tokens, logprobs

    def attend(
        self,
        shape: Shape,
        store: Store,
        qkv: Float[Tensor, "S (H+2K)*D"],
        norm: Tensor | None,
        sinks: Tensor | None,
        out: Tensor,
    ) -> None:
        """Compute attention of a layer's new tokens; fill the living rows of out [S, H*D], in the precision of `qkv`.

        `qkv` comes before its rotation; keys and values are kept in `store`. `norm` has float32 scales [H+K, D] of the
        norm over each query and key head, where there is one, and `sinks` [H] the float32 score of each head's sink.
        """
        places = (address(qkv), address(norm), address(sinks), address(out))
        self._attend(ctypes.addressof(shape), ctypes.addressof(store), *places)

    def store_prompts(
        self, shape: Shape, store: Store, qkv: Float[Tensor, "P L (H+2K)*D"], norm: Tensor | None, slots: Tensor
    ) -> None:
        """Rotate queries and keys of the first len(slots) prompts in place, and keep keys and values in those slots."""
        prompts, length = len(slots), qkv.shape[1]
        places: tuple[Any, ...] = (address(qkv), address(norm), address(slots))
        self._store_prompts(ctypes.addressof(shape), ctypes.addressof(store), *places, prompts, length)


@functools.cache
def decoding_kernels() -> CpuDecodingKernels | None:
    """Return the kernels of this machine; None if there are none (`library().reason` says why)."""
    functions = library().functions
    return None if functions is None else CpuDecodingKernels(functions)
