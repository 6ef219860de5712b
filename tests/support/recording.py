"""A CUDA graph's rules on a CPU: operations are written down once and repeated on the same memory."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASK_THE_DEVICE = {"aten::_local_scalar_dense", "aten::nonzero", "aten::lift_fresh", "aten::masked_select"}
"""What a stream cannot record: a number for the host, a shape that depends on numbers, a tensor from the host."""


class _Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation._schema.name in ASK_THE_DEVICE or _adds_up_repeats(operation, args, kwargs):
            raise RuntimeError(f"{operation._schema.name} cannot be recorded")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if operation._schema.is_mutable:
            for tensor in given:
                self.before.setdefault(id(tensor), (tensor, tensor.clone()))
        result = operation(*args, **kwargs)
        places = {tensor.untyped_storage().data_ptr() for tensor in given}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        fresh = [tensor for tensor in made if tensor.untyped_storage().data_ptr() not in places]
        self.operations.append((operation, args, kwargs, fresh))
        return result


def _adds_up_repeats(operation: Any, args: tuple, kwargs: dict) -> bool:
    """Whether the result's length is a sum of numbers on the device."""
    by_tensor = operation._schema.name == "aten::repeat_interleave" and isinstance(args[-1], Tensor)
    return by_tensor and kwargs.get("output_size") is None


def record_operations(call: Callable[[], tuple[Tensor, ...]]) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """A `StepRecorder`: what `call` does to storage is undone, and done again by each replay."""
    notes = _Notes()
    with notes:
        outputs = call()
    for tensor, content in notes.before.values():
        tensor.copy_(content)

    def replay() -> None:
        for operation, args, kwargs, fresh in notes.operations:
            result = operation(*args, **kwargs)
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            for kept, new in zip(fresh, made, strict=False):
                kept.copy_(new)

    return replay, outputs
