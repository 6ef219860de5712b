"""The optimisers that the options name: AdamW, with its moments as they are, in 8 bits, or in main memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from paceline.config.objective import OptimConfig
from paceline.config.packages import install_command
from paceline.errors import ConfigError
from paceline.models.loaded import Loaded


def make_optimizer(
    policy: Loaded, optim: OptimConfig, vision_learning_rate: float | None = None
) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; weight decay reaches matrices only, not norms and biases.

    `vision_learning_rate`: rate of what encodes images; None: that of `optim`.

    Raises:
        ConfigError: the library of the 8-bit kind is not installed.
    """
    # matrices apart from the rest, and apart what lies on different meshes of ranks: one kernel takes no mixture
    parts = dict[tuple[bool, bool, object], list[nn.Parameter]]()
    seeing = set[int]()
    if policy.vision is not None and vision_learning_rate is not None:
        seeing = {id(parameter) for parameter in policy.vision.parameters()}
    for parameter in sorted(policy.model.parameters(), key=lambda each: (id(each) in seeing, each.ndim < 2)):
        if parameter.requires_grad:
            key = parameter.ndim >= 2, id(parameter) in seeing, getattr(parameter, "device_mesh", None)
            parts.setdefault(key, []).append(parameter)
    groups = [
        {
            "params": alike,
            "weight_decay": optim.weight_decay if is_matrix else 0.0,
            "lr": vision_learning_rate if sees else optim.learning_rate,
        }
        for (is_matrix, sees, _), alike in parts.items()
    ]
    common: dict[str, Any] = {
        "lr": optim.learning_rate,
        "betas": optim.adam_betas,
        "eps": optim.adam_eps,
    }
    if optim.optimizer != "adamw_8bit":
        return (OffloadedAdamW if "optimizer" in optim.offload else torch.optim.AdamW)(groups, **common, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[attr-defined]  # its __init__ has no __all__
    except ImportError as error:
        raise ConfigError(
            f"--optimizer adamw_8bit needs the package bitsandbytes; `{install_command('bitsandbytes')}` ({error})"
        ) from None
    eight_bit: type[torch.optim.Optimizer] = AdamW8bit
    return eight_bit(groups, **common)


class OffloadedAdamW(torch.optim.AdamW):
    """torch's AdamW whose moments lie in main memory and come to a parameter's device for its update alone.

    The numbers are those of the fused AdamW: the same function is called, one parameter at a time.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient; a closure is not supported."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which brings all moments to their parameters' device, and then back to main memory."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name, value in state.items():
                state[name] = _in_main_memory(value)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = (_in_main_memory(torch.zeros_like(parameter)) for _ in range(2))
        here = {name: value.to(parameter.device, non_blocking=True) for name, value in state.items()}
        beta1, beta2 = group["betas"]
        adamw(
            [parameter],
            [gradient],
            [here["exp_avg"]],
            [here["exp_avg_sq"]],
            [],
            [here["step"]],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )
        for name, value in here.items():
            state[name].copy_(value)  # waits: the next update may read them at any time


def _in_main_memory(value: Tensor) -> Tensor:
    """Page-locked where a GPU is to copy to it and from it."""
    return value.cpu().pin_memory() if value.is_cuda else value
