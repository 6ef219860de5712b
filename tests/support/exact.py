"""Models that compute in float64 throughout, whatever their code asks for."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Float64Kept(TorchFunctionMode):
    """Keeps float64 where float32 is asked of a float64 tensor, as norms, scans, routers and gates of models do; whole
    numbers become float64 too.

    A float32 rounding in between would turn two orders of summation, equal to 1e-16, into a difference of 1e-8.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if func is torch.Tensor.float and args[0].dtype in (torch.float64, torch.int64):
            return args[0].double()
        if any(tensor.dtype == torch.float64 for tensor in given):
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
            kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
        return func(*args, **kwargs)
