"""TRL's objective fields as options: a loss becomes its bound and its average."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.compat.trl.keywords import Options
from paceline.compat.trl.refused import changed, corrects_rollouts
from paceline.config.presets import PRESETS
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig


LOSSES: Mapping[str, tuple[str, str]] = {
    "grpo": ("clip", "sequence"),
    "bnpo": ("clip", "token"),
    "dr_grpo": ("clip", "constant"),
    "dapo": ("clip", "token"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "sequence"),
}
"""`loss_type` to bound and average."""
ADVANTAGES: Mapping[str, str] = {"group": "group", "batch": "group_mean_reward_std", "none": "none"}
CISPO_MAX_RATIO = 5.0
"""ScaleRL's value; TRL's default for cispo is `epsilon`, which bounds every weight at 0.2."""

SOURCES: Mapping[str, tuple[str, ...]] = {
    "advantage": ("scale_rewards", "multi_objective_aggregation"),
    "reward_aggregation": ("multi_objective_aggregation",),
    "ratio_level": ("importance_sampling_level",),
    "bound": ("loss_type",),
    "average": ("loss_type",),
    "average_over": ("loss_type",),
    "clip_eps_low": ("epsilon",),
    "clip_eps_high": ("epsilon_high", "epsilon"),
    "cispo_max_ratio": ("epsilon_high",),
    "dual_clip": ("delta",),
    "beta": ("beta",),
    "kl": ("use_bias_correction_kl",),
    "entropy_coef": ("entropy_coef",),
    "mask_truncated": ("mask_truncated_completions",),
    "off_policy_threshold": ("off_policy_mask_threshold",),
    "filter_range": ("filter_range",),
    "max_refills": ("max_refills",),
    "oversampling": ("oversampling",),
}
"""Fields that decide each option; if none is changed, a preset decides."""


def objective_options(args: "GRPOConfig") -> Options:
    """The objective in Paceline's options.

    Raises:
        ConfigError: a field that the chosen loss would leave without effect.
    """
    bound = _bound(args)
    _refuse_idle(args, bound)
    options = {**_bounds(args, bound), **_advantage(args), **_terms(args)}
    if args.preset is not None:
        options = {name: value for name, value in options.items() if any(changed(args, f) for f in SOURCES[name])}
        options["preset"] = args.preset
    return {**options, **_reference(args), **_correction(args)}


def _bound(args: "GRPOConfig") -> str:
    """Bound of the ratio: the preset's if it has one and `loss_type` is unchanged, else the loss's."""
    if args.preset is not None and not changed(args, "loss_type"):
        return str(PRESETS[args.preset].values.get("bound", "clip"))
    return LOSSES[args.loss_type][0]


def _refuse_idle(args: "GRPOConfig", bound: str) -> None:
    loss = (
        f"preset {args.preset!r}" if not changed(args, "loss_type") and args.preset else f"loss_type {args.loss_type!r}"
    )
    idle = {"clip": (), "cispo": ("epsilon", "delta")}.get(bound, ("epsilon", "epsilon_high", "delta"))
    for name in idle:
        if changed(args, name):
            raise ConfigError(
                f"{name} must be left out with {loss}, got {getattr(args, name)!r}: its ratio is not clipped"
            )
    if args.multi_objective_aggregation == "normalize_then_sum" and changed(args, "scale_rewards"):
        raise ConfigError(
            f"scale_rewards must be left out with multi_objective_aggregation 'normalize_then_sum', got "
            f"{args.scale_rewards!r}: each reward is divided by its group's std, their sum by the batch's"
        )


def _bounds(args: "GRPOConfig", bound: str) -> Options:
    options: Options = {
        "ratio_level": args.importance_sampling_level,
        "average": LOSSES[args.loss_type][1],
        "average_over": "all",
        "bound": bound,
    }
    if bound == "cispo":
        return {**options, "cispo_max_ratio": _cispo_max_ratio(args.epsilon_high)}
    if bound == "clip":
        _check_range(args)
        high = args.epsilon if args.epsilon_high is None else args.epsilon_high
        options |= {"clip_eps_low": args.epsilon, "clip_eps_high": high, "dual_clip": _dual_clip(args.delta)}
    return options


def _check_range(args: "GRPOConfig") -> None:
    if not 0 <= args.epsilon < 1:
        raise ConfigError(
            f"epsilon must lie in [0, 1), got {args.epsilon!r}: the ratio is held above 1 - epsilon; 0.2 is usual"
        )
    if args.epsilon_high is not None and args.epsilon_high < 0:
        raise ConfigError(
            f"epsilon_high must be at least 0, got {args.epsilon_high!r}: the ratio is held below 1 + epsilon_high; "
            "0.28 is usual"
        )


def _cispo_max_ratio(epsilon_high: float | None) -> float:
    if epsilon_high is None:
        return CISPO_MAX_RATIO
    if epsilon_high < 1:
        raise ConfigError(
            f"epsilon_high must be at least 1 with the bound of cispo, where it is the ratio's own upper bound, got "
            f"{epsilon_high!r}; {CISPO_MAX_RATIO} is usual"
        )
    return epsilon_high


def _dual_clip(delta: float | None) -> float:
    """Option for the dual clip; 0 means off in the option, and would stop every gradient in the field."""
    if delta is not None and delta <= 1:
        raise ConfigError(f"delta must be above 1 + epsilon_high, got {delta!r}; 3 is usual, None is off")
    return 0.0 if delta is None else delta


def _advantage(args: "GRPOConfig") -> Options:
    if args.multi_objective_aggregation == "normalize_then_sum":
        return {"reward_aggregation": "normalize_then_sum", "advantage": "batch"}
    return {"reward_aggregation": "sum_then_normalize", "advantage": ADVANTAGES[args.scale_rewards]}


def _terms(args: "GRPOConfig") -> Options:
    return {
        "beta": args.beta,
        "kl": "k3_ratio" if args.use_bias_correction_kl else "k3",
        "entropy_coef": args.entropy_coef,
        "mask_truncated": args.mask_truncated_completions,
        "off_policy_threshold": args.off_policy_mask_threshold,
        "filter_range": args.filter_range,
        "max_refills": args.max_refills,
        "oversampling": args.oversampling,
    }


def _reference(args: "GRPOConfig") -> Options:
    """Update of the reference, counted in updates; `translation.py` converts it to steps."""
    return {"ref_sync_mix": args.ref_model_mixup_alpha} if args.sync_ref_model else {}


def _correction(args: "GRPOConfig") -> Options:
    """Rollout correction, off by default: the engine uses the trainer's weights, and TRL corrects for vLLM only."""
    prefix = "vllm_importance_sampling_"
    if not corrects_rollouts(args):
        return {}
    cap = args.vllm_importance_sampling_cap
    most = args.vllm_importance_sampling_clip_max if cap is None else cap
    if most is None:
        raise ConfigError(f"{prefix}clip_max must be a number, got None: the weight has no other bound; 3.0 is usual")
    level, kind = args.vllm_importance_sampling_mode.split("_")
    return {"rollout_correction": kind, "correction_level": level, "correction_max": most}
