"""Forward passes in float64 throughout: transformers' norms and routers cast to float32 whatever they are given."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override


class ExactNumbers(TorchFunctionMode):
    """Within it, a float64 tensor stays one where float32 is asked of it, and whole numbers become float64."""

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        first = args[0] if args else None
        if isinstance(first, Tensor) and func is Tensor.float and first.dtype in (torch.float64, torch.int64):
            return first.double()
        if isinstance(first, Tensor) and first.dtype == torch.float64:
            args = tuple(torch.float64 if given is torch.float32 else given for given in args)
            if options.get("dtype") is torch.float32:
                options["dtype"] = torch.float64
        return func(*args, **options)
