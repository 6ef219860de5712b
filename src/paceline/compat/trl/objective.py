"""TRL's objective fields as options: a loss becomes its bound and its average."""

from collections.abc import Mapping
from typing import cast

from paceline.compat.trl.fields import DECIDED_BY, Fields, Options, options_of
from paceline.compat.trl.grpo_fields import corrects_rollouts
from paceline.compat.vocabulary import changed
from paceline.config.presets import PRESETS
from paceline.config.reading import options
from paceline.errors import ConfigError

LOSSES: Mapping[str, tuple[str, str]] = {
    "grpo": ("clip", "sequence"),
    "bnpo": ("clip", "token"),
    "dr_grpo": ("clip", "constant"),
    "dapo": ("clip", "token"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "sequence"),
    "luspo": ("clip", "sequence_sum"),
    "vespo": ("vespo", "token"),
}
"""`loss_type` to bound and average."""
ADVANTAGES: Mapping[str, str] = {"group": "group", "batch": "group_mean_reward_std", "none": "none"}
CISPO_MAX_RATIO = 5.0
"""ScaleRL's value; TRL's default for cispo is `epsilon`, which bounds every weight at 0.2."""
NO_BOUND = 3.4e38
"""Above every weight that float32 can hold."""
OPTIONS = tuple(one.name for one in options() if one.section in ("advantage", "loss") and one.name in DECIDED_BY)
"""Options of the objective that fields decide."""
UNSET = ("preset", "ref_sync", "rollout_correction", "correction_bounds")
"""Those of them that no preset sets."""


def objective_fields() -> tuple[str, ...]:
    """Fields that a preset decides unless they are changed."""
    return tuple(dict.fromkeys(name for option in OPTIONS if option not in UNSET for name in DECIDED_BY[option]))


def objective_options(args: Fields) -> Options:
    """The objective as options, but for the reference's steps; ConfigError for a field that its loss leaves idle."""
    bound = LOSSES[args.loss_type][0]
    loss = f"loss_type {args.loss_type!r}"
    if args.preset is not None and not changed(args, "loss_type"):
        bound, loss = str(PRESETS[args.preset].values.get("bound", "clip")), f"preset {args.preset!r}"
    # the bound leaves some fields without effect
    for name in {"clip": (), "cispo": ("epsilon", "delta")}.get(bound, ("epsilon", "epsilon_high", "delta")):
        if changed(args, name):
            raise ConfigError(
                f"{name} must be left out with {loss}, got {getattr(args, name)!r}: its ratio is not clipped"
            )
    both = args.multi_objective_aggregation == "normalize_then_sum"
    if both and changed(args, "scale_rewards"):
        raise ConfigError(
            f"scale_rewards must be left out with multi_objective_aggregation 'normalize_then_sum', got "
            f"{args.scale_rewards!r}: each reward is divided by its group's std, their sum by the batch's"
        )
    alone = {name: value for name, value in options_of(args).items() if name in OPTIONS}
    found = {**alone, "average": LOSSES[args.loss_type][1], "average_over": "all", **_bound(args, bound)}
    found["reward_aggregation"] = args.multi_objective_aggregation
    found["advantage"] = "batch" if both else ADVANTAGES[args.scale_rewards]
    if args.preset is not None:
        found = {name: value for name, value in found.items() if any(changed(args, one) for one in DECIDED_BY[name])}
        found["preset"] = args.preset
    if args.use_adaptive_entropy:
        found["entropy_target"] = (
            *(args.entropy_target, args.entropy_coef_min, args.entropy_coef_max),
            args.entropy_coef_delta,
        )
    return {**found, **_correction(args)}


def _bound(args: Fields, bound: str) -> Options:
    low, high, delta = args.epsilon, args.epsilon_high, args.delta
    if bound == "cispo":
        if high is not None and high < 1:
            raise ConfigError(
                "epsilon_high must be at least 1 with the bound of cispo, where it is the ratio's own upper bound, got "
                f"{high!r}; {CISPO_MAX_RATIO} is usual"
            )
        return {"bound": bound, "clip_eps_high": (CISPO_MAX_RATIO if high is None else high) - 1}
    if bound == "sapo":
        return {"bound": bound, "bound_shape": (args.sapo_temperature_pos, args.sapo_temperature_neg)}
    if bound == "vespo":
        of_good, of_bad = (args.vespo_k_pos, args.vespo_lambda_pos), (args.vespo_k_neg, args.vespo_lambda_neg)
        return {"bound": bound, "bound_shape": (*of_good, *of_bad)}
    if bound != "clip":
        return {"bound": bound}
    if not 0 <= low < 1:
        raise ConfigError(f"epsilon must lie in [0, 1), got {low!r}: the ratio is held above 1 - epsilon; 0.2 is usual")
    if high is not None and high < 0:
        raise ConfigError(
            f"epsilon_high must be at least 0, got {high!r}: the ratio is held below 1 + epsilon_high; 0.28 is usual"
        )
    high = low if high is None else high
    above = high
    if args.preset is not None and not any(changed(args, name) for name in DECIDED_BY["clip_eps_high"]):
        above = cast(float, PRESETS[args.preset].values.get("clip_eps_high", high))
    if delta is not None and delta <= 1 + above:
        raise ConfigError(f"delta must be above 1 + epsilon_high ({above}), got {delta!r}; 3 is usual, None is off")
    shape = None if delta is None else (delta,)
    return {"bound": bound, "clip_eps_low": low, "clip_eps_high": high, "bound_shape": shape}


def _correction(args: Fields) -> Options:
    """Rollout correction, off by default: the engine uses the trainer's weights, and TRL corrects for vLLM only."""
    if not corrects_rollouts(args):
        return {}
    cap = args.vllm_importance_sampling_cap
    most = args.vllm_importance_sampling_clip_max if cap is None else cap
    least = args.vllm_importance_sampling_clip_min
    if most is None and least is None:
        raise ConfigError(
            "vllm_importance_sampling_clip_max must be a number, got None: the weight has no other bound; 3.0 is usual"
        )
    bounds = (least or 0.0, NO_BOUND if most is None else most)
    return {"rollout_correction": args.vllm_importance_sampling_mode, "correction_bounds": bounds}
