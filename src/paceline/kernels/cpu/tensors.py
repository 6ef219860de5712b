"""Arguments of C functions from tensors: addresses, storage types, signatures."""

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from paceline.kernels.cpu.compiling import library

STORAGE = {torch.float32: 0, torch.bfloat16: 1}
"""Precisions that the kernels read and write, by their numbers in vectors.h; all compute in float32."""

_KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}


def declared(functions: ctypes.CDLL, name: str, kinds: str) -> Callable[..., None]:
    """Return the C function of this name, which returns nothing.

    Args:
        functions: the compiled kernels.
        name: the function's name in C.
        kinds: a letter per parameter: `p` a pointer, `i` an int64_t, `f` a float, `d` a double; blanks are for reading.
    """
    function: Callable[..., None] = getattr(functions, name)
    function.argtypes = [_KINDS[kind] for kind in kinds.replace(" ", "")]  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function


@functools.cache
def kernel(name: str, kinds: str) -> Callable[..., None]:
    """Return this machine's `declared` function; the caller has checked that there are kernels."""
    functions = library().functions
    assert functions is not None
    return declared(functions, name, kinds)


def address(tensor: Tensor | None) -> int | None:
    """Return the address of the tensor's contiguous elements; None (a null pointer) for None.

    The caller keeps the tensor alive during the call, and vouches for its precision.

    Raises:
        ValueError: the tensor is on another device than the CPU, or not contiguous.
    """
    if tensor is None:
        return None
    if tensor.is_cpu and tensor.is_contiguous():
        return tensor.data_ptr()
    raise ValueError(
        f"a kernel takes contiguous tensors on the CPU, got one of shape {tuple(tensor.shape)}, strides "
        f"{tensor.stride()}, on {tensor.device}; call contiguous() or take torch's path"
    )
