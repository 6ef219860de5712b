"""Layers that carry a state of a fixed size from token to token: their rules, and one step of each.

A rule stands between two matrix products. The first one's outputs are `projected`; some of their channels go through a
causal convolution, whose last k - 1 inputs are the first tensor of a row's states. A step changes states in place.

S rows; k taps of the convolution over C channels; H heads. Rates, biases, scales and recurrent states are in float32 at
least, products and the convolution's inputs in the layer's own precision.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from paceline.kernels.cpu.compiling import kernel

Scan = Callable[[Sequence[Tensor], Tensor | None], tuple[Tensor, Tensor]]
"""From blocks [B, T, ...] of a scan's inputs and a state per row to outputs and final states; None: from zeros."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolution:
    """A causal convolution, channel by channel."""

    weight: Float[Tensor, "k C"]
    """The last weight is the token's own."""
    bias: Float[Tensor, " C"] | None

    def __call__(self, entered: Float[Tensor, "P k-1+L C"]) -> Float[Tensor, "P L C"]:
        """Weigh each token's channels and those of the k - 1 tokens before it; the first k - 1 have no output."""
        taps = len(self.weight)
        length = entered.shape[1] - taps + 1
        out = entered[:, taps - 1 :] * self.weight[-1]  # the order of sums is that of training
        for tap in range(taps - 2, -1, -1):
            out += entered[:, tap : tap + length] * self.weight[tap]
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateRule(ABC):
    """What a layer computes between its two products."""

    convolution: Convolution
    """Over the channels of `entering`."""

    @abstractmethod
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each recurrent state of a row, beside the convolution's inputs."""

    @abstractmethod
    def entering(self, projected: Float[Tensor, "... N"]) -> Float[Tensor, "... C"]:
        """Return what enters the convolution."""

    @abstractmethod
    def scanned(
        self,
        projected: Float[Tensor, "P L N"],
        convolved: Float[Tensor, "P L C"],
        real: Bool[Tensor, "P L"],
        states: Sequence[Tensor],
    ) -> tuple[Float[Tensor, "P L M"], tuple[Tensor, ...]]:
        """Return the outputs of whole prompts, and the recurrent states behind the tokens that are `real`."""

    @abstractmethod
    def stepped(
        self, projected: Float[Tensor, "S N"], convolved: Float[Tensor, "S C"], states: Sequence[Tensor]
    ) -> Float[Tensor, "S M"]:
        """Return the outputs of one token per row, by torch's operations."""

    @abstractmethod
    def compiled(self, projected: Float[Tensor, "S N"], states: Sequence[Tensor]) -> Float[Tensor, "S M"]:
        """Return the outputs of one token per row, convolution included, by this machine's compiled kernels."""


def step(rule: StateRule, projected: Float[Tensor, "S N"], states: Sequence[Tensor], *, compiled: bool) -> Tensor:
    """Return a rule's outputs [S, M] for one new token of each row; `compiled`: by kernels in C, on a CPU."""
    if compiled:
        return rule.compiled(projected, states)
    last, *recurrent = states
    entered = torch.cat((last, rule.entering(projected)[:, None]), dim=1)
    last.copy_(entered[:, 1:])
    return rule.stepped(projected, rule.convolution(entered)[:, 0], recurrent)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaRule(StateRule):
    """Gated delta rule, `projected` being queries, keys, values (that are convolved), gates, b, a:

        S <- exp(g) S;  S <- S + k (beta (v - k S));  o = q S / sqrt(D);  out = norm(o) * silu(gate)
        g = rates * softplus(a + dt_bias);  beta = beta_scale * sigmoid(b);  q, k of length 1

    Source: arXiv:2412.06464, Eq. 10. K key heads of width D, H value heads of width E, which share keys in groups.
    """

    scan: Scan
    rates: Float[Tensor, " H"]
    dt_bias: Float[Tensor, " H"]
    scale: Float[Tensor, " E"]
    eps: float
    beta_scale: float
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int

    @override
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.value_heads, self.key_width, self.value_width),)

    @override
    def entering(self, projected: Float[Tensor, "... N"]) -> Float[Tensor, "... C"]:
        return projected[..., : self.convolution.weight.shape[1]]

    @override
    def scanned(
        self, projected: Tensor, convolved: Tensor, real: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        decay, beta = (rate * real[..., None] for rate in self._coefficients(projected))
        heads = [part.to(projected.dtype) for part in self._heads(convolved)]
        out, state = self.scan((*heads, decay, beta), states[0])
        return self._gated(out, projected), (state.to(states[0].dtype).contiguous(),)

    @override
    def stepped(self, projected: Tensor, convolved: Tensor, states: Sequence[Tensor]) -> Tensor:
        (query, key, value), state = self._heads(convolved), states[0]
        decay, beta = self._coefficients(projected)
        query, key = (
            (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(
                self.value_heads // self.key_heads, dim=1
            )
            for x in (query, key)
        )
        state.mul_(decay.exp()[..., None, None])
        off = (value - (state * key[..., None]).sum(-2)) * beta[..., None]
        state.addcmul_(key[..., None], off[..., None, :])
        out = (state * query[..., None]).sum(-2) * self.key_width**-0.5
        return self._gated(out, projected)

    @override
    def compiled(self, projected: Tensor, states: Sequence[Tensor]) -> Tensor:
        out = projected.new_empty(len(projected), self.value_heads * self.value_width)
        weight, bias = self.convolution.weight, self.convolution.bias
        kernel("delta_step", "pppppppppp iiiiii dd i")(
            projected, *states, weight, bias, self.rates, self.dt_bias, self.scale,
            torch.empty(len(projected), weight.shape[1]), out, len(projected), self.key_heads, self.value_heads,
            self.key_width, self.value_width, len(weight), self.eps, self.beta_scale, projected.dtype,
        )  # fmt: skip
        return out

    def _coefficients(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Return logarithms of decays, and betas, [..., H] each."""
        b, a = projected[..., -2 * self.value_heads :].to(self.rates.dtype).chunk(2, dim=-1)
        return self.rates * F.softplus(a + self.dt_bias), b.sigmoid() * self.beta_scale

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.key_heads * self.key_width, self.value_heads * self.value_width
        query, key, value = F.silu(convolved).split((keys, keys, values), dim=-1)
        width = self.key_width
        return (
            query.unflatten(-1, (-1, width)),
            key.unflatten(-1, (-1, width)),
            value.unflatten(-1, (-1, self.value_width)),
        )

    def _gated(self, out: Float[Tensor, "... H E"], projected: Tensor) -> Float[Tensor, "... M"]:
        first, count = self.convolution.weight.shape[1], self.value_heads * self.value_width
        gate = projected[..., first : first + count].unflatten(-1, (-1, self.value_width)).to(self.scale.dtype)
        normed = _normed(out.to(self.scale.dtype), self.eps) * self.scale * F.silu(gate)
        return normed.flatten(-2).to(projected.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectiveScan(StateRule):
    """Mamba-2, `projected` being gates, inputs, B, C (that are convolved), and time steps dt:

        S <- exp(dt A) S + dt x B';  y = S C + skip x;  out = norm(y * silu(gate)), group by group
        A = rates;  dt = softplus(dt + dt_bias), within `limits`

    Source: arXiv:2405.21060, section 6. H heads of width D in G groups, which share B and C of N numbers and are normed
    together.
    """

    scan: Scan
    rates: Float[Tensor, " H"]
    dt_bias: Float[Tensor, " H"]
    skip: Float[Tensor, " H"]
    scale: Float[Tensor, " H*D"]
    eps: float
    limits: tuple[float, float]
    heads: int
    groups: int
    width: int
    size: int

    @override
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.heads, self.width, self.size),)

    @override
    def entering(self, projected: Float[Tensor, "... N"]) -> Float[Tensor, "... C"]:
        return projected[..., self.heads * self.width : -self.heads]

    @override
    def scanned(
        self, projected: Tensor, convolved: Tensor, real: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, b, c = (part.to(projected.dtype) for part in self._parts(convolved))
        out, state = self.scan((x, self._time_steps(projected) * real[..., None], b, c), states[0])
        return self._gated(out.flatten(-2), projected), (state.to(states[0].dtype).contiguous(),)

    @override
    def stepped(self, projected: Tensor, convolved: Tensor, states: Sequence[Tensor]) -> Tensor:
        (x, b, c), state, dt = self._parts(convolved), states[0], self._time_steps(projected)
        b, c = (part.repeat_interleave(self.heads // self.groups, dim=1)[..., None, :] for part in (b, c))
        state.mul_((dt * self.rates).exp()[..., None, None]).addcmul_((dt[..., None] * x)[..., None], b)
        out = (state * c).sum(-1) + self.skip[:, None] * x
        return self._gated(out.flatten(-2), projected)

    @override
    def compiled(self, projected: Tensor, states: Sequence[Tensor]) -> Tensor:
        out = projected.new_empty(len(projected), self.heads * self.width)
        weight, bias = self.convolution.weight, self.convolution.bias
        kernel("ssd_step", "ppppppppppp iiiiii ddd i")(
            projected, *states, weight, bias, self.rates, self.dt_bias, self.skip, self.scale,
            torch.empty(len(projected), weight.shape[1]), out, len(projected), self.heads, self.groups, self.width,
            self.size, len(weight), self.eps, *self.limits, projected.dtype,
        )  # fmt: skip
        return out

    def _time_steps(self, projected: Tensor) -> Float[Tensor, "... H"]:
        return F.softplus(projected[..., -self.heads :].to(self.rates.dtype) + self.dt_bias).clamp(*self.limits)

    def _parts(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shared = self.groups * self.size
        x, b, c = F.silu(convolved).split((self.heads * self.width, shared, shared), dim=-1)
        return x.unflatten(-1, (-1, self.width)), b.unflatten(-1, (-1, self.size)), c.unflatten(-1, (-1, self.size))

    def _gated(self, out: Float[Tensor, "... M"], projected: Tensor) -> Float[Tensor, "... M"]:
        gate = projected[..., : self.heads * self.width].to(self.scale.dtype)
        grouped = (out.to(self.scale.dtype) * F.silu(gate)).unflatten(-1, (self.groups, -1))
        return (_normed(grouped, self.eps).flatten(-2) * self.scale).to(projected.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortConvolution(StateRule):
    """Gated short convolution, `projected` being b, c, x of C channels each: out = c * convolution(b * x).

    Source: LFM2, arXiv:2511.23404, section 2.
    """

    @override
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ()

    @override
    def entering(self, projected: Float[Tensor, "... N"]) -> Float[Tensor, "... C"]:
        b, _, x = projected.chunk(3, dim=-1)
        return b * x

    @override
    def scanned(
        self, projected: Tensor, convolved: Tensor, real: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.stepped(projected, convolved, states), ()

    @override
    def stepped(self, projected: Tensor, convolved: Tensor, states: Sequence[Tensor]) -> Tensor:
        return (projected.chunk(3, dim=-1)[1] * convolved).to(projected.dtype)

    @override
    def compiled(self, projected: Tensor, states: Sequence[Tensor]) -> Tensor:
        (taps, width), bias = self.convolution.weight.shape, self.convolution.bias
        out = projected.new_empty(len(projected), width)
        kernel("convolution_step", "ppppp iii i")(
            projected, *states, self.convolution.weight, bias, out, len(projected), width, taps, projected.dtype
        )
        return out


def _normed(x: Float[Tensor, "... D"], eps: float) -> Float[Tensor, "... D"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
