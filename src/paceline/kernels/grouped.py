"""Products of rows with the matrix of their group, as a mixture's experts take them: rows lie sorted by group.

torch's `grouped_mm` reads no group that has no rows. On CUDA the groups' borders stay on the device. On a CPU it is a
loop in C++, measured to be faster at nearly all sizes than a padded product over all groups and than a product of each
group from Python. It has no float64: then each group is a product.

R rows of E groups, I inputs, O outputs.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

ALIGNED_BYTES = 16
"""What torch's grouped product wants the strides of its operands to be a multiple of."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of rows in sorted order."""

    order: Int[Tensor, " R"]
    """Index before sorting of the row at each place."""
    members: Int[Tensor, " R"]
    """Group of the row at each place."""
    ends: Int[Tensor, " E"]
    """Place behind each group's last row."""

    @functools.cached_property
    def borders(self) -> list[int]:
        """Place of each group's first row, and R. The host waits for the device."""
        return [0, *self.ends.tolist()]

    def spans(self) -> Iterator[tuple[int, slice]]:
        """Yield the groups that have rows, and their places."""
        return ((group, slice(*ends)) for group, ends in enumerate(pairwise(self.borders)) if ends[0] < ends[1])


def groups_of(group: Int[Tensor, " R"], count: int, *, all_here: bool = True) -> Groups:
    """Sort rows by their group, 0 to `count` - 1; rows of one group keep their order.

    Unless `all_here`, rows with the number `count` are left out, for which the host waits for the device.
    """
    members, order = group.sort(stable=True)
    ends = torch.searchsorted(members, torch.arange(count, device=group.device), right=True, out_int32=True)
    here = len(members) if all_here else int(ends[-1])
    return Groups(order=order[:here], members=members[:here], ends=ends)


def grouped_product(x: Float[Tensor, "R I"], weight: Float[Tensor, "E O I"], groups: Groups) -> Float[Tensor, "R O"]:
    """Return x[r] @ weight[group of r].T in the precision of `x`, with gradients.

    The weights' gradient is in their own precision, and 0 for a group without rows.
    """
    return cast(Tensor, _GroupedProduct.apply(x, weight, groups))  # type: ignore[no-untyped-call]


class _GroupedProduct(torch.autograd.Function):
    """Weights of another precision are cast again in the backward pass instead of being kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: Groups) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.groups = groups
        return _products(x.contiguous(), weight, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad, groups = gradients[0].contiguous(), ctx.groups
        grad_x = _products(grad, weight.mT, groups) if ctx.needs_input_grad[0] else None
        grad_weight = None if x is None else _weight_gradients(grad, x.contiguous(), weight, groups)
        return grad_x, grad_weight, None


def _products(x: Float[Tensor, "R I"], weight: Float[Tensor, "E O I"], groups: Groups) -> Float[Tensor, "R O"]:
    if _serves(x, weight):
        return F.grouped_mm(x, weight.to(x.dtype).mT, offs=groups.ends)
    out = x.new_empty(len(x), weight.shape[1])
    for group, span in groups.spans():
        out[span] = x[span] @ weight[group].to(x.dtype).T
    return out


def _weight_gradients(
    grad: Float[Tensor, "R O"], x: Float[Tensor, "R I"], weight: Float[Tensor, "E O I"], groups: Groups
) -> Float[Tensor, "E O I"]:
    if _serves(x, weight):
        return F.grouped_mm(grad.mT, x, offs=groups.ends).to(weight.dtype)
    sums = torch.zeros_like(weight)
    for group, span in groups.spans():
        sums[group] = grad[span].T @ x[span]
    return sums


def _serves(x: Tensor, weight: Tensor) -> bool:
    """Return whether torch's grouped product takes operands of this precision and these sides on this device."""
    if not len(x) or any(side * x.element_size() % ALIGNED_BYTES for side in weight.shape[1:]):
        return False
    if x.is_cuda:
        return x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device) >= (8, 0)
    return x.dtype in (torch.float32, torch.bfloat16)
