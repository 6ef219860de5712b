"""Products in bfloat16 by the processor's tiles (AMX), as fast as the weight comes from memory: bindings of tiles.c.

Torch's libraries reach half of that with one to thirty rows, and want weights laid out beforehand; from a hundred rows
on both are equally fast.

N rows, I inputs, O outputs.
"""

import ctypes
import functools

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.kernels.cpu.compiling import library
from paceline.kernels.cpu.tensors import address, declared

ROWS_AT_ONCE = 128
"""Rows laid out together (tiles.c)."""
SIDE = 16
"""Rows of a tile."""
DEPTH = 32
"""Inputs of a tile."""


class TileProducts:
    """The compiled product with its signature, made once per process by `tile_products`."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._product = declared(functions, "tile_product", "ppppp iii")

    def serves(self, weight: Float[Tensor, "O I"]) -> bool:
        """Return True if `linear` takes this weight: whole tiles of inputs, and at least two of outputs."""
        outputs, inputs = weight.shape
        return weight.dtype == torch.bfloat16 and inputs % DEPTH == 0 and outputs >= 2 * SIDE

    def linear(
        self, x: Float[Tensor, "N I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None
    ) -> Float[Tensor, "N O"]:
        """Return x @ weight.T + bias, all in bfloat16, summed in float32 in the order of inputs.

        A row's outputs do not depend on the other rows.

        Raises:
            ValueError: a tensor on another device than the CPU, or not contiguous.
        """
        (rows, inputs), outputs = x.shape, weight.shape[0]
        out = x.new_empty(rows, outputs)
        packed = x.new_empty(min(-(-rows // SIDE) * SIDE, ROWS_AT_ONCE), inputs)
        self._product(*map(address, (x, weight, bias, out, packed)), rows, inputs, outputs)
        return out


@functools.cache
def tile_products() -> TileProducts | None:
    """Return the products of this machine; None without tiles in the processor or kernel, or without a compiler."""
    functions = library().functions
    if functions is None:
        return None
    ready = ctypes.c_int64()
    declared(functions, "tiles_ready", "p")(ctypes.addressof(ready))
    return TileProducts(functions) if ready.value else None
