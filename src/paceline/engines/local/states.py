"""Layers that keep a state of a fixed size for each row, read from a model's modules: recurrent and convolutional ones.

P prompts of at most L tokens, S rows, W width of the model; k taps of a convolution over C channels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from paceline.engines.local.mixers import MixerStates, StateMixer
from paceline.engines.local.operations import Kernels, Linear
from paceline.kernels.float8 import Float8Linear
from paceline.kernels.recurrence import Convolution, DeltaRule, SelectiveScan, ShortConvolution, StateRule, step
from paceline.models.families.layer_plan import DELTA_RULE, MAMBA_2, SHORT_CONVOLUTION
from paceline.models.states import mixer_problem, scan_of

_CHUNK = 64
"""Tokens of a chunk of Mamba-2's scan: a smaller one than the model's takes less memory, and changes rounding only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateLayer(StateMixer):
    """A rule between two products."""

    kernels: Kernels
    rule: StateRule
    inputs: Linear | Float8Linear
    output: Linear | Float8Linear

    @override
    def new_states(self, rows: int) -> MixerStates:
        weight = self.rule.convolution.weight
        last = weight.new_zeros(rows, len(weight) - 1, weight.shape[1], dtype=self.kernels.dtype)
        return last, *(weight.new_zeros(rows, *shape) for shape in self.rule.shapes())

    @override
    def of_prompts(
        self, normed: Float[Tensor, "P L W"], lengths: Int[Tensor, " P"], states: MixerStates
    ) -> tuple[Float[Tensor, "P L W"], MixerStates]:
        (last, *recurrent), shape, ends = states, normed.shape[:2], lengths[:, None].to(normed.device)
        projected = self.kernels.linear(normed.flatten(0, 1), self.inputs).unflatten(0, shape)
        entered = torch.cat((last, self.rule.entering(projected)), dim=1)
        real = torch.arange(shape[1], device=normed.device) < ends
        mixed, ended = self.rule.scanned(projected, self.rule.convolution(entered), real, recurrent)
        before_end = ends + torch.arange(last.shape[1], device=normed.device)
        last = entered.take_along_dim(before_end[..., None], dim=1)
        output = self.kernels.linear(mixed.flatten(0, 1), self.output).unflatten(0, shape)
        return output, (last, *ended)

    @override
    def of_step(self, normed: Float[Tensor, "S W"], states: MixerStates) -> Float[Tensor, "S W"]:
        projected = self.kernels.linear(normed, self.inputs)
        mixed = step(self.rule, projected, states, compiled=self.kernels.native is not None)
        return self.kernels.linear(mixed, self.output)


def state_layer(kind: str, module: nn.Module, inputs: Linear, output: Linear, kernels: Kernels) -> StateLayer:
    """Prepare a mixer of this kind, with its current weights; `state_problem` has found none.

    `inputs`: its linear layers before the rule, joined; `output`: the one behind it.
    """
    if hasattr(module, "in_proj_qkvz"):
        weight, bias = inputs
        order = _order(module).to(weight.device)
        inputs = weight[order], None if bias is None else bias[order]
    rule = _RULES[kind](module, kernels.dtype)
    return StateLayer(kernels=kernels, rule=rule, inputs=kernels.projection(inputs), output=kernels.projection(output))


def state_problem(kind: str, module: nn.Module) -> str | None:
    """Return why `state_layer` cannot read a mixer, beside its linear layers; None if it can."""
    if kind not in _RULES:
        return f"its mixer is of the kind {kind}, not one of {', '.join(_RULES)}"
    if kind == SHORT_CONVOLUTION:
        return None
    activation = getattr(module, "activation", None)
    if activation not in ("silu", "swish"):
        return f"the activation of its convolution is {activation!r}, not 'silu'"
    return mixer_problem(module)


def _wide(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a parameter in float32 at least."""
    return parameter.detach().to(torch.promote_types(dtype, torch.float32))


def _convolution(module: nn.Conv1d, dtype: torch.dtype) -> Convolution:
    bias = None if module.bias is None else _wide(module.bias, dtype)
    return Convolution(weight=_wide(module.weight[:, 0].T, dtype).contiguous(), bias=bias)


def _delta_rule(module: Any, dtype: torch.dtype) -> DeltaRule:
    norm = module.o_norm if hasattr(module, "o_norm") else module.norm
    return DeltaRule(
        convolution=_convolution(module.conv1d, dtype),
        scan=scan_of(module, dtype, use_qk_l2norm_in_kernel=True),
        rates=-_wide(module.A_log, dtype).exp(),
        dt_bias=_wide(module.dt_bias, dtype),
        scale=_wide(norm.weight, dtype),
        eps=norm.variance_epsilon,
        beta_scale=2.0 if getattr(module, "allow_neg_eigval", False) else 1.0,
        key_heads=module.num_k_heads,
        value_heads=module.num_v_heads,
        key_width=module.head_k_dim,
        value_width=module.head_v_dim,
    )


def _selective_scan(module: Any, dtype: torch.dtype) -> SelectiveScan:
    rates, skip = -_wide(module.A_log, dtype).exp(), _wide(module.D, dtype)
    least, most = map(float, module.time_step_limit)
    return SelectiveScan(
        convolution=_convolution(module.conv1d, dtype),
        scan=scan_of(module, dtype, A=rates, D=skip, chunk_size=_CHUNK),
        rates=rates,
        dt_bias=_wide(module.dt_bias, dtype),
        skip=skip,
        scale=_wide(module.norm.weight, dtype),
        eps=module.norm.variance_epsilon,
        limits=(least, most),
        heads=module.num_heads,
        groups=module.n_groups,
        width=module.head_dim,
        size=module.ssm_state_size,
    )


def _short_convolution(module: Any, dtype: torch.dtype) -> ShortConvolution:
    return ShortConvolution(convolution=_convolution(module.conv, dtype))


_RULES: Mapping[str, Callable[[Any, torch.dtype], StateRule]] = {
    DELTA_RULE: _delta_rule,
    MAMBA_2: _selective_scan,
    SHORT_CONVOLUTION: _short_convolution,
}


def _order(module: Any) -> Int[Tensor, " N"]:
    """Return where joined outputs lie in layers that give queries to gates, then b and a, by key head."""
    keys, shared = module.head_k_dim, module.num_v_heads // module.num_k_heads
    values = shared * module.head_v_dim
    order, first = list[Tensor](), 0
    for sizes in ((keys, keys, values, values), (shared, shared)):
        rows = torch.arange(first, first := first + module.num_k_heads * sum(sizes)).view(module.num_k_heads, -1)
        order += [part.flatten() for part in rows.split(sizes, dim=1)]
    return torch.cat(order)
